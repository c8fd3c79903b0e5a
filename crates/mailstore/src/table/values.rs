//! Keys and values of the table, without checksums. docs/formats.md has the table.

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

use super::numbers::StoreNumbers;
use crate::entry::codec::put_octets;
use crate::entry::{GoneReason, WireSize};

/// UIDs that a mailbox skips for each damage that may have hidden some: more than are assigned between two commits of
/// the table.
pub(crate) const SKIPPED_UIDS: u32 = 1 << 20;

/// The head of a mailbox: its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MailboxHead {
    /// Account id.
    pub account: u32,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// The next UID.
    pub next_uid: u32,
    /// The table's `skip` when the mailbox was made or last skipped UIDs.
    pub skip: u32,
    /// LSN of the last change.
    pub highest_modseq: u64,
    /// Lower MODSEQs are reported as this.
    pub modseq_floor: u64,
    /// MODSEQ from which on all expunged messages are known.
    pub gone_from: u64,
    /// Number of messages.
    pub exists: u32,
    /// Messages without `\Seen`.
    pub unseen: u32,
    /// Messages with `\Deleted`.
    pub deleted: u32,
    /// UID from which on messages were `\Recent` in no session.
    pub recent_from: u32,
    /// Sum of all sizes in bytes.
    pub bytes: u64,
    /// Time and inode of `new/` and `cur/` at the last scan.
    pub stamps: [(i64, u64); 2],
    /// 0: Maildir, 1: packed.
    pub form: u8,
    /// As in [`MailboxFields`](crate::entry::MailboxFields).
    pub special_use: u8,
    /// Number of the day, from 1, of its directory being missing; 0: it is there.
    pub missing_day: u16,
    /// Number of ranges of expunged messages, or more.
    pub gone_ranges: u32,
    /// Directory below the mail directory.
    pub directory: Bytes,
}

impl MailboxHead {
    /// The head as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        let put = |out: &mut Vec<u8>, numbers: &[u32]| numbers.iter().for_each(|number| out.put_u32_le(*number));
        put(&mut out, &[self.account, self.uid_validity, self.next_uid, self.skip]);
        [self.highest_modseq, self.modseq_floor, self.gone_from].into_iter().for_each(|number| out.put_u64_le(number));
        put(&mut out, &[self.exists, self.unseen, self.deleted, self.recent_from]);
        out.put_u64_le(self.bytes);
        for (mtime_ns, inode) in self.stamps {
            out.put_i64_le(mtime_ns);
            out.put_u64_le(inode);
        }
        out.put_slice(&[self.form, self.special_use]);
        out.put_u16_le(self.missing_day);
        out.put_u32_le(self.gone_ranges);
        put_octets(&mut out, &self.directory);
        out
    }

    /// Skips UIDs and MODSEQs that may have been assigned and lost, once for each time that the store's `skip` was
    /// raised since this head was written.
    pub fn skip_to(&mut self, numbers: &StoreNumbers) {
        let steps = numbers.skip.saturating_sub(self.skip);
        if steps > 0 {
            self.next_uid = self.next_uid.saturating_add(steps.saturating_mul(SKIPPED_UIDS));
            self.skip = numbers.skip;
            self.modseq_floor = self.modseq_floor.max(numbers.floor);
            self.gone_from = self.gone_from.max(numbers.floor);
        }
    }

    /// Decodes a head; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let fields = &mut fields;
        let head = Self {
            account: fields.u32()?,
            uid_validity: fields.u32()?,
            next_uid: fields.u32()?,
            skip: fields.u32()?,
            highest_modseq: fields.u64()?,
            modseq_floor: fields.u64()?,
            gone_from: fields.u64()?,
            exists: fields.u32()?,
            unseen: fields.u32()?,
            deleted: fields.u32()?,
            recent_from: fields.u32()?,
            bytes: fields.u64()?,
            stamps: [(fields.u64()? as i64, fields.u64()?), (fields.u64()? as i64, fields.u64()?)],
            form: fields.u8()?,
            special_use: fields.u8()?,
            missing_day: fields.u16()?,
            gone_ranges: fields.u32()?,
            directory: octets(fields)?,
        };
        fields.end()?;
        Some(head)
    }
}

