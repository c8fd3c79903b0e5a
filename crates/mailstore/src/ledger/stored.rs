//! A mailbox in the table.

use std::collections::BTreeMap;
use std::iter::Peekable;

use bytes::Bytes;

use crate::flags::MessageFlags;
use crate::table::{
    FixedMessage, LeavingRow, MailboxHead, MetaError, PendingRow, RowChanges, StateColumns, StateMessage, StoreNumbers,
    TableName, TableReader, fixed_row, flag_bits, for_each_row, key_of, rows_of, second_of, state_row, stored_head,
};

/// A stored mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMailbox {
    /// UIDVALIDITY, next UID and counters.
    pub head: MailboxHead,
    /// Messages by UID, with their file names. Messages with damaged rows are missing.
    pub messages: BTreeMap<u32, StoredMessage>,
    /// Keywords by bit.
    pub keywords: BTreeMap<u8, Bytes>,
    /// Files of expunged messages that may still exist, by UID.
    pub leaving: BTreeMap<u32, LeavingRow>,
}

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Constant facts.
    pub fixed: FixedMessage,
    /// Changing flags and MODSEQ.
    pub state: StateMessage,
    /// File name, if it does not follow from the row.
    pub name: Option<Bytes>,
}

/// Counters of a mailbox, read without its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedMailbox {
    /// UIDVALIDITY, next UID and counters.
    pub head: MailboxHead,
    /// Messages with readable flags: as many as in the head, unless a row is damaged.
    pub messages: u32,
    /// The lowest UID that is `\Recent`.
    pub recent_from: u32,
    /// Number of `\Recent` messages.
    pub recent: u32,
    /// Number of the first message without `\Seen`.
    pub first_unseen: Option<u32>,
    /// The highest UID of a message; 0 without any.
    pub last_uid: u32,
    /// Keywords by bit.
    pub keywords: BTreeMap<u8, Bytes>,
}

/// A pending rename or removal of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDirectory {
    /// The mailbox.
    pub mailbox: u32,
    /// LSN of the batch with the change.
    pub lsn: u64,
    /// Present directory, relative to the mail directory.
    pub from: Bytes,
    /// New name; `None`: remove it.
    pub to: Option<Bytes>,
}

/// All pending changes of directories.
pub(super) fn pending(
    reader: &TableReader,
    changes: &RowChanges,
    numbers: StoreNumbers,
) -> Result<Vec<PendingDirectory>, MetaError> {
    let mut pending = Vec::new();
    for (key, row) in rows_of(reader, changes, TableName::Pending, &[])? {
        let key = key[..].try_into().ok().map(u32::from_be_bytes);
        let Some((mailbox, PendingRow { lsn, directory: from })) = key.zip(PendingRow::decode(&row)) else { continue };
        let to = head_of(reader, changes, numbers, mailbox)?.map(|head| head.directory);
        pending.push(PendingDirectory { mailbox, lsn, from, to });
    }
    Ok(pending)
}

/// The head of a mailbox; `None` if there is none.
pub(super) fn head_of(
    reader: &TableReader,
    changes: &RowChanges,
    numbers: StoreNumbers,
    id: u32,
) -> Result<Option<MailboxHead>, MetaError> {
    let key = key_of(id);
    let head = match changes.of(TableName::Mailboxes, &key).next() {
        Some((_, changed)) => changed.and_then(MailboxHead::decode),
        None => stored_head(reader, id, &numbers)?,
    };
    Ok(head.filter(|head| head.account != 0))
}

