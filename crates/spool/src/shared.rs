//! State that the spool and its threads share.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::Lsn;

use crate::Config;
use crate::bodies::Bodies;
use crate::checkpoint::{Checkpoint, CheckpointFiles};
use crate::core::Core;
use crate::live::LiveFiles;
use crate::lsn_set::LsnSet;
use crate::pack::PackCache;
use crate::pressure::Pressure;
use crate::snapshots::Snapshots;
use crate::store::Store;

pub(crate) struct Shared {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub core: Arc<Core>,
    pub bodies: Arc<Bodies>,
    pub snapshots: Snapshots,
    pub packs: PackCache,
    pub dir: PathBuf,
    /// Locked while a checkpoint or a pack is made: one at a time.
    pub work: Mutex<Work>,
    pub is_short_of_space: AtomicBool,
    /// Batches with damaged front fields: each is reported once.
    pub lost_fronts: Mutex<BTreeSet<u64>>,
    /// Batches with lost heads: each is reported once.
    pub lost_heads: Mutex<BTreeSet<u64>>,
    pub pressure: Pressure,
    pub checkpoints: AtomicU64,
    pub checkpoints_failed: AtomicU64,
    pub checkpoint_since: Mutex<Option<Instant>>,
    // Held for the lock on the directory.
    pub _watch: posthaste_fsops::DeviceWatch,
    pub _lock: posthaste_fsops::FileLock,
}

/// State used by one thread at a time.
pub(crate) struct Work {
    pub files: CheckpointFiles,
    pub live: LiveFiles,
    /// Counter of the last attempt.
    pub counter: u64,
    /// The first needed segment of the ring at the last attempt: all earlier ones have been free since.
    pub ring_low: u64,
    /// Like [`ring_low`](Self::ring_low), of the last durable checkpoint.
    pub durable_ring_low: u64,
    /// Records unneeded by the last durable checkpoint: the next one forgets them.
    pub unneeded: LsnSet,
    /// Damaged records of packs, by pack. A pack is not merged while one of its damaged records is needed, or until a
    /// restart.
    pub damaged_packs: HashMap<u64, Vec<Lsn>>,
}

impl Work {
    /// The state of work after `checkpoint` became durable.
    pub fn after(checkpoint: &Checkpoint, files: CheckpointFiles, live: LiveFiles) -> Self {
        let &Checkpoint { counter, ring_low, .. } = checkpoint;
        Self {
            files,
            live,
            counter,
            ring_low,
            durable_ring_low: ring_low,
            unneeded: LsnSet::default(),
            damaged_packs: HashMap::new(),
        }
    }
}

pub(crate) fn moves_too_often() -> std::io::Error {
    std::io::Error::other("it moves too often")
}

/// Maximum moves of a batch during one read: from the ring into a pack, and once with each merge. No reader is slow
/// enough to see more.
pub(crate) const MOVES_MAX: usize = 8;
