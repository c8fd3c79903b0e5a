//! Octets and messages of an account.

use std::collections::HashSet;

use super::{MailLedger, MailLedgerError};
use crate::entry::MailEntry;
use crate::table::{AccountRow, NameRow, TableName, key_of, rows_of};

impl MailLedger {
    /// Present bytes and messages of an account. The table has counters, so no message is read.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn usage(&self, account: u32) -> Result<(u64, u64), MailLedgerError> {
        // What was deleted or lost its name since the last commit still counts in the table, until the entries about it are applied.
        let mut mailboxes = self.mailboxes_in_table(account)?;
        mailboxes.extend(self.names(account)?.1.values().map(|row| row.mailbox).filter(|id| *id != 0));
        self.read(
            |state| {
                let is_wanted = |payload: &[u8]| match MailEntry::kind(payload) {
                    Some(kind) => kind.mailbox().is_none_or(|mailbox| mailboxes.contains(&mailbox)),
                    None => false,
                };
                state.entries.iter().filter(|(_, payload)| is_wanted(payload)).cloned().collect()
            },
            |reader, changes, _| {
                let row = rows_of(reader, changes, TableName::Accounts, &key_of(account))?.into_values().next();
                let row = row.and_then(|value| AccountRow::decode(&value)).unwrap_or_default();
                Ok((row.bytes, row.messages))
            },
        )
    }

    /// Bytes of all mail of all accounts at the last commit.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub fn mail_bytes(&self) -> Result<u64, MailLedgerError> {
        self.read(
            |_| Vec::new(),
            |reader, _, _| {
                let mut bytes: u64 = 0;
                reader.for_each(TableName::Accounts, &[], &mut |_, value| {
                    bytes = bytes.saturating_add(value.and_then(AccountRow::decode).map_or(0, |row| row.bytes));
                    Ok(())
                })?;
                Ok(bytes)
            },
        )
    }

    /// Mailboxes that had a name at the last commit.
    fn mailboxes_in_table(&self, account: u32) -> Result<HashSet<u32>, MailLedgerError> {
        self.read(
            |_| Vec::new(),
            |reader, changes, _| {
                let rows = rows_of(reader, changes, TableName::Names, &key_of(account))?.into_values();
                Ok(rows
                    .filter_map(|value| NameRow::decode(&value))
                    .map(|row| row.mailbox)
                    .filter(|id| *id != 0)
                    .collect())
            },
        )
    }
}
