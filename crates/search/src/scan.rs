//! Search without an index: builds a temporary one for this search, and queries it like any other.
//!
//! So every query means the same with and without an index. Reading is as fast as for a first index: all cores, many
//! files at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::disk::UnsyncedDir;
use crate::error::IndexError;
use crate::search::Searcher;
use crate::settings::add_headers;
use crate::state::StateError;
use crate::update::{Indexer, Progress, Report, UpdateOptions};

const PREFIX: &str = "posthaste-scan.";

/// Reads all messages below `roots` for a search, with the header fields of the query
/// ([`Query::headers`](crate::query::Query::headers)). Also returns a report of the messages read, and of unreadable
/// ones. Takes as long as a first index, and about a quarter of the mail's size in the directory for temporary files,
/// which is cleaned up.
///
/// # Errors
/// [`IndexError`]: as [`Indexer::update`], also if there is no room for temporary files.
pub fn scan(
    roots: &[PathBuf],
    headers: &[String],
    options: &UpdateOptions,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Searcher, Report), IndexError> {
    let parent = std::env::temp_dir();
    remove_leftovers(&parent);
    let io = |error| IndexError::State(StateError::Io { dir: parent.clone(), error });
    let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&parent).map_err(io)?;
    let _unsynced = UnsyncedDir::new(dir.path());
    add_headers(dir.path(), headers).map_err(IndexError::Settings)?;
    let mut indexer = Indexer::open(dir.path(), None)?;
    let report = indexer.update(roots, options, progress)?;
    let searcher = Searcher::open(dir.path())?;
    // All files are open or mapped by now, so nothing is left over however the process ends.
    drop(indexer);
    dir.close().map_err(io)?;
    Ok((searcher, report))
}

/// Removes the leftovers of killed scans, the locks of which nobody holds.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let lock = File::open(entry.path().join("lock"));
        let is_free = lock.is_ok_and(|lock| rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if is_free {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
