//! Openings of the store so far: names of delivered files contain the nonce of their opening.

use std::sync::{PoisonError, RwLock};

use crate::table::OpeningRow;

/// First LSN and nonce of each opening, ascending.
#[derive(Debug)]
pub(super) struct Openings(RwLock<Vec<(u64, u32)>>);

impl Openings {
    /// From rows of the table `openings`.
    pub fn of(rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        Self(RwLock::new(rows.into_iter().filter_map(opening_of).collect()))
    }

    pub fn add(&self, lsn: u64, nonce: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push((lsn, nonce));
    }

    /// The nonce of the opening that wrote a batch.
    pub fn nonce_of(&self, lsn: u64) -> Option<u32> {
        let openings = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let at = openings.partition_point(|(first, _)| *first <= lsn);
        openings.get(at.checked_sub(1)?).map(|(_, nonce)| *nonce)
    }
}

fn opening_of((lsn, row): (Vec<u8>, Vec<u8>)) -> Option<(u64, u32)> {
    Some((u64::from_be_bytes(lsn[..].try_into().ok()?), OpeningRow::decode(&row)?.nonce))
}
