//! Stored heads of mailboxes. A damaged one is rebuilt from the rows of its mailbox.

use bytes::Bytes;

use super::columns::{fixed_row, state_row};
use super::error::MetaError;
use super::numbers::StoreNumbers;
use super::reader::TableReader;
use super::table_name::TableName;
use super::values::{AccountRow, GoneRow, MailboxHead, NameRow, SKIPPED_UIDS, key_of, second_of};
use crate::flags::MessageFlags;
use crate::name::{MailboxName, SpecialUse};

/// The head of a mailbox, if it exists.
///
/// # Errors
/// Errors of reading the table.
pub(crate) fn stored_head(
    reader: &TableReader,
    mailbox: u32,
    numbers: &StoreNumbers,
) -> Result<Option<MailboxHead>, MetaError> {
    let decoded = match reader.get(TableName::Mailboxes, &key_of(mailbox)) {
        Ok(None) => return Ok(None),
        Ok(Some(value)) => MailboxHead::decode(&value),
        Err(MetaError::Value(_)) => None,
        Err(error) => return Err(error),
    };
    if let Some(mut head) = decoded {
        head.skip_to(numbers);
        return Ok(Some(head));
    }
    tracing::error!(mailbox, "the counters of a mailbox are damaged in the table: counting again");
    rebuilt(reader, mailbox, numbers).map(Some)
}

/// Assigned UIDs are in rows of present or expunged messages. If one of these is damaged as well, UIDs are skipped.
fn rebuilt(reader: &TableReader, mailbox: u32, numbers: &StoreNumbers) -> Result<MailboxHead, MetaError> {
    let floor = numbers.applied + 1;
    let mut head = MailboxHead {
        next_uid: 1,
        recent_from: 1,
        skip: numbers.skip,
        modseq_floor: floor,
        gone_from: floor,
        ..MailboxHead::default()
    };
    let (key, mut has_lost) = (key_of(mailbox), false);
    reader.for_each(TableName::Fixed, &key, &mut |key, value| {
        let row = value.zip(second_of(key)).and_then(|(value, first)| fixed_row(value, first));
        has_lost |= row.is_none();
        for message in row.into_iter().flatten() {
            head.next_uid = head.next_uid.max(message.uid.saturating_add(1));
            (head.exists, head.bytes) = (head.exists + 1, head.bytes + message.wire_size.counted());
        }
        Ok(())
    })?;
    reader.for_each(TableName::State, &key, &mut |key, value| {
        let row = value.zip(second_of(key)).and_then(|(value, first)| state_row(value, first));
        for message in row.into_iter().flatten() {
            head.highest_modseq = head.highest_modseq.max(message.modseq);
            head.unseen += u32::from(is_unseen(message.flags));
            head.deleted += u32::from(is_deleted(message.flags));
        }
        Ok(())
    })?;
    reader.for_each(TableName::Gone, &key, &mut |_, value| {
        let row = value.and_then(GoneRow::decode);
        has_lost |= row.is_none();
        head.next_uid = head.next_uid.max(row.map_or(0, |row| row.last.saturating_add(1)));
        Ok(())
    })?;
    name_head(reader, mailbox, &mut head)?;
    if has_lost {
        head.next_uid = head.next_uid.saturating_add(SKIPPED_UIDS);
    }
    Ok(head)
}

/// Account, UIDVALIDITY and directory follow from the name. A mailbox without one was never made.
fn name_head(reader: &TableReader, mailbox: u32, head: &mut MailboxHead) -> Result<(), MetaError> {
    let mut named = None;
    reader.for_each(TableName::Names, &[], &mut |key, value| {
        let row = value.and_then(NameRow::decode).filter(|row| row.mailbox == mailbox);
        if let (Some(row), Some((account, name))) = (row, key.split_first_chunk::<4>()) {
            named = Some((row, u32::from_be_bytes(*account), name.to_vec()));
        }
        Ok(())
    })?;
    let Some((row, account, name)) = named else { return Ok(()) };
    (head.account, head.uid_validity) = (account, row.last_validity);
    let inbox = match reader.get(TableName::Accounts, &key_of(account)) {
        Ok(value) => value.and_then(|value| AccountRow::decode(&value)).unwrap_or_default().name,
        Err(MetaError::Value(_)) => Bytes::new(),
        Err(error) => return Err(error),
    };
    let name = std::str::from_utf8(&name).ok().and_then(|name| MailboxName::parse(name).ok());
    let Some(name) = name else { return Ok(()) };
    head.special_use = SpecialUse::BY_NAME;
    head.directory = if name.is_inbox() {
        inbox
    } else if name.as_str().is_ascii() && !name.as_str().contains(['.', '&', '%']) {
        [&inbox[..], b"/.", name.as_str().replace('/', ".").as_bytes()].concat().into()
    } else {
        // It depends on the encoding. A wrong one could be that of another mailbox.
        Bytes::new()
    };
    Ok(())
}

pub(super) fn is_unseen(flags: u64) -> bool {
    flags & MessageFlags::SEEN.0 == 0
}

pub(super) fn is_deleted(flags: u64) -> bool {
    flags & MessageFlags::DELETED.0 != 0
}

/// Counts a message's flags in the head: those of a new message, or changed ones.
pub(super) fn count(head: &mut MailboxHead, before: u64, now: u64, is_new: bool) {
    if !is_new {
        head.unseen = head.unseen.saturating_sub(u32::from(is_unseen(before)));
        head.deleted = head.deleted.saturating_sub(u32::from(is_deleted(before)));
    }
    head.unseen += u32::from(is_unseen(now));
    head.deleted += u32::from(is_deleted(now));
}
