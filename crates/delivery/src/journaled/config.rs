//! Where a journaled executor keeps things, its bounds, and why it could not be opened.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_maildir::{Host, Owners};

/// Where a journaled executor keeps things, and its bounds.
#[derive(Debug, Clone)]
pub struct JournaledConfig {
    /// Mailboxes lie below this directory and nowhere else.
    pub mail_root: PathBuf,
    /// The journal and the spool of large bodies; may be on another file system than the mail.
    pub journal_dir: PathBuf,
    /// Sizes and bounds of the journal.
    pub journal: posthaste_journal::Config,
    /// Host name that goes into file names.
    pub host: String,
    /// Bytes of messages that are durable and not yet in their mailboxes, in memory; beyond that callers wait.
    pub backlog_bytes: u32,
    /// Bytes that may be appended before a checkpoint is made.
    ///
    /// 256 MiB by default. Measured (bench `sustained`, 6 s, in turns, with 256 / 64 / 16 MiB): bodies of 10 KiB 22.8 and 17.0 / 13.0 and 13.2 / 14.1 and 13.3 thousand
    /// a second; of 100 KiB 4.3 and 4.6 / 4.5 and 4.6 / 4.2 and 3.9, where the p99.9 was 176 and 152 / 98 and 114 / 76 and 115 ms.
    pub checkpoint_bytes: u64,
    /// Time after which a checkpoint is made if anything was appended at all.
    pub checkpoint_interval: Duration,
    /// Bodies longer than this go to the spool even if they are handed over in memory.
    ///
    /// 1 MiB by default. Measured (bench `choices` of the journal, MiB/s durable in a record / in a file of its own): 1 MiB 319 / 395, 4 MiB 571 / 499,
    /// 16 MiB 556 / 784 one at a time. As fast, and a file holds up nobody else's commit.
    pub inline_bytes_max: u64,
    /// Bytes that may wait for one mailbox that cannot be written to; beyond, `check_mailbox` refuses.
    pub pending_bytes_max: u64,
    /// Whose the files and directories are that are made for mail: asked whenever a mailbox is opened or written to, so what it says may change. A replay asks
    /// it too: mail that was accepted before gets the owner that applies when it is written.
    pub owners: Owners,
    /// How long opening waits for mailboxes of unfinished mail of which none answers: then their mail waits for them, and opening goes on.
    pub open_patience: Duration,
    /// How long ending may take: longer only if a disk hangs, and then what is unfinished is left to the next opening.
    pub shutdown_patience: Duration,
}

impl JournaledConfig {
    /// The defaults for these directories.
    pub fn new(journal_dir: impl Into<PathBuf>, mail_root: impl Into<PathBuf>) -> Self {
        JournaledConfig {
            mail_root: mail_root.into(),
            journal_dir: journal_dir.into(),
            journal: posthaste_journal::Config::default(),
            host: Host::of_this_machine().as_str().to_owned(),
            backlog_bytes: 256 << 20,
            checkpoint_bytes: 256 << 20,
            checkpoint_interval: Duration::from_secs(30),
            inline_bytes_max: 1 << 20,
            pending_bytes_max: 1 << 30,
            owners: Owners::default(),
            open_patience: Duration::from_secs(30),
            shutdown_patience: Duration::from_secs(30),
        }
    }
}

/// Why a journaled executor could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The journal: in use by another process, or its file system failed.
    #[error(transparent)]
    Journal(#[from] posthaste_journal::OpenError),
    /// The mail root or the spool.
    #[error("{path}: {error}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
}
