//! A recorded run: its plan, the requests to the disk, and the possible failures of a recovery.

use std::path::Path;
use std::thread::{ScopedJoinHandle, sleep};
use std::time::Duration;

use serde::Serialize;

use crate::disk::Disk;
use crate::load::{Load, Sent, message_of};
use crate::log::{Event, Recording};
use crate::mount::FileSystem;

/// Size and kind of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    pub file_system: FileSystem,
    pub messages: u64,
    pub connections: usize,
    pub cuts: u64,
    pub seed: u64,
    /// Bytes that the disk writes atomically: 512 or 4096.
    pub sector: usize,
    /// True if the server relays, instead of delivering into mailboxes.
    pub is_relayed: bool,
}

/// A recorded run, with the mail that must be found.
pub struct Recorded {
    pub recording: Recording,
    pub load: Load,
    pub waiting: Waiting,
    /// See [`Plan::is_relayed`].
    pub is_relayed: bool,
}

impl Recorded {
    /// A saved recording of a run with this seed.
    pub fn of(recording: Recording, seed: u64) -> Self {
        let is_relayed = recording.events.iter().any(|event| matches!(event, Event::Taken(_)));
        Recorded { recording, load: Load::mixed(seed), waiting: Waiting::default(), is_relayed }
    }
}

/// Files of the spool beside its ring, in the recorded run, while one mailbox could not be written to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Waiting {
    pub packs: u64,
    pub large_bodies: u64,
}

impl Waiting {
    pub(crate) fn of(spool: &Path) -> Self {
        let count = |dir: &str, ending: &str| {
            let entries = std::fs::read_dir(spool.join(dir)).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending)).count() as u64
        };
        Waiting { packs: count("packs", ".pack"), large_bodies: count("bodies", ".body") }
    }
}

/// The reason why there was nothing to account for.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The file system did not survive, which says nothing about the server.
    #[error("{0}")]
    Unmountable(String),
    /// The server did not start or end, or changed something that it should not.
    #[error("{0}")]
    Server(String),
}

/// Waits until a message from `number` on is acknowledged, or the load has ended without one.
pub(crate) fn wait_for_mark(disk: &Disk, number: u64, sending: &ScopedJoinHandle<'_, Sent>) {
    while disk.last_mark().is_none_or(|last| message_of(last) < number) && !sending.is_finished() {
        sleep(Duration::from_millis(1));
    }
}
