//! Options and report of an update.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_maildir::tree::IoMethod;

use crate::stop::Stop;

/// Options of an update.
#[derive(Debug, Clone)]
pub struct UpdateOptions {
    /// List every folder, whatever its directories' times say.
    pub list_all: bool,
    /// Also compare each file's size and time, and read changed files again (Maildir files should never change).
    pub check_files: bool,
    /// Also enter directories marked `.noupdate`.
    pub into_noupdate: bool,
    /// Believe that the messages of a missing or empty tree are gone. Otherwise they stay, since an unmounted disk
    /// looks like that.
    pub believe_missing: bool,
    /// Threads that read and index; 0 for one for each core, at most 8.
    pub threads: usize,
    /// Bytes of memory for the index of new messages, all threads together.
    pub memory_bytes: usize,
    /// Method of looking at and reading files.
    pub io_method: IoMethod,
    /// Ends an update early: messages read so far are committed, and the next update continues. An interrupted rebuild
    /// keeps nothing: the old index stays, and all is read again.
    pub stop: Option<Stop>,
}

/// Default of [`UpdateOptions::memory_bytes`]. Half as much doubles the segments of a first index, and each segment
/// costs every query something.
pub const MEMORY_BYTES: usize = 64 << 20;

impl Default for UpdateOptions {
    fn default() -> Self {
        Self {
            list_all: false,
            check_files: false,
            into_noupdate: false,
            believe_missing: false,
            threads: 0,
            memory_bytes: MEMORY_BYTES,
            io_method: IoMethod::default(),
            stop: None,
        }
    }
}

/// Progress of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Directories are being listed.
    Looking,
    /// New messages are being read.
    Reading {
        /// Messages done.
        done: u64,
        /// Messages to do.
        total: u64,
        /// Bytes done.
        bytes: u64,
    },
    /// The commit is being synced to disk.
    Committing,
}

/// Outcome of an update.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Trees without a Maildir; they are still looked at each time.
    pub without_maildirs: Vec<PathBuf>,
    /// Number of folders.
    pub folders: usize,
    /// Directories (`new/`, `cur/`) that were listed, because they changed or settled only now.
    pub listed: usize,
    /// Messages in the index afterwards.
    pub messages: u64,
    /// Messages added to the index.
    pub added: u64,
    /// New messages: those added, but of a rebuild only those that the replaced index did not have.
    pub new: u64,
    /// Bytes read of added messages.
    pub bytes: u64,
    /// Messages that moved.
    pub moved: u64,
    /// Messages with other flags or a longer or shorter name.
    pub renamed: u64,
    /// Messages removed from the index.
    pub removed: u64,
    /// New messages that were given tags by the rules for new mail.
    pub tagged: u64,
    /// Messages that are not fully indexed: path and reason. Those of this update only.
    pub problems: Vec<(PathBuf, String)>,
    /// Directories and files that could not be read.
    pub troubles: Vec<(PathBuf, String)>,
    /// True if the update was stopped early.
    pub stopped: bool,
    /// Time taken.
    pub took: Duration,
}

impl Report {
    /// True if the update changed the index.
    pub fn has_changes(&self) -> bool {
        self.added + self.tagged + self.moved + self.renamed + self.removed > 0
    }
}
