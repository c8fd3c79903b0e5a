//! How much mail an account has.

use std::collections::HashSet;

use super::{LedgerError, MailLedger};
use crate::entry::MailEntry;
use crate::table::{AccountRow, TableName, key_of, rows_of};

impl MailLedger {
    /// Bytes and messages of all mail of an account now. The table counts them, so no message is looked at.
    ///
    /// # Errors
    /// [`LedgerError::Table`].
    pub fn usage(&self, account: u32) -> Result<(u64, u64), LedgerError> {
        let names = self.names(account)?.1;
        let mailboxes: HashSet<u32> = names.values().map(|row| row.mailbox).filter(|id| *id != 0).collect();
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
}