/// An account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountRow {
    /// The path of its INBOX below the mail directory.
    pub name: Bytes,
    /// Quota in bytes; 0: no limit.
    pub quota_bytes: u64,
    /// Quota in messages; 0: no limit.
    pub quota_messages: u32,
    /// Bytes of the account's mail.
    pub bytes: u64,
    /// Number of the account's messages.
    pub messages: u64,
    /// The highest UIDVALIDITY of its mailboxes so far.
    pub last_validity: u32,
    /// True if it was removed.
    pub is_gone: bool,
}

impl AccountRow {
    /// The account as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_octets(&mut out, &self.name);
        out.put_u64_le(self.quota_bytes);
        out.put_u32_le(self.quota_messages);
        out.put_u64_le(self.bytes);
        out.put_u64_le(self.messages);
        out.put_u32_le(self.last_validity);
        out.put_u8(self.is_gone.into());
        out
    }

    /// Decodes an account; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let account = Self {
            name: octets(&mut fields)?,
            quota_bytes: fields.u64()?,
            quota_messages: fields.u32()?,
            bytes: fields.u64()?,
            messages: fields.u64()?,
            last_validity: fields.u32()?,
            is_gone: fields.u8().filter(|gone| *gone < 2)? == 1,
        };
        fields.end()?;
        Some(account)
    }
}

/// A name of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NameRow {
    /// Id of the mailbox; 0: the name has none.
    pub mailbox: u32,
    /// True if the name is subscribed.
    pub is_subscribed: bool,
    /// UIDVALIDITY of the last mailbox of this name.
    pub last_validity: u32,
}

impl NameRow {
    /// The row as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.mailbox.to_le_bytes().to_vec();
        out.put_u8(self.is_subscribed.into());
        out.put_u32_le(self.last_validity);
        out
    }

    /// Decodes a row; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let row = Self {
            mailbox: fields.u32()?,
            is_subscribed: fields.u8().filter(|subscribed| *subscribed < 2)? == 1,
            last_validity: fields.u32()?,
        };
        fields.end()?;
        Some(row)
    }
}

/// Expunged messages, by mailbox, MODSEQ and first UID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoneRow {
    /// The last UID.
    pub last: u32,
    /// Time of removal, in seconds since 1970.
    pub when: u32,
    /// Why the messages left.
    pub reason: GoneReason,
}

impl GoneRow {
    /// The row as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.last.to_le_bytes().to_vec();
        out.put_u32_le(self.when);
        out.put_u8(self.reason as u8);
        out
    }

    /// Decodes a row; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let row = Self { last: fields.u32()?, when: fields.u32()?, reason: GoneReason::of(fields.u8()?)? };
        fields.end()?;
        Some(row)
    }
}

/// The file of a message that a client expunged or moved, until it has left the Maildir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeavingRow {
    /// The batch of the body, and its number there.
    pub body: (u64, u16),
    /// RFC822.SIZE.
    pub wire_size: WireSize,
    /// Line ends without CR in the file.
    pub line_feeds: u32,
    /// The file's name, if it does not follow from the body.
    pub name: Option<Bytes>,
}

impl LeavingRow {
    /// The row as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.body.0.to_le_bytes().to_vec();
        out.put_u16_le(self.body.1);
        out.put_u32_le(self.wire_size.stored());
        out.put_u32_le(self.line_feeds);
        put_octets(&mut out, self.name.as_deref().unwrap_or_default());
        out
    }

    /// Decodes a row; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let body = (fields.u64()?, fields.u16()?);
        let (wire_size, line_feeds) = (WireSize::of_stored(fields.u32()?), fields.u32()?);
        let name = Some(octets(&mut fields)?).filter(|name| !name.is_empty());
        fields.end()?;
        Some(Self { body, wire_size, line_feeds, name })
    }
}

/// A directory to rename to the one in its mailbox's head, or to remove if that mailbox is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRow {
    /// LSN of the batch with the change.
    pub lsn: u64,
    /// The directory below the mail directory.
    pub directory: Bytes,
}

impl PendingRow {
    /// The row as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.lsn.to_le_bytes().to_vec();
        put_octets(&mut out, &self.directory);
        out
    }

    /// Decodes a row; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let row = Self { lsn: fields.u64()?, directory: octets(&mut fields)? };
        fields.end()?;
        Some(row)
    }
}

/// An opening of the store, by the LSN of its entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpeningRow {
    /// Nonce in the names of files.
    pub nonce: u32,
    /// Name of the host at that time.
    pub host: Bytes,
}

