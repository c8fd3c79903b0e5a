//! Telling whoever started us that clients are served: s6's `notification-fd`, and what any script can wait for.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::serve::ServeError;

/// A descriptor that was handed to the process.
#[derive(Debug)]
pub(crate) struct ReadyFd(File);

impl ReadyFd {
    /// # Errors
    /// [`ServeError::ReadyFd`]: it is not open, or not for writing.
    pub fn open(number: u32) -> Result<Self, ServeError> {
        // A descriptor of our own to the same pipe or file, which is closed behind the line; it needs no unsafe code.
        let opened = match number {
            0..=2 => Err(std::io::ErrorKind::InvalidInput.into()),
            _ => OpenOptions::new().append(true).open(format!("/proc/self/fd/{number}")),
        };
        opened.map(Self).map_err(|error| ServeError::ReadyFd { number, error })
    }

    /// Writes the line. That nobody reads it any more is no reason not to serve.
    pub fn tell(mut self) {
        if let Err(error) = self.0.write_all(b"ready\n") {
            tracing::warn!(error = error.to_string(), "readiness cannot be told: --ready-fd");
        }
    }
}
