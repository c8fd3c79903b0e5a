//! Locks of mutexes, also after a panic of a holder.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each holder makes one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`]; `None` while another thread has it locked.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