impl OpeningRow {
    /// The row as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.nonce.to_le_bytes().to_vec();
        put_octets(&mut out, &self.host);
        out
    }

    /// Decodes a row; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let row = Self { nonce: fields.u32()?, host: octets(&mut fields)? };
        fields.end()?;
        Some(row)
    }
}

fn octets(fields: &mut Fields<'_>) -> Option<Bytes> {
    let len = fields.u16()?;
    Some(Bytes::copy_from_slice(fields.bytes(len.into())?))
}

/// The key of a number.
pub(crate) fn key_of(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// The key of a mailbox and a UID, or of an account and a number.
pub(crate) fn key_of_two(one: u32, two: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&one.to_be_bytes());
    key[4..].copy_from_slice(&two.to_be_bytes());
    key
}

/// The key of a mailbox or account and octets.
pub(crate) fn key_of_octets(number: u32, octets: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes(), octets].concat()
}

/// The key of expunged messages.
pub(crate) fn key_of_gone(mailbox: u32, modseq: u64, first: u32) -> Vec<u8> {
    [&mailbox.to_be_bytes()[..], &modseq.to_be_bytes(), &first.to_be_bytes()].concat()
}

/// MODSEQ and first UID of a key made by [`key_of_gone`].
pub(crate) fn modseq_and_uid(key: &[u8]) -> Option<(u64, u32)> {
    let modseq = u64::from_be_bytes(key.get(4..12)?.try_into().ok()?);
    Some((modseq, u32::from_be_bytes(key.get(12..)?.try_into().ok()?)))
}

/// The second number of a key made by [`key_of_two`].
pub(crate) fn second_of(key: &[u8]) -> Option<u32> {
    key.get(4..8).and_then(|four| four.try_into().ok()).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_has_its_offsets() {
        let head = MailboxHead {
            account: 1,
            uid_validity: 2,
            next_uid: 3,
            skip: 4,
            highest_modseq: 5,
            modseq_floor: 6,
            gone_from: 7,
            exists: 8,
            unseen: 9,
            deleted: 10,
            recent_from: 11,
            bytes: 12,
            stamps: [(13, 14), (15, 16)],
            form: 0,
            special_use: 2,
            missing_day: 0x0201,
            gone_ranges: 0x0403,
            directory: Bytes::from_static(b"me/Maildir"),
        };
        let bytes = head.encode();
        let at = |at: usize| u64::from(bytes[at]);
        let offsets = [0, 4, 8, 12, 16, 24, 32, 40, 44, 48, 52, 56, 64, 72, 80, 88];
        assert_eq!(offsets.map(at), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!((&bytes[96..106], &bytes[106..]), (&[0, 2, 1, 2, 3, 4, 0, 0, 10, 0][..], &b"me/Maildir"[..]));
        assert_eq!(MailboxHead::decode(&bytes), Some(head));
        for len in 0..bytes.len() {
            assert_eq!(MailboxHead::decode(&bytes[..len]), None);
        }
    }

    #[test]
    fn other_values_read_back() {
        let account =
            AccountRow { name: Bytes::from_static(b"me"), messages: 7, last_validity: 9, ..Default::default() };
        assert_eq!(AccountRow::decode(&account.encode()), Some(account));
        let name = NameRow { mailbox: 5, is_subscribed: true, last_validity: 9 };
        assert_eq!(NameRow::decode(&name.encode()), Some(name));
        assert_eq!(NameRow::decode(&[0, 0, 0, 0, 2, 0, 0, 0, 0]), None);
        let gone = GoneRow { last: 7, when: 8, reason: GoneReason::Missing };
        assert_eq!(GoneRow::decode(&gone.encode()), Some(gone));
        for name in [None, Some(Bytes::from_static(b"1.a:2,S"))] {
            let leaving = LeavingRow { body: (1 << 40, 3), wire_size: WireSize::of(4), line_feeds: 5, name };
            assert_eq!(LeavingRow::decode(&leaving.encode()), Some(leaving));
        }
        let opening = OpeningRow { nonce: 3, host: Bytes::from_static(b"mx") };
        assert_eq!(OpeningRow::decode(&opening.encode()), Some(opening));
        let pending = PendingRow { lsn: 1 << 40, directory: Bytes::from_static(b"me/.a") };
        assert_eq!(PendingRow::decode(&pending.encode()), Some(pending));
        assert_eq!(second_of(&key_of_two(1, 77)), Some(77));
    }
}
