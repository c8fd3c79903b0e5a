//! Entries about accounts and mailboxes that the table lacks. They are applied once, not at each look-up of a name.

use std::sync::Arc;

use crate::entry::MailEntry;
use crate::table::{Applier, MetaError, ParkedApplier, RowChanges, StoreNumbers, TableReader};

/// Rows with all such entries applied.
#[derive(Debug)]
pub(super) struct AppliedOthers {
    /// Number of commits when the rows were read.
    pub commits: u64,
    /// Number of entries applied.
    pub count: usize,
    pub parked: ParkedApplier,
    pub rows: Arc<(RowChanges, StoreNumbers)>,
}

impl AppliedOthers {
    /// Applies further entries.
    pub fn applied(
        reader: &TableReader,
        parked: Option<ParkedApplier>,
        (commits, from): (u64, usize),
        new: &[(u64, bytes::Bytes)],
    ) -> Result<Self, MetaError> {
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
        Ok(Self { commits, count: from + new.len(), parked, rows })
    }
}
