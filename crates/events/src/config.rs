//! Settings and figures.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Directory and bounds of the log.
#[derive(Clone)]
pub struct Config {
    /// The directory of its files: this log's alone.
    pub dir: PathBuf,
    /// A file is followed by the next before it gets longer than this. One event may be longer.
    pub file_bytes: u64,
    /// Files that are kept; at least 2. The oldest are removed.
    pub files: u64,
    /// Closed files are compressed by gzip.
    pub compress: bool,
    /// Closed files go when their last line is so old; zero: never.
    pub max_age: Duration,
    /// Batches with events that may wait in the spool while the files cannot be written. Beyond, events are left out.
    pub pending_max: u64,
    /// Bytes of events in memory; beyond, they are read from the spool again.
    pub queue_bytes_max: usize,
    /// Longest time from writing an event to the sync that releases it from the spool;
    /// [`sync_bytes`](Self::sync_bytes) may sync earlier.
    pub sync_interval: Duration,
    /// See [`sync_interval`](Self::sync_interval).
    pub sync_bytes: u64,
    /// Called once at each change: the files cannot be written, or can be again; events are left out, or recorded
    /// again; a thread panics. Must not block for long.
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
    /// The files cannot be written. It is tried again; events wait in the spool.
    Failing {
        /// Why.
        error: String,
    },
    /// The files can be written again.
    Working,
    /// The file that was written last is missing, or is not as it was written: events in it may be lost. Another file is begun.
    Changed {
        /// Its name.
        file: String,
    },
    /// Too much waits for the files: events are left out, and counted, until [`Notice::Recording`].
    LeavingOut,
    /// Events are recorded again.
    Recording,
    /// One of the log's threads has panicked, which is a bug: what happens from now on is left out, and counted. What was recorded before waits in the spool for
    /// the next life.
    Panicked {
        /// The thread's name.
        thread: &'static str,
    },
}

/// Figures since the opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventLogStats {
    /// Lines written; some of them twice, to the same place, after a failure.
    pub lines: u64,
    /// Lines that are missing: refusals beyond the bound of a moment, and whatever the spool had no room for.
    pub left_out: u64,
    /// True if the backlog is full, and events are left out.
    pub is_over: bool,
    /// True if the files could not be written at the last attempt.
    pub is_failing: bool,
}
