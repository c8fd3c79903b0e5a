//! Memory for bodies of messages in flight.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{AcquireError, Semaphore};

/// The bound for all bodies in memory together. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    all: u32,
}

/// A part of a [`Budget`], which dropping gives back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    units: u32,
}

/// A body in memory, and its share.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub parts: Arc<[Bytes]>,
    share: Mutex<Option<Share>>,
}

impl HeldBody {
    pub fn new(parts: Arc<[Bytes]>, share: Share) -> Self {
        HeldBody { parts, share: Mutex::new(Some(share)) }
    }

    /// Gives its share back although a thread that hangs may still hold it: others must not wait for that.
    pub fn let_go(&self) {
        drop(self.share.lock().expect("a share").take());
    }
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        let all = units(bytes);
        Budget { units: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Whether the budget is at least that large.
    pub fn covers(&self, units: u64) -> bool {
        units <= u64::from(self.all)
    }

    /// Waits for that much memory. A request larger than the budget gets all of it.
    ///
    /// # Errors
    /// The budget was closed.
    pub async fn share(&self, units: u64) -> Result<Share, AcquireError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.all);
        self.units.acquire_many(units).await?.forget();
        Ok(Share { budget: self.clone(), units })
    }

    /// A share that was taken before, as a part of a larger one, and kept by [`Share::hand_over`].
    pub fn taken_over(&self, units: u64) -> Share {
        Share { budget: self.clone(), units: u32::try_from(units).unwrap_or(u32::MAX) }
    }

    /// Closes it: waiting and later requests fail.
    pub fn close(&self) {
        self.units.close();
    }

    pub fn is_closed(&self) -> bool {
        self.units.is_closed()
    }

    #[cfg(test)]
    pub fn is_whole(&self) -> bool {
        self.units.available_permits() == self.all as usize
    }
}

impl Share {
    /// Others give it back, in parts.
    pub fn hand_over(mut self) {
        self.units = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.units.add_permits(self.units as usize);
    }
}

/// Memory is counted in units that a semaphore can hold.
pub(crate) fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, UNITS_MAX)
}

const UNIT_BYTES: u64 = 1024;
/// What tokio's semaphore can hold on any machine.
const UNITS_MAX: u32 = u32::MAX >> 3;
