//! Damage of a mailbox's rows.

use super::{MailLedger, MailLedgerError};
use crate::table::{FixedMessage, MetaError, TableName, fixed_row, key_of, rows_of, second_of};

/// Kinds of damage to a mailbox's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MailboxDamage {
    /// The row with the mailbox's counters is damaged.
    pub head: bool,
    /// Some rows of messages are damaged.
    pub rows: bool,
    /// UIDs do not ascend, or are not below the next UID.
    pub uids: bool,
}

impl MailLedger {
    /// Present damage of a mailbox's rows.
    ///
    /// # Errors
    /// [`MailLedgerError::Table`].
    pub(crate) fn damage_of(&self, mailbox: u32) -> Result<MailboxDamage, MailLedgerError> {
        let next_uid = self.head(mailbox)?.map_or(0, |head| head.next_uid);
        self.read(
            |state| state.of_mailbox(mailbox),
            |reader, changes, _| {
                let key = key_of(mailbox);
                let head = matches!(reader.get(TableName::Mailboxes, &key), Err(MetaError::Value(_)));
                let mut rows = false;
                for table in [TableName::Fixed, TableName::State, TableName::Gone, TableName::Foreign] {
                    reader.for_each(table, &key, &mut |_, value| {
                        rows |= value.is_none();
                        Ok(())
                    })?;
                }
                let fixed = rows_of(reader, changes, TableName::Fixed, &key)?.into_iter();
                let fixed = fixed.filter_map(|(key, value)| fixed_row(&value, second_of(&key)?)).flatten();
                let fixed: Vec<FixedMessage> = fixed.collect();
                let uids = !fixed.is_sorted_by(|one, next| one.uid < next.uid)
                    || fixed.last().is_some_and(|last| last.uid >= next_uid);
                Ok(MailboxDamage { head, rows, uids })
            },
        )
    }
}
