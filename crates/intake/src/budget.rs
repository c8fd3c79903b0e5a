//! Memory for bodies of messages in flight.

use std::sync::Arc;

use tokio::sync::{AcquireError, Semaphore};

/// The memory limit for all bodies together. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    units: Arc<Semaphore>,
    all: u32,
}

/// A part of a [`Budget`]; dropping it gives it back.
#[derive(Debug)]
pub struct BudgetShare {
    budget: Budget,
    units: u32,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        let all = memory_units(bytes);
        Budget { units: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// True if the budget is at least this large.
    pub(crate) fn covers(&self, units: u64) -> bool {
        units <= u64::from(self.all)
    }

    /// Waits for this much memory. A request larger than the budget gets all of it.
    ///
    /// # Errors
    /// The budget was closed.
    pub(crate) async fn share(&self, units: u64) -> Result<BudgetShare, AcquireError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.all);
        self.units.acquire_many(units).await?.forget();
        Ok(BudgetShare { budget: self.clone(), units })
    }

    /// A destination's part of the memory taken for a message, once that is published:
    /// [`Reserved::units`](crate::Reserved::units).
    pub fn taken_over(&self, units: u64) -> BudgetShare {
        BudgetShare { budget: self.clone(), units: u32::try_from(units).unwrap_or(u32::MAX) }
    }

    /// Closes the budget: waiting and later requests fail.
    pub(crate) fn close(&self) {
        self.units.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.units.is_closed()
    }

    /// True if the whole budget is free.
    pub fn is_whole(&self) -> bool {
        self.units.available_permits() == self.all as usize
    }
}

impl BudgetShare {
    /// Gives the share up: others return it in parts.
    pub(crate) fn hand_over(mut self) {
        self.units = 0;
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.units.add_permits(self.units as usize);
    }
}

/// Budget units for this many bytes of memory.
pub fn memory_units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, UNITS_MAX)
}

const UNIT_BYTES: u64 = 1024;
/// The most that tokio's semaphore can hold on any machine.
const UNITS_MAX: u32 = u32::MAX >> 3;
