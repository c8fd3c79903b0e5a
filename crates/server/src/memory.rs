//! How much of all message bodies may be in memory at a time.
//!
//! A session reserves a little before it reads a body and may grow without waiting up to [`LARGE_BODY_BYTES`]. Nobody
//! waits while it holds something, so sessions cannot block each other for ever: what cannot grow goes to a file.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body that grows beyond this is written to a file of its own while it arrives.
pub const LARGE_BODY_BYTES: usize = 1 << 20;

/// What all bodies in memory share.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
}

/// A part of the budget. It returns when the last body that was put under it is dropped.
#[derive(Debug)]
pub struct Reservation {
    permit: OwnedSemaphorePermit,
}

impl MemoryBudget {
    /// A budget of `bytes` octets, in steps of 4 KiB.
    pub fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT_BYTES as u64).unwrap_or(usize::MAX);
        Self { units: Arc::new(Semaphore::new(units.clamp(units_of(LARGE_BODY_BYTES), Semaphore::MAX_PERMITS))) }
    }

    /// Waits for `bytes` octets, at most [`LARGE_BODY_BYTES`], in order of arrival.
    pub async fn reserve(&self, bytes: usize) -> Reservation {
        let units = units_of(bytes.min(LARGE_BODY_BYTES));
        let acquired = Arc::clone(&self.units).acquire_many_owned(units as u32).await;
        Reservation { permit: acquired.expect("the semaphore is never closed") }
    }

    /// Lets `reservation` cover `bytes` octets if there is room right now.
    pub fn try_grow(&self, reservation: &mut Reservation, bytes: usize) -> bool {
        let missing = units_of(bytes).saturating_sub(reservation.permit.num_permits());
        if missing == 0 {
            return true;
        }
        match Arc::clone(&self.units).try_acquire_many_owned(missing as u32) {
            Ok(more) => {
                reservation.permit.merge(more);
                true
            }
            Err(_) => false,
        }
    }

    /// Octets that nobody has reserved.
    #[cfg(test)]
    pub fn available_bytes(&self) -> usize {
        self.units.available_permits() * UNIT_BYTES
    }
}

impl Reservation {
    /// Ties the reservation to `bytes`: it is given back when the last clone of the result is dropped.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _permit: self.permit })
    }
}

struct Held {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn units_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES).max(1)
}

const UNIT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_held_returns_with_the_last_clone() {
        let budget = MemoryBudget::new(2 << 20);
        let held = budget.reserve(5000).await.hold(Bytes::from_static(b"body"));
        assert_eq!(budget.available_bytes(), (2 << 20) - 8192);
        let slice = held.slice(1..2);
        drop(held);
        assert_eq!(budget.available_bytes(), (2 << 20) - 8192);
        drop(slice);
        assert_eq!(budget.available_bytes(), 2 << 20);
    }

    #[tokio::test]
    async fn growth_never_waits() {
        let budget = MemoryBudget::new(1 << 20);
        let mut first = budget.reserve(4096).await;
        assert!(budget.try_grow(&mut first, 1 << 19));
        let mut second = budget.reserve(1 << 19).await;
        assert!(!budget.try_grow(&mut second, (1 << 19) + 1));
        drop(first);
        assert!(budget.try_grow(&mut second, 1 << 20));
    }
}
