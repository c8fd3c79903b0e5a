//! `[storage]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use posthaste_units::check_bounds;
use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Deserializer, Serialize};

use super::LocalConfig;

/// Where things are kept. Relative paths are relative to the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// The directory that holds everything that is not placed elsewhere.
    pub data: PathBuf,
    /// The spool's directory; may lie on another file system. Not set: `spool` in `data`.
    pub spool: PathBuf,
    /// The directory of the mailboxes. Not set: `mail` in `data`.
    pub mail: PathBuf,
    /// Octets of one file of the spool's ring.
    #[serde(deserialize_with = "values::bytes")]
    pub spool_segment_bytes: u64,
    /// Files of the ring at most. Mail that waits for its mailbox moves from them into packs.
    #[serde(deserialize_with = "values::count")]
    pub spool_segments: usize,
    /// Octets that the spool leaves free on its file system: with less, mail is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub free_bytes_min: u64,
    /// As `free_bytes_min`, of inodes.
    #[serde(deserialize_with = "values::count")]
    pub free_inodes_min: usize,
    /// Octets that deliveries leave free on each file system of the mail: what does not fit waits in the spool. Not set: half of `free_bytes_min`.
    #[serde(deserialize_with = "some_bytes")]
    pub mail_free_bytes_min: Option<u64>,
    /// As `mail_free_bytes_min`, of inodes. Not set: half of `free_inodes_min`.
    #[serde(deserialize_with = "some_count")]
    pub mail_free_inodes_min: Option<u64>,
    /// Octets that may wait for one mailbox that cannot be written to; beyond, its mail is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub mailbox_pending_bytes: u64,
    /// Octets that may wait for all such mailboxes together, and for mail file systems that do not answer; beyond, mail for any of them is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub pending_bytes: u64,
    /// Octets received after which the mailboxes are made durable and the files of the ring used again.
    #[serde(deserialize_with = "values::bytes")]
    pub checkpoint_bytes: u64,
    /// Seconds after which the same is done if anything was received at all.
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
    /// Fills in what is not set and depends on other keys.
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

    /// Finds what cannot be meant.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            Self::NAME,
            &[
                // A record is at most a body that is kept in memory, with its envelope, and has to fit into one segment.
                ("spool_segment_bytes", self.spool_segment_bytes, 4 << 20, 1 << 30),
                // One in use, one that only a checkpoint may take, and one to move on to.
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
        let interval = Duration::from_secs(storage.checkpoint_secs);
        let mut local = Self {
            pending_bytes_max: storage.mailbox_pending_bytes,
            pending_bytes_max_all: storage.pending_bytes,
            sync_bytes: storage.checkpoint_bytes,
            sync_interval: interval,
            free_bytes_min: storage.mail_free_bytes_min.unwrap_or(storage.free_bytes_min / 2),
            free_inodes_min: storage.mail_free_inodes_min.unwrap_or(storage.free_inodes_min as u64 / 2),
            ..Self::new(&storage.spool, &storage.mail)
        };
        let spool = &mut local.spool;
        (spool.ring.segment_bytes, spool.ring.max_segments) = (storage.spool_segment_bytes, storage.spool_segments);
        (spool.checkpoint_bytes, spool.checkpoint_every) = (storage.checkpoint_bytes, interval);
        (spool.free_bytes_min, spool.free_inodes_min) = (storage.free_bytes_min, storage.free_inodes_min as u64);
        local
    }
}

/// Of a key that need not be set.
fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::bytes(deserializer).map(Some)
}

/// Like [`some_bytes`], of a count.
fn some_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::count(deserializer).map(Some)
}

/// The spool writes whole blocks.
const BLOCK: u64 = 4096;
