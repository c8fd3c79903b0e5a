//! Settings of local delivery, and why it could not be opened.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_maildir::{Host, Owners};
use posthaste_spool::Lsn;

use super::losses::Losses;
use super::observer::Observer;

/// Directories and bounds of local delivery.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The mail root: all mailboxes are below it.
    pub mail_root: PathBuf,
    /// The spool; may be on another file system than the mail.
    pub spool_dir: PathBuf,
    /// Sizes and bounds of the spool.
    pub spool: posthaste_spool::Config,
    /// Bytes that deliveries leave free on each file system of the mail; what does not fit waits in the spool. Below
    /// [`spool.free_bytes_min`](posthaste_spool::Config::free_bytes_min) by default: on one file system, mail is refused before deliveries stop.
    pub free_bytes_min: u64,
    /// Like [`free_bytes_min`](Self::free_bytes_min), of inodes; not asked where the file system has no number of them.
    pub free_inodes_min: u64,
    /// Host name that goes into file names.
    pub host: String,
    /// Random for each opening and part of file names.
    pub nonce: u32,
    /// Targets, as batch and number, whose messages were expunged before this opening: one that has no file any more gets none.
    pub expunged: Arc<HashSet<(Lsn, u16)>>,
    /// Bounds of acceptance. A mailbox that is slow may take an eighth of [`backlog_bytes`](posthaste_intake::Config::backlog_bytes).
    pub intake: posthaste_intake::Config,
    /// Bytes of visible mail after which its mount is synced. 256 MiB by default: from 8 to 256 MiB no difference in rate or latency was measured (bench-results/2026-11-26, section 3).
    pub sync_bytes: u64,
    /// Time after which a mount is synced if there is anything to be made durable.
    pub sync_interval: Duration,
    /// Bytes that may wait for one mailbox that cannot be written to; beyond, [`LocalDelivery::check_mailbox`](super::LocalDelivery::check_mailbox) refuses.
    pub pending_bytes_max: u64,
    /// Bytes that may wait for all such mailboxes together; beyond, mail for any of them is refused, and for no other.
    pub pending_bytes_max_all: u64,
    /// Owner and mode of new files and directories. Looked up whenever a mailbox is opened or written to, so it may change at run time: mail gets the owner that
    /// applies when it is written, not when it was accepted.
    pub owners: Owners,
    /// Receives the outcome of each target.
    pub observer: Option<Arc<dyn Observer>>,
    /// Receives mail that is given up because its body in the spool is lost.
    pub losses: Losses,
    /// Time for which opening waits until mail that was accepted before is in its mailboxes, or is known to wait for them.
    pub open_patience: Duration,
    /// Deadline of a shutdown. If a disk hangs, unfinished work is left to the next opening.
    pub shutdown_patience: Duration,
}

impl LocalConfig {
    /// The defaults for these directories.
    pub fn new(spool_dir: impl Into<PathBuf>, mail_root: impl Into<PathBuf>) -> Self {
        LocalConfig {
            mail_root: mail_root.into(),
            spool_dir: spool_dir.into(),
            spool: posthaste_spool::Config::default(),
            free_bytes_min: 32 << 20,
            free_inodes_min: 500,
            host: Host::of_this_machine().as_str().to_owned(),
            // Keyed with random bytes of the system for each of its values.
            nonce: RandomState::new().hash_one(0_u8) as u32,
            expunged: Arc::default(),
            intake: posthaste_intake::Config::default(),
            sync_bytes: 256 << 20,
            sync_interval: Duration::from_secs(30),
            pending_bytes_max: 1 << 30,
            pending_bytes_max_all: 2 << 30,
            owners: Owners::default(),
            observer: None,
            losses: Losses::default(),
            open_patience: Duration::from_secs(30),
            shutdown_patience: Duration::from_secs(30),
        }
    }
}

/// Why local delivery with a spool of its own could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalOpenError {
    /// The spool: in use by another process, or its file system failed.
    #[error("{}: {error}", dir.display())]
    Spool {
        /// Its directory.
        dir: PathBuf,
        /// Why it cannot be opened.
        error: posthaste_spool::OpenError,
    },
    /// The stream of a mount, the mail root, or a thread.
    #[error(transparent)]
    Stream(#[from] posthaste_consumer::OpenError),
}
