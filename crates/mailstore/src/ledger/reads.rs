//! The present accounts and mailboxes: the table with the entries that it lacks.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;

use super::stored::{counted, head_of, pending, stored};
use super::{CountedMailbox, MailLedger, MailLedgerError, PendingDirectory, StoredMailbox, waiting};
use crate::name::SpecialUse;
use crate::row::NumberRange;
use crate::table::{
    AccountRow, GoneRow, LeavingRow, MailboxHead, MetaError, NameRow, RowChanges, StoreNumbers, TableName, TableReader,
    for_each_key, for_each_row, key_of, modseq_and_uid, rows_of, second_of,
};

impl MailLedger {
    /// All accounts by id.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn accounts(&self) -> Result<BTreeMap<u32, AccountRow>, MailLedgerError> {
        self.shared.read_others(|reader, changes, _| {
            let rows = rows_of(reader, changes, TableName::Accounts, &[])?.into_iter();
            let account = |(key, value): (Vec<u8>, Vec<u8>)| {
                Some((u32::from_be_bytes(key[..].try_into().ok()?), AccountRow::decode(&value)?))
            };
            Ok(rows.filter_map(account).filter(|(_, row)| !row.is_gone).collect())
        })
    }

    /// An account's highest UIDVALIDITY, and its names with their mailboxes.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn names(&self, account: u32) -> Result<(u32, BTreeMap<Bytes, NameRow>), MailLedgerError> {
        self.shared.read_others(|reader, changes, _| {
            let rows = rows_of(reader, changes, TableName::Names, &key_of(account))?.into_iter();
            let name = |(key, value): (Vec<u8>, Vec<u8>)| {
                Some((Bytes::copy_from_slice(key.get(4..)?), NameRow::decode(&value)?))
            };
            let row = rows_of(reader, changes, TableName::Accounts, &key_of(account))?.into_values().next();
            let row = row.and_then(|value| AccountRow::decode(&value)).unwrap_or_default();
            Ok((row.last_validity, rows.filter_map(name).collect()))
        })
    }

    /// UIDs of messages that vanished with a higher MODSEQ, unordered; `None` if some are unknown, as after damage.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn gone_since(&self, mailbox: u32, modseq: u64) -> Result<Option<Vec<NumberRange>>, MailLedgerError> {
        self.read(
            |state| state.of_mailbox(mailbox),
            |reader, changes, numbers| {
                let from = head_of(reader, changes, numbers, mailbox)?.map_or(u64::MAX, |head| head.gone_from);
                if modseq < from {
                    return Ok(None);
                }
                let mut gone = Some(Vec::new());
                for_each_key((reader, changes), TableName::Gone, &key_of(mailbox), &mut |key, value| {
                    let of = modseq_and_uid(key);
                    if of.is_some_and(|(of, _)| of <= modseq) {
                        return;
                    }
                    let range = of.zip(value.and_then(GoneRow::decode));
                    let range = range.map(|((_, first), row)| NumberRange { first, last: row.last });
                    gone = gone.take().zip(range).map(|(mut gone, range)| {
                        gone.push(range);
                        gone
                    });
                })?;
                Ok(gone)
            },
        )
    }

    /// POP3 unique-ids of an earlier server, by UID. Damaged ones are missing.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn unique_ids(&self, mailbox: u32) -> Result<BTreeMap<u32, Box<str>>, MailLedgerError> {
        self.read(
            |state| state.of_mailbox(mailbox),
            |reader, changes, _| {
                let mut ids = BTreeMap::new();
                for_each_row((reader, changes), TableName::UniqueIds, &key_of(mailbox), &mut |key, id| {
                    if let (Some(uid), Ok(id)) = (second_of(key), std::str::from_utf8(id)) {
                        ids.insert(uid, id.into());
                    }
                })?;
                Ok(ids)
            },
        )
    }

    /// Special uses of an account's mailboxes, by the mailboxes' ids. Mailboxes with a rebuilt head are missing.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn special_uses(&self, account: u32) -> Result<BTreeMap<u32, Option<SpecialUse>>, MailLedgerError> {
        self.shared.read_others(|reader, changes, numbers| {
            let rows = rows_of(reader, changes, TableName::Names, &key_of(account))?.into_values();
            let ids = rows.filter_map(|value| NameRow::decode(&value)).map(|row| row.mailbox).filter(|id| *id != 0);
            let mut uses = BTreeMap::new();
            for id in ids {
                let head = head_of(reader, changes, numbers, id)?;
                if let Some(head) = head.filter(|head| head.special_use != SpecialUse::BY_NAME) {
                    uses.insert(id, SpecialUse::of_number(head.special_use));
                }
            }
            Ok(uses)
        })
    }

    /// Head of a mailbox with its counters; `None` if there is no mailbox with that id.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn head(&self, mailbox: u32) -> Result<Option<MailboxHead>, MailLedgerError> {
        self.read(
            |state| state.of_mailbox(mailbox),
            |reader, changes, numbers| head_of(reader, changes, numbers, mailbox),
        )
    }

    /// The last definition of a mailbox. Its counters may lack entries that wait for the table: a query of many
    /// mailboxes reads no entries about messages, and all others once.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn head_without_tail(&self, mailbox: u32) -> Result<Option<MailboxHead>, MailLedgerError> {
        self.shared.read_others(|reader, changes, numbers| head_of(reader, changes, numbers, mailbox))
    }

    /// Counters of a mailbox without loading its messages, if `is_wanted` accepts its head. `recent_from`: the first
    /// `\Recent` UID; `None`: that of the first message in `new/`.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn counted(
        &self,
        mailbox: u32,
        is_wanted: impl FnOnce(&MailboxHead) -> bool,
        recent_from: Option<u32>,
    ) -> Result<Option<CountedMailbox>, MailLedgerError> {
        self.read(
            |state| state.of_mailbox(mailbox),
            |reader, changes, numbers| counted((reader, changes), numbers, mailbox, is_wanted, recent_from),
        )
    }

    /// Pending renames and removals of directories.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn pending_directories(&self) -> Result<Vec<PendingDirectory>, MailLedgerError> {
        self.shared.read_others(pending)
    }

    /// Delivered messages, by batch and number, that were expunged while their files may still be in their mailboxes.
    /// For opening the store: reads all waiting entries.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn expunged_mail(&self) -> Result<HashSet<(u64, u16)>, MailLedgerError> {
        self.read(
            |state| state.entries.clone(),
            |reader, changes, _| {
                let rows = rows_of(reader, changes, TableName::Leaving, &[])?.into_values();
                let rows = rows.filter_map(|row| LeavingRow::decode(&row));
                // A copy has a name of its own, and the body of a message that may be there.
                Ok(rows.filter(|row| row.name.is_none()).map(|row| row.body).collect())
            },
        )
    }

    /// The mailbox with this name, if any.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn mailbox_named(&self, account: u32, name: &[u8]) -> Result<Option<u32>, MailLedgerError> {
        let key = [&key_of(account)[..], name].concat();
        self.shared.read_others(|reader, changes, _| {
            let row = match changes.of(TableName::Names, &key).find(|(found, _)| *found == key) {
                Some((_, row)) => row.map(<[u8]>::to_vec),
                None => reader.get(TableName::Names, &key)?,
            };
            Ok(row.and_then(|row| NameRow::decode(&row)).map(|row| row.mailbox).filter(|id| *id != 0))
        })
    }

    /// A mailbox with all its messages; `None` if there is no mailbox with that id.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn mailbox(&self, id: u32) -> Result<Option<StoredMailbox>, MailLedgerError> {
        self.read(|state| state.of_mailbox(id), |reader, changes, numbers| stored(reader, changes, numbers, id))
    }

    /// Reads the table with some of the entries that it lacks.
    pub(super) fn read<T>(
        &self,
        entries: impl FnOnce(&mut waiting::WaitingState) -> Vec<(u64, Bytes)>,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, MailLedgerError> {
        self.shared.read(entries, read)
    }
}
