//! Expunged messages of a mailbox: the newest ranges are kept, so that deletions of years do not add up.

use super::apply::Applier;
use super::changes::for_each_key;
use super::error::MetaError;
use super::table_name::TableName;
use super::values::{GoneRow, key_of, key_of_gone, modseq_and_uid};

/// Maximum ranges kept for a mailbox. A client with an older state is sent all UIDs without a message.
const RANGES_MAX: u32 = if cfg!(test) { 64 } else { 100_000 };
/// Ranges above [`RANGES_MAX`] after which the oldest are removed: that reads all of them.
const RANGES_MORE: u32 = RANGES_MAX / 4;

impl Applier<'_> {
    /// Adds a range of expunged messages.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub(super) fn put_gone(&mut self, mailbox: u32, (lsn, first): (u64, u32), row: GoneRow) -> Result<(), MetaError> {
        self.changes.put(TableName::Gone, &key_of_gone(mailbox, lsn, first), row.encode());
        let head = self.head(mailbox)?;
        head.gone_ranges = head.gone_ranges.saturating_add(1);
        if head.gone_ranges <= RANGES_MAX + RANGES_MORE {
            return Ok(());
        }
        // In the order of their MODSEQs, damaged ones as well.
        let mut oldest: Vec<Vec<u8>> = Vec::new();
        let table = (self.reader, &self.changes);
        for_each_key(table, TableName::Gone, &key_of(mailbox), &mut |key, _| oldest.push(key.to_vec()))?;
        oldest.truncate(oldest.len().saturating_sub(RANGES_MAX as usize));
        let last = oldest.last().and_then(|key| modseq_and_uid(key)).map_or(0, |(modseq, _)| modseq);
        oldest.iter().for_each(|key| self.changes.remove(TableName::Gone, key));
        let head = self.head(mailbox)?;
        head.gone_from = head.gone_from.max(last);
        head.gone_ranges = RANGES_MAX;
        Ok(())
    }
}
