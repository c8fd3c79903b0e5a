//! The check that no server has the spool open.

use std::path::{Path, PathBuf};

use posthaste_config::Config;
use posthaste_spool::{ClosedFileSpool, OpenError};

/// Why the queue, or the mailboxes, cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedError {
    /// There is no spool.
    #[error("no server runs with its data in {}, and no spool is there", data.display())]
    Absent {
        /// The data directory.
        data: PathBuf,
    },
    /// Another process holds the spool's lock.
    #[error("{}: the spool is in use, and no server answers at its control socket", dir.display())]
    InUse {
        /// The spool's directory.
        dir: PathBuf,
    },
    /// The spool cannot be read, or threads cannot be started.
    #[error("{}: {error}", dir.display())]
    Unreadable {
        /// The spool's directory.
        dir: PathBuf,
        /// The cause.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Checks that the spool exists, as opening would create it, and that no process has it open.
pub(super) fn check_closed(config: &Config) -> Result<(), ClosedError> {
    let dir = &config.storage.spool;
    if !dir.is_dir() {
        return Err(ClosedError::Absent { data: config.storage.data.clone() });
    }
    match ClosedFileSpool::is_in_use(dir) {
        Ok(false) => Ok(()),
        Ok(true) => Err(ClosedError::InUse { dir: dir.clone() }),
        Err(error) => Err(unopened(dir, error)),
    }
}

pub(super) fn unopened(dir: &Path, error: OpenError) -> ClosedError {
    match error {
        OpenError::Locked => ClosedError::InUse { dir: dir.to_owned() },
        error => ClosedError::Unreadable { dir: dir.to_owned(), error: error.into() },
    }
}

pub(super) fn unreadable(config: &Config, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClosedError {
    ClosedError::Unreadable { dir: config.storage.spool.clone(), error: error.into() }
}
