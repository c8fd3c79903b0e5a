//! Errors of the library, which are text.

use std::ffi::{CStr, c_char};

use crate::calls;

/// An error of RocksDB.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RocksError {
    /// Another process, or another handle of this one, has it open.
    #[error("{0}")]
    Locked(String),
    /// A checksum is wrong, or a file is missing.
    #[error("{0}")]
    Corruption(String),
    /// Any other error. After a write error the database accepts nothing more.
    #[error("{0}")]
    Other(String),
}

/// Calls a function that returns errors by a pointer.
pub(crate) fn told<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, RocksError> {
    let mut error = std::ptr::null_mut::<c_char>();
    let outcome = call(&raw mut error);
    if error.is_null() {
        return Ok(outcome);
    }
    // SAFETY: it is not null, so it is a text of the library that ends with a zero and is ours to free.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the library allocated it, and nothing points to it any more.
    unsafe { calls::rocksdb_free(error.cast()) };
    Err(RocksError::of(text))
}

impl RocksError {
    fn of(text: String) -> Self {
        if text.starts_with("Corruption:") {
            RocksError::Corruption(text)
        } else if text.starts_with("IO error:") && (text.contains("lock file:") || text.contains("lock hold by")) {
            RocksError::Locked(text)
        } else {
            RocksError::Other(text)
        }
    }
}
