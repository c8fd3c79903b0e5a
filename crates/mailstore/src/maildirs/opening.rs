//! A mailbox being loaded from the ledger: sessions see its counters before its messages.
//!
//! Counters and messages are from one state of the ledger; changes meanwhile are reported like later ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_maildir::MaildirReader;
use tokio::sync::watch;

use super::answers::unavailable;
use super::boot::{SealedStamps, sealed};
use super::core::MailboxCore;
use super::keywords::MailboxKeywords;
use super::locks::lock;
use super::state::{MailboxState, Messages};
use super::told::Oddities;
use crate::error::MailstoreError;
use crate::ledger::CountedMailbox;
use crate::opening_view::{MailboxNumbers, OpeningMailbox};
use crate::row::{MailboxStatus, ModSeq, Uid, UidValidity};
use crate::table::MailboxHead;

/// Publishes the counters while messages are loaded. Dropping it ends this, after success or failure.
pub(super) struct Opening<'c> {
    core: &'c MailboxCore,
    /// Stamps of the directories before the loading; `None`: sessions wait for the messages.
    stamps: Option<SealedStamps>,
    messages: watch::Sender<Option<Arc<Messages>>>,
}

impl<'c> Opening<'c> {
    pub fn new(core: &'c MailboxCore, reader: Option<&MaildirReader>) -> Self {
        let stamps = reader.and_then(|reader| reader.stamps().ok()).and_then(sealed);
        let stamps = stamps.filter(|_| !core.is_miscounted.load(Ordering::Relaxed));
        Self { core, stamps, messages: watch::Sender::new(None) }
    }

    /// True if the directories are unchanged since the last listing.
    pub fn is_wanted(&self, head: &MailboxHead) -> bool {
        self.stamps == Some(head.stamps)
    }

    pub fn show(&self, counted: CountedMailbox) {
        let Some((stamps, numbers)) = self.stamps.zip(numbers_of(counted)) else { return };
        self.core.uid_validity.store(numbers.status.uid_validity.get(), Ordering::Relaxed);
        self.core.found_recent(numbers.recent_from);
        let opening = OpeningMailbox { numbers: Arc::new(numbers), messages: self.messages.subscribe() };
        self.core.looked.send_modify(|looked| looked.opening = Some((stamps, opening)));
    }

    /// Publishes the loaded messages.
    pub fn end(self, messages: Arc<Messages>) {
        let is_other = self.core.looked.borrow().opening.as_ref().is_some_and(|(_, opening)| {
            // Those who look leave the messages of a damaged row out.
            !opening.numbers.are_of(&messages)
        });
        self.core.is_miscounted.fetch_or(is_other, Ordering::Relaxed);
        self.messages.send_replace(Some(messages));
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.core.looked.send_if_modified(|looked| looked.opening.take().is_some());
    }
}

/// Applies published entries. An unloaded mailbox is read from the ledger, and created if missing. `changing` is
/// locked.
pub(super) fn load(
    core: &MailboxCore,
    reader: Option<&MaildirReader>,
    odd: &mut Oddities,
) -> Result<(), MailstoreError> {
    if core.is_deleted.load(Ordering::Relaxed) {
        return Err(MailstoreError::NoMailbox);
    }
    if core.catch_up() {
        return Ok(());
    }
    core.make(reader, odd, None, &|| Ok(()))?;
    let ledger = &core.shared.ledger;
    let opening = Opening::new(core, reader);
    let (is_wanted, recent_from) = (|head: &MailboxHead| opening.is_wanted(head), core.known_recent_from());
    let stored = ledger.follow_counted(core.id, &is_wanted, recent_from, |counted| opening.show(counted));
    let stored = stored.map_err(unavailable)?;
    let stored = stored.ok_or_else(|| MailstoreError::Unavailable("the mailbox was not made".to_owned()))?;
    let loaded = MailboxState::of(stored, ledger);
    core.uid_validity.store(loaded.uid_validity.get(), Ordering::Relaxed);
    let messages = Arc::clone(&loaded.now);
    *lock(&core.state) = Some(loaded);
    core.is_unlisted.store(true, Ordering::Relaxed);
    opening.end(messages);
    core.catch_up();
    Ok(())
}

/// `None` if a row is damaged: a look leaves out such messages.
pub(super) fn numbers_of(counted: CountedMailbox) -> Option<MailboxNumbers> {
    let CountedMailbox { head, messages, recent_from, recent, first_unseen, last_uid, keywords } = counted;
    let status = MailboxStatus {
        exists: head.exists,
        recent,
        unseen: head.unseen,
        deleted: head.deleted,
        uid_next: Uid::new(head.next_uid.max(1))?,
        uid_validity: UidValidity(Uid::new(head.uid_validity)?.0),
        highest_modseq: ModSeq(head.highest_modseq.max(head.modseq_floor).max(1)),
        bytes: Some(head.bytes),
    };
    let (last_uid, keywords) = (Uid::new(last_uid), MailboxKeywords::stored(&keywords).table());
    let numbers = MailboxNumbers { status, recent_from, first_unseen, last_uid, keywords };
    (messages == head.exists).then_some(numbers)
}
