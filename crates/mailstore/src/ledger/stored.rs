//! A mailbox as the table has it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::table::{
    FixedMessage, LeavingRow, MailboxHead, MetaError, PendingRow, RowChanges, StateMessage, StoreNumbers, TableName,
    TableReader, fixed_row, key_of, rows_of, second_of, state_row, stored_head,
};

/// A mailbox as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMailbox {
    /// Its numbers.
    pub head: MailboxHead,
    /// Messages by UID, with the names of their files. One whose row is damaged is missing.
    pub messages: BTreeMap<u32, StoredMessage>,
    /// Keywords by bit.
    pub keywords: BTreeMap<u8, Bytes>,
    /// Files of expunged messages that may still be there, by UID.
    pub leaving: BTreeMap<u32, LeavingRow>,
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Facts that never change.
    pub fixed: FixedMessage,
    /// Facts that change.
    pub state: StateMessage,
    /// Its file's name, where it does not follow from the row.
    pub name: Option<Bytes>,
}

/// A directory that the ledger has renamed or given up, until that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDirectory {
    /// The mailbox.
    pub mailbox: u32,
    /// The batch that says so.
    pub lsn: u64,
    /// The directory below the mail directory.
    pub from: Bytes,
    /// Its new name; `None`: it is to be removed.
    pub to: Option<Bytes>,
}

/// All of them.
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

/// The head of a mailbox; `None` if there is none, or none yet.
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

/// A mailbox of the table, with the changes that it lacks.
pub(super) fn stored(
    reader: &TableReader,
    changes: &RowChanges,
    numbers: StoreNumbers,
    id: u32,
) -> Result<Option<StoredMailbox>, MetaError> {
    let rows = |table| rows_of(reader, changes, table, &key_of(id));
    let Some(head) = head_of(reader, changes, numbers, id)? else { return Ok(None) };
    let row = |(key, value): (Vec<u8>, Vec<u8>)| Some((second_of(&key)?, value));
    let names: BTreeMap<u32, Vec<u8>> = rows(TableName::Foreign)?.into_iter().filter_map(row).collect();
    let state = rows(TableName::State)?.into_iter().filter_map(row);
    let state = state.filter_map(|(first, value)| state_row(&value, first)).flatten();
    let state: BTreeMap<u32, StateMessage> = state.map(|message| (message.uid, message)).collect();
    let fixed = rows(TableName::Fixed)?.into_iter().filter_map(row);
    let fixed = fixed.filter_map(|(first, value)| fixed_row(&value, first)).flatten();
    let message = |fixed: FixedMessage| {
        let name = names.get(&fixed.uid).map(|name| Bytes::copy_from_slice(name));
        Some((fixed.uid, StoredMessage { fixed, state: *state.get(&fixed.uid)?, name }))
    };
    let keywords = rows(TableName::Keywords)?.into_iter();
    let keywords = keywords.filter_map(|(key, name)| Some((*key.get(4)?, Bytes::from(name))));
    let leaving = rows(TableName::Leaving)?.into_iter().filter_map(row);
    let leaving = leaving.filter_map(|(uid, value)| Some((uid, LeavingRow::decode(&value)?))).collect();
    let (messages, keywords) = (fixed.filter_map(message).collect(), keywords.collect());
    Ok(Some(StoredMailbox { head, messages, keywords, leaving }))
}
