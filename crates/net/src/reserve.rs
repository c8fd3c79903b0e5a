//! Reserved descriptors, so that a client can be refused properly when there are no more.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Spare open descriptors, closed when the process has no other left. Then a client can still be accepted, get 421 and
/// be closed, instead of hanging in the backlog.
#[derive(Debug)]
pub(crate) struct Reserve(Mutex<Vec<File>>);

impl Reserve {
    const DESCRIPTORS: usize = 8;

    pub fn new() -> io::Result<Self> {
        let files = (0..Self::DESCRIPTORS).map(|_| Self::open()).collect::<io::Result<Vec<_>>>()?;
        Ok(Self(Mutex::new(files)))
    }

    fn open() -> io::Result<File> {
        File::open("/dev/null")
    }

    /// Frees one descriptor. False if all are in use already.
    pub fn give(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Takes descriptors back as far as possible; true if the reserve is full.
    pub fn refill(&self) -> bool {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while files.len() < Self::DESCRIPTORS {
            match Self::open() {
                Ok(file) => files.push(file),
                Err(_) => return false,
            }
        }
        true
    }
}
