//! Settings of local delivery, and errors of opening it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_maildir::{Host, Owners};
use posthaste_spool::Lsn;

use super::losses::Losses;
use super::observer::DeliveryObserver;

/// Directories and bounds of local delivery.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The mail root: all mailboxes are below it.
    pub mail_root: PathBuf,
    /// The spool, possibly on another file system than the mail.
    pub spool_dir: PathBuf,
    /// Sizes and bounds of the spool.
    pub spool: posthaste_spool::Config,
    /// Bytes that deliveries leave free on each mail file system; other mail waits in the spool. The default is below
    /// [`spool.free_bytes_min`](posthaste_spool::Config::free_bytes_min): on a shared file system, mail is refused
    /// before deliveries stop.
    pub free_bytes_min: u64,
    /// Like [`free_bytes_min`](Self::free_bytes_min), for inodes; ignored where the file system does not count them.
    pub free_inodes_min: u64,
    /// Host name in file names.
    pub host: String,
    /// Random number in file names, new at each opening.
    pub nonce: u32,
    /// Targets, as batch and number, expunged before this opening: if the file is gone, no new one is made.
    pub expunged: Arc<HashSet<(Lsn, u16)>>,
    /// Bounds of acceptance. A slow mailbox may take an eighth of
    /// [`backlog_bytes`](posthaste_intake::Config::backlog_bytes).
    pub intake: posthaste_intake::Config,
    /// Bytes of visible mail after which its mount is synced. Default 256 MiB: from 8 to 256 MiB no difference in rate
    /// or latency was measured (bench-results/2026-11-26, section 3).
    pub sync_bytes: u64,
    /// Interval of syncs of a mount with mail that is not durable.
    pub sync_interval: Duration,
    /// Bytes that may wait for one unwritable mailbox; beyond it
    /// [`LocalDelivery::check_mailbox`](super::LocalDelivery::check_mailbox) refuses.
    pub pending_bytes_max: u64,
    /// Bytes that may wait for all such mailboxes together; beyond it only mail for them is refused.
    pub pending_bytes_max_all: u64,
    /// Owner and mode of new files and directories. Read whenever a mailbox is opened or written, so it may change at
    /// run time. Mail gets the owner in force when it is written, not when it was accepted.
    pub owners: Owners,
    /// Receives the outcome of each target.
    pub observer: Option<Arc<dyn DeliveryObserver>>,
    /// Receives mail given up because its body in the spool is lost.
    pub losses: Losses,
    /// Time for which opening waits until earlier mail is in its mailboxes, or is known to wait.
    pub open_patience: Duration,
    /// Time limit of a shutdown. If a disk hangs, the next opening finishes the work.
    pub shutdown_patience: Duration,
}

impl LocalConfig {
    /// Default settings for these directories.
    pub fn new(spool_dir: impl Into<PathBuf>, mail_root: impl Into<PathBuf>) -> Self {
        LocalConfig {
            mail_root: mail_root.into(),
            spool_dir: spool_dir.into(),
            spool: posthaste_spool::Config::default(),
            free_bytes_min: 32 << 20,
            free_inodes_min: 500,
            host: Host::of_this_machine().as_str().to_owned(),
            // Keyed with the system's random bytes at each `new`.
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

/// Error in opening local delivery with its own spool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalOpenError {
    /// The spool is in use by another process, or its file system failed.
    #[error("{}: {error}", dir.display())]
    Spool {
        /// Directory of the spool.
        dir: PathBuf,
        /// The spool's error.
        error: posthaste_spool::OpenError,
    },
    /// The stream of a mount, the mail root or a thread could not be opened.
    #[error(transparent)]
    Stream(#[from] posthaste_consumer::StreamOpenError),
}
