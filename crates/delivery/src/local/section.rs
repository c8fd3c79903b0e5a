//! `[storage]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_spool::StoreKind;
use posthaste_units::check_bounds;
use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Deserializer, Serialize};

use super::LocalConfig;

/// Where things are kept. Relative paths are relative to the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// Holds everything without a place of its own; only one server at a time can use it. Default: `posthaste-data`.
    pub data: PathBuf,
    /// Accepted mail that is not durable in all its mailboxes; a fast disk here makes every reply fast. It may be on another file system than `mail`.
    /// Default: `spool` in `data`.
    pub spool: PathBuf,
    /// How the spool keeps batches: `ring`, a log of large files with one sync for all that wait, or `files`, a file for each message. Both keep the same promise;
    /// `files` is slower, and for file systems that the log does not suit. `fjall` and `rocksdb`, LSM trees for comparison, are in programs that were built with them. A spool of another kind is refused.
    pub kind: StoreKind,
    /// The mailboxes: `mail/<domain>/<user>/Maildir`. Default: `mail` in `data`.
    pub mail: PathBuf,
    /// Size of one log file of the spool: 4 MiB to 1 GiB, a multiple of 4096. Files of another size are replaced as they become free. Smaller files
    /// suit a small disk.
    #[serde(deserialize_with = "values::bytes")]
    pub spool_segment_bytes: u64,
    /// Maximum number of log files, at least 4; by default the log takes up to 4 GiB, but never so much that less than `free_bytes_min` stays free.
    /// It keeps its size after a backlog, until the disk needs the space. Mail that waits longer moves to other files of the spool, which only the
    /// disk limits.
    #[serde(deserialize_with = "values::count")]
    pub spool_segments: usize,
    /// Bytes that stay free on the spool's file system: below, new mail gets 452 4.3.1.
    #[serde(deserialize_with = "values::bytes")]
    pub free_bytes_min: u64,
    /// Like `free_bytes_min`, for inodes.
    #[serde(deserialize_with = "values::count")]
    pub free_inodes_min: usize,
    /// Bytes that stay free on each mail file system, half of `free_bytes_min` if not set: a message that does not fit above that waits in the spool,
    /// and is delivered when there is space. If spool and mail share a file system, keep it below `free_bytes_min`: new mail is then refused while
    /// accepted mail can still be delivered.
    #[serde(deserialize_with = "some_bytes")]
    pub mail_free_bytes_min: Option<u64>,
    /// Like `mail_free_bytes_min`, for inodes; half of `free_inodes_min` if not set.
    #[serde(deserialize_with = "some_count")]
    pub mail_free_inodes_min: Option<u64>,
    /// Bytes that may wait for one mailbox that cannot be written. Above that its recipients get 452 4.2.2 at RCPT; other mailboxes are not affected.
    /// `posthaste spool inspect` shows what waits, and why.
    #[serde(deserialize_with = "values::bytes")]
    pub mailbox_pending_bytes: u64,
    /// Bytes that may wait for all such mailboxes together, and for mail file systems that are full or do not answer. Above that recipients in these
    /// mailboxes get 452 4.2.2. Mail for programs, files and LMTP hosts has as much of its own.
    #[serde(deserialize_with = "values::bytes")]
    pub pending_bytes: u64,
    /// A mail file system is synced after this many bytes of delivered mail, the spool's progress is recorded after this many bytes of received mail;
    /// at least 1 MiB. Both happen earlier if the log is short of space.
    #[serde(deserialize_with = "values::bytes")]
    pub checkpoint_bytes: u64,
    /// Longest time between two of these if mail was received. A start after a crash reads what came after the last one.
    #[serde(deserialize_with = "values::secs")]
    pub checkpoint_secs: u64,
}

impl Table for Storage {
    const NAME: &str = "storage";
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            data: PathBuf::new(),
            spool: PathBuf::new(),
            kind: StoreKind::default(),
            mail: PathBuf::new(),
            spool_segment_bytes: 64 << 20,
            spool_segments: 64,
            free_bytes_min: 64 << 20,
            free_inodes_min: 1000,
            mail_free_bytes_min: None,
            mail_free_inodes_min: None,
            mailbox_pending_bytes: 1 << 30,
            pending_bytes: 2 << 30,
            checkpoint_bytes: 256 << 20,
            checkpoint_secs: 30,
        }
    }
}

impl Storage {
    /// Fills in unset values that depend on other keys.
    pub fn complete(&mut self) {
        if self.data.as_os_str().is_empty() {
            self.data = PathBuf::from("posthaste-data");
        }
        let Self { data, spool, mail, .. } = self;
        for (dir, name) in [(spool, "spool"), (mail, "mail")] {
            if dir.as_os_str().is_empty() {
                *dir = data.join(name);
            }
        }
        // On one file system mail is refused before deliveries stop.
        self.mail_free_bytes_min.get_or_insert(self.free_bytes_min / 2);
        self.mail_free_inodes_min.get_or_insert(self.free_inodes_min as u64 / 2);
    }

    /// Validates the section.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            Self::NAME,
            &[
                // A record holds at most an in-memory body with its envelope, and must fit into one segment.
                ("spool_segment_bytes", self.spool_segment_bytes, 4 << 20, 1 << 30),
                // One in use, one reserved for a checkpoint, and one to move on to.
                ("spool_segments", self.spool_segments as u64, 4, 1 << 20),
                ("checkpoint_bytes", self.checkpoint_bytes, 1 << 20, u64::MAX),
                ("checkpoint_secs", self.checkpoint_secs, 1, 86_400),
            ],
        )?;
        if !self.spool_segment_bytes.is_multiple_of(BLOCK) {
            let message = format!("must be a multiple of {}", posthaste_units::show_bytes(BLOCK));
            return Err(Problem::new([Self::NAME.into(), "spool_segment_bytes".into()], message));
        }
        Ok(())
    }
}

impl From<&Storage> for LocalConfig {
    fn from(storage: &Storage) -> Self {
        Self {
            spool: posthaste_spool::Config::from(storage),
            pending_bytes_max: storage.mailbox_pending_bytes,
            pending_bytes_max_all: storage.pending_bytes,
            sync_bytes: storage.checkpoint_bytes,
            sync_interval: Duration::from_secs(storage.checkpoint_secs),
            free_bytes_min: storage.mail_free_bytes_min.unwrap_or(storage.free_bytes_min / 2),
            free_inodes_min: storage.mail_free_inodes_min.unwrap_or(storage.free_inodes_min as u64 / 2),
            ..Self::new(&storage.spool, &storage.mail)
        }
    }
}

impl From<&Storage> for posthaste_spool::Config {
    fn from(storage: &Storage) -> Self {
        let mut spool = Self {
            kind: storage.kind,
            checkpoint_bytes: storage.checkpoint_bytes,
            checkpoint_every: Duration::from_secs(storage.checkpoint_secs),
            free_bytes_min: storage.free_bytes_min,
            free_inodes_min: storage.free_inodes_min as u64,
            ..Self::default()
        };
        (spool.ring.segment_bytes, spool.ring.max_segments) = (storage.spool_segment_bytes, storage.spool_segments);
        spool
    }
}

/// The value of an optional key.
fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::bytes(deserializer).map(Some)
}

/// Like [`some_bytes`], of a count.
fn some_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::count(deserializer).map(Some)
}

/// The spool writes whole blocks.
const BLOCK: u64 = 4096;
