//! State of operators' requests: scans of the queue, and imports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::look::RollingLook;

/// State of operators' requests.
#[derive(Default)]
pub(super) struct OperatorRequests {
    pub look: RollingLook,
    importing: Mutex<()>,
    looked_at: AtomicU64,
}

impl OperatorRequests {
    /// One import at a time: each first checks what was imported already.
    pub fn importing(&self) -> MutexGuard<'_, ()> {
        self.importing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts recipients that were scanned to count or list some.
    pub fn note_looked_at(&self, recipients: usize) {
        self.looked_at.fetch_add(recipients as u64, Ordering::Relaxed);
    }

    /// Recipients scanned since the opening.
    pub fn looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
    }
}
