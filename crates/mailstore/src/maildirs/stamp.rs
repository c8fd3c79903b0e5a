//! UIDs of messages, given while their batch becomes durable.

use bytes::{BufMut, Bytes, BytesMut};
use posthaste_intake::Guard;
use posthaste_spool::Entry;

use crate::entry::MailEntry;
use crate::ledger::MailLedger;

/// Gives the messages of a batch their UIDs.
pub(super) fn stamp<'a>(ledger: &'a MailLedger, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
    let stream = ledger.stream();
    let mut uids = None;
    for entry in entries.iter_mut().filter(|entry| entry.stream == stream) {
        let uids = uids.get_or_insert_with(|| ledger.lock_uids());
        let Some(mailbox) = MailEntry::kind(&entry.payload).and_then(|kind| kind.mailbox()) else { continue };
        // 0 is no UID: a mailbox that has none left gets the message without one.
        let uid = uids.take(mailbox, 1).unwrap_or(0);
        entry.payload = with_first_uid(std::mem::take(&mut entry.payload), uid);
    }
    uids.map(|uids| Box::new(uids) as Box<dyn Guard>)
}

/// The entry of kind *new* with another first UID. Usually its octets are unshared, and are not copied.
fn with_first_uid(payload: Bytes, uid: u32) -> Bytes {
    let mut octets = payload.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    (&mut octets[MailEntry::FIRST_UID_AT..]).put_u32_le(uid);
    octets.freeze()
}
