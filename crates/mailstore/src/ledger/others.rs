//! Entries about accounts and mailboxes that the table lacks. They are applied once, not at each look-up of a name.

use std::sync::{Arc, PoisonError};

use super::MailLedgerError;
use super::shared::Shared;
use crate::entry::MailEntry;
use crate::table::{Applier, MetaError, ParkedApplier, RowChanges, StoreNumbers, TableReader};

/// Rows with all such entries applied.
#[derive(Debug)]
pub(super) struct AppliedOthers {
    /// Number of commits when the rows were read.
    commits: u64,
    /// Number of entries applied.
    count: usize,
    parked: ParkedApplier,
    rows: Arc<(RowChanges, StoreNumbers)>,
}

impl Shared {
    /// Reads the table with the missing entries about accounts and mailboxes, without those about messages.
    pub fn read_others<T>(
        &self,
        read: impl FnOnce(&TableReader, &RowChanges, StoreNumbers) -> Result<T, MetaError>,
    ) -> Result<T, MailLedgerError> {
        let (reader, rows) = {
            let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let (commits, from, new) = {
                let state = self.waiting.lock();
                let from = known.as_ref().filter(|known| known.commits == state.commits).map_or(0, |known| known.count);
                (state.commits, from, state.others_from(from))
            };
            // A commit meanwhile has rows of entries that are applied once more: all that they say is absolute.
            let reader = self.table.reader()?;
            if from == 0 || !new.is_empty() {
                let parked = known.take().filter(|_| from > 0).map(|known| known.parked);
                *known = Some(applied(&reader, parked, (commits, from), &new)?);
                #[cfg(test)]
                self.applied.fetch_add(new.len(), std::sync::atomic::Ordering::Relaxed);
            }
            let rows = known.as_ref().map(|known| Arc::clone(&known.rows));
            (reader, rows.expect("it was applied"))
        };
        Ok(read(&reader, &rows.0, rows.1)?)
    }
}

/// Applies further entries.
fn applied(
    reader: &TableReader,
    parked: Option<ParkedApplier>,
    (commits, from): (u64, usize),
    new: &[(u64, bytes::Bytes)],
) -> Result<AppliedOthers, MetaError> {
    let mut applier = match parked {
        Some(parked) => parked.resume(reader),
        None => Applier::new(reader)?,
    };
    for (lsn, payload) in new {
        if let Some(entry) = MailEntry::decode(payload) {
            applier.apply(*lsn, &entry)?;
        }
    }
    let parked = applier.park();
    let finishing = parked.clone().resume(reader);
    let numbers = finishing.numbers;
    let rows = Arc::new((finishing.finish()?, numbers));
    Ok(AppliedOthers { commits, count: from + new.len(), parked, rows })
}
