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
    /// Held while a checkpoint or a pack is made: one at a time.
    pub work: Mutex<Work>,
    pub is_short_of_space: AtomicBool,
    /// Batches whose front fields were found damaged: each is told once.
    pub lost_fronts: Mutex<BTreeSet<u64>>,
    /// Batches whose heads are lost: each is told once.
    pub lost_heads: Mutex<BTreeSet<u64>>,
    pub pressure: Pressure,
    pub checkpoints: AtomicU64,
    pub checkpoints_failed: AtomicU64,
    pub checkpoint_since: Mutex<Option<Instant>>,
    // Held for its lock.
    pub _watch: posthaste_fsops::DeviceWatch,
    pub _lock: std::fs::File,
}

/// Bytes of a ring of `segments` that records with a body may use; the last segment is for those without.
pub(crate) fn usable_bytes(segments: usize, segment_bytes: u64) -> u64 {
    (segments.max(3) as u64 - 1).saturating_mul(segment_bytes)
}

/// State that only one thread at a time may touch.
pub(crate) struct Work {
    pub files: CheckpointFiles,
    pub live: LiveFiles,
    /// Counter of the last attempt.
    pub counter: u64,
    /// The first segment of the ring that the last attempt needed: all before it have been free ever since.
    pub ring_low: u64,
    /// Like [`ring_low`](Self::ring_low), of the last one that is durable.
    pub durable_ring_low: u64,
    /// Records that the last durable checkpoint did not need: the next one forgets them.
    pub unneeded: LsnSet,
    /// Damaged records of packs, by the pack: it is not merged while one of them is needed, or until a restart.
    pub damaged_packs: HashMap<u64, Vec<Lsn>>,
}

impl Work {
    /// The state after a durable checkpoint.
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

/// A batch moves once from the ring and then with each cleaning; nobody reads so slowly as to see more of that.
pub(crate) const MOVES_MAX: usize = 8;
