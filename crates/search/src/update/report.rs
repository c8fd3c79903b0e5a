//! How an update is asked for, and what it says of itself.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_maildir::tree::IoMethod;

use crate::stop::Stop;

/// How an update goes about it.
#[derive(Debug, Clone)]
pub struct UpdateOptions {
    /// List every folder, whatever its directories' times say.
    pub list_all: bool,
    /// Also look at each file's size and time, and read again what differs (Maildir files should never change).
    pub check_files: bool,
    /// Also below directories marked `.noupdate`.
    pub into_noupdate: bool,
    /// A tree that is not there any more, or has no folders any more, has lost its messages. Otherwise they stay, since that is how a disk looks
    /// that is not mounted.
    pub believe_missing: bool,
    /// Threads that read and index; 0 for one for each core, at most 8.
    pub threads: usize,
    /// Bytes of memory for the index of new messages, all threads together.
    pub memory_bytes: usize,
    /// How files are looked at and read.
    pub io_method: IoMethod,
    /// Ends an update early: what was read by then is committed, and the next update goes on. Where an index is built again nothing of the new
    /// one is kept, the old one stays, and all is read again.
    pub stop: Option<Stop>,
}

/// Of [`UpdateOptions::memory_bytes`]: with half as much a first index has twice as many segments, and each costs every query something.
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

/// How far an update is.
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
    /// Trees that hold no Maildir: they are looked at each time all the same.
    pub without_maildirs: Vec<PathBuf>,
    /// Folders there are.
    pub folders: usize,
    /// Directories (`new/`, `cur/`) whose names were read, because they changed or settled only now.
    pub listed: usize,
    /// Messages in the index afterwards.
    pub messages: u64,
    /// Messages added to the index.
    pub added: u64,
    /// New messages: those added, and of a rebuild only those that the replaced index did not have.
    pub new: u64,
    /// Bytes read of them.
    pub bytes: u64,
    /// Messages found in another place.
    pub moved: u64,
    /// Messages with other flags or a longer or shorter name.
    pub renamed: u64,
    /// Messages that are gone.
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