/// Counts messages by the column of flags, if `is_wanted` accepts the head. Messages are `\Recent` from the given UID
/// on; `None`: from the first in `new/`.
pub(super) fn counted(
    (reader, changes): (&TableReader, &RowChanges),
    numbers: StoreNumbers,
    id: u32,
    is_wanted: impl FnOnce(&MailboxHead) -> bool,
    recent_from: Option<u32>,
) -> Result<Option<CountedMailbox>, MetaError> {
    let Some(head) = head_of(reader, changes, numbers, id)?.filter(is_wanted) else { return Ok(None) };
    let (mut messages, mut old, mut from, mut first_unseen, mut last_uid) = (0, 0, recent_from, None, 0);
    for_each_row((reader, changes), TableName::State, &key_of(id), &mut |key, row| {
        let Some(row) = second_of(key).and_then(|first| StateColumns::of(row, first)) else { return };
        if head.unseen > 0 && first_unseen.is_none() {
            let at = row.position(|flags| flags & MessageFlags::SEEN.0 == 0);
            first_unseen = at.map(|at| messages + at as u32 + 1);
        }
        from = from.or_else(|| Some(row.uid(row.position(|flags| flags & flag_bits::IN_NEW != 0)?)));
        old += from.map_or(row.len(), |from| row.below(from)) as u32;
        messages += row.len() as u32;
        last_uid = row.last_uid();
    })?;
    let (recent_from, recent) = (from.unwrap_or(head.next_uid.max(1)), messages - old);
    let keywords = keywords_of((reader, changes), id)?;
    Ok(Some(CountedMailbox { head, messages, recent_from, recent, first_unseen, last_uid, keywords }))
}

fn keywords_of(table: (&TableReader, &RowChanges), id: u32) -> Result<BTreeMap<u8, Bytes>, MetaError> {
    let mut keywords = BTreeMap::new();
    for_each_row(table, TableName::Keywords, &key_of(id), &mut |key, name| {
        key.get(4).into_iter().for_each(|bit| drop(keywords.insert(*bit, Bytes::copy_from_slice(name))));
    })?;
    Ok(keywords)
}

/// A mailbox in the table, with the changes that the table lacks.
pub(super) fn stored(
    reader: &TableReader,
    changes: &RowChanges,
    numbers: StoreNumbers,
    id: u32,
) -> Result<Option<StoredMailbox>, MetaError> {
    let Some(head) = head_of(reader, changes, numbers, id)? else { return Ok(None) };
    let prefix = key_of(id);
    let by_uid = |table, each: &mut dyn FnMut(u32, &[u8])| {
        let by_key = &mut |key: &[u8], value: &[u8]| second_of(key).into_iter().for_each(|uid| each(uid, value));
        for_each_row((reader, changes), table, &prefix, by_key)
    };
    let (mut names, mut state, mut fixed) = (Vec::new(), Vec::new(), Vec::new());
    by_uid(TableName::Foreign, &mut |uid, name| names.push((uid, Bytes::copy_from_slice(name))))?;
    by_uid(TableName::State, &mut |first, row| state.extend(state_row(row, first).into_iter().flatten()))?;
    by_uid(TableName::Fixed, &mut |first, row| fixed.extend(fixed_row(row, first).into_iter().flatten()))?;
    // They are in the order of UIDs, unless rows are damaged.
    state.sort_by_key(|message: &StateMessage| message.uid);
    fixed.sort_by_key(|message: &FixedMessage| message.uid);
    // To look each up in the others would take as long as to read them.
    let (mut names, mut state) = (names.into_iter().peekable(), state.into_iter().peekable());
    let message = |fixed: FixedMessage| {
        let name = at_uid(&mut names, fixed.uid, |(uid, _)| *uid).map(|(_, name)| name);
        let state = at_uid(&mut state, fixed.uid, |message| message.uid)?;
        Some((fixed.uid, StoredMessage { fixed, state, name }))
    };
    let messages = fixed.into_iter().filter_map(message).collect();
    let (keywords, mut leaving) = (keywords_of((reader, changes), id)?, BTreeMap::new());
    by_uid(TableName::Leaving, &mut |uid, row| {
        LeavingRow::decode(row).into_iter().for_each(|row| drop(leaving.insert(uid, row)));
    })?;
    Ok(Some(StoredMailbox { head, messages, keywords, leaving }))
}

/// The item of a UID. Skips lower UIDs, whose counterparts are damaged.
fn at_uid<T>(items: &mut Peekable<impl Iterator<Item = T>>, uid: u32, of: impl Fn(&T) -> u32) -> Option<T> {
    while items.next_if(|item| of(item) < uid).is_some() {}
    items.next_if(|item| of(item) == uid)
}
