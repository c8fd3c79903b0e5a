//! The directory of a spool: its lock, and names in it.

use std::io;
use std::path::Path;

use posthaste_fsops::FileLock;
use rustix::fs::OFlags;

use crate::{OpenError, files};

/// Locks the spool in `dir`; creates the lock file if it is missing.
pub(crate) fn lock(dir: &Path) -> Result<FileLock, OpenError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let lock = posthaste_fsops::open(dir.join(LOCK), flags, files::OWNER).map_err(io::Error::from)?;
    FileLock::try_new(lock.into())?.ok_or(OpenError::Locked)
}

/// # Errors
/// [`OpenError::Importing`] while an import into the directory is unfinished.
pub(crate) fn has_been_imported(dir: &Path) -> Result<(), OpenError> {
    if dir.join(IMPORTING).try_exists()? { Err(OpenError::Importing) } else { Ok(()) }
}

/// Name of the file with the list of segments. It lies outside of the ring's directory, so that it reveals a loss of
/// the whole directory.
pub(crate) const ROSTER: &str = "segments";
pub(crate) const LOCK: &str = "lock";
/// Exists while an import is incomplete.
pub(crate) const IMPORTING: &str = "importing";
