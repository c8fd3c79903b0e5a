//! Settings and figures.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Directory and bounds of the log.
#[derive(Clone)]
pub struct Config {
    /// The directory of its files, used by this log only.
    pub dir: PathBuf,
    /// Maximum length of a file; one event may be longer.
    pub file_bytes: u64,
    /// Number of files, at least 2. The oldest are removed.
    pub files: u64,
    /// Closed files are compressed by gzip.
    pub compress: bool,
    /// Maximum age of a closed file's last line; zero: unlimited.
    pub max_age: Duration,
    /// Batches with events that may wait in the spool while the files cannot be written. Beyond, events are left out.
    pub pending_max: u64,
    /// Bytes of events in memory; beyond, they are read from the spool again.
    pub queue_bytes_max: usize,
    /// Bytes of events in memory; beyond it, they are read from the spool again.
    pub sync_interval: Duration,
    /// See [`sync_interval`](Self::sync_interval).
    pub sync_bytes: u64,
    /// Called once at each change: writing fails or works again; events are left out or recorded again; a thread
    /// panics. Must not block for long.
    pub notice: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl Config {
    /// The defaults for this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Config {
            dir: dir.into(),
            file_bytes: 64 << 20,
            files: 16,
            compress: false,
            max_age: Duration::ZERO,
            pending_max: 1_000_000,
            queue_bytes_max: 8 << 20,
            sync_interval: Duration::from_secs(5),
            sync_bytes: 16 << 20,
            notice: Arc::new(|_| ()),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("dir", &self.dir)
            .field("file_bytes", &self.file_bytes)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// News for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The files cannot be written. Retrying; events wait in the spool.
    Failing {
        /// Why.
        error: String,
    },
    /// The files can be written again.
    Working,
    /// The last file is missing or was modified: events in it may be lost. Another file is begun.
    Changed {
        /// Its name.
        file: String,
    },
    /// Too many events wait for the files: further ones are left out and counted until [`Notice::Recording`].
    LeavingOut,
    /// Events are recorded again.
    Recording,
    /// One of the log's threads has panicked, which is a bug: later events are left out and counted. Recorded events
    /// wait in the spool for the next start.
    Panicked {
        /// The thread's name.
        thread: &'static str,
    },
}

/// Figures since the opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventLogStats {
    /// Lines written; after a failure some are written twice, to the same place.
    pub lines: u64,
    /// Missing lines: refusals beyond the rate limit, and events without room in the spool.
    pub left_out: u64,
    /// True if the backlog is full, and events are left out.
    pub is_over: bool,
    /// True if the files could not be written at the last attempt.
    pub is_failing: bool,
}
