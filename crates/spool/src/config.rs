//! The settings of a spool in files.

use std::time::Duration;

use posthaste_watch::Watch;

use crate::events::Events;
use crate::{Lsn, StoreKind};

/// Durability of a kind on an LSM tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LsmDurability {
    /// A group of batches is synced before its callers are told.
    #[default]
    Synced,
    /// A group was passed to the kernel: a power cut loses it. For comparison with servers that do so; no server's
    /// configuration can select it.
    None,
}

/// Settings of a [`FileSpool`](crate::FileSpool).
#[derive(Debug, Clone)]
pub struct Config {
    /// Kind of the store. A spool of another kind is refused.
    pub kind: StoreKind,
    /// Durability of kinds on an LSM tree. The others always sync.
    pub lsm_durability: LsmDurability,
    /// The ring's segments and limits; other kinds use its limits of batches and of waiting bytes. Its own events are
    /// passed on as [`SpoolEvent`](crate::SpoolEvent)s.
    pub ring: posthaste_ring::Config,
    /// Longest time between checkpoints, if anything has changed.
    pub checkpoint_every: Duration,
    /// A checkpoint is also made after this many bytes of heads and bodies.
    pub checkpoint_bytes: u64,
    /// A longer checkpoint is reported as an event.
    pub checkpoint_slow: Duration,
    /// Target size of a pack. A pack has at least one record, so it may be larger.
    pub pack_bytes: u64,
    /// Batches with a body are refused while the file system has less than this free, and large bodies that would take it below.
    pub free_bytes_min: u64,
    /// Like [`free_bytes_min`](Self::free_bytes_min), for inodes; ignored if the file system does not count them.
    pub free_inodes_min: u64,
    /// Starts a thread for checkpoints and packs. Without it the owner calls `checkpoint` and the like.
    pub keeper: bool,
    /// Time between two scrubs of the keeper: it reads all stored data and verifies the checksums. Damage is reported as an event.
    pub scrub_every: Duration,
    /// Limit of a scrub in bytes a second; 0: no scrub.
    pub scrub_bytes_per_sec: u64,
    /// The highest LSN of this spool that its owner has recorded elsewhere. If this is another spool, whose LSNs end
    /// below it, new ones begin above it, and above all that the first one may have assigned since. Zero if unknown.
    pub lsns_above: Lsn,
    /// Callback for failures.
    pub events: Events,
    /// Watches the spool's workers, also by [`Spool::look_for_stuck`](crate::Spool::look_for_stuck). Keep a clone to
    /// check it while consumers are being opened.
    pub watch: Watch,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            kind: StoreKind::default(),
            lsm_durability: LsmDurability::default(),
            ring: posthaste_ring::Config::default(),
            checkpoint_every: Duration::from_secs(30),
            checkpoint_bytes: 256 << 20,
            checkpoint_slow: Duration::from_secs(10),
            pack_bytes: 256 << 20,
            free_bytes_min: 64 << 20,
            free_inodes_min: 1000,
            keeper: true,
            scrub_every: Duration::from_secs(86_400),
            scrub_bytes_per_sec: 8 << 20,
            lsns_above: Lsn::ZERO,
            events: Events::default(),
            watch: Watch::default(),
        }
    }
}

/// Bytes available for records with a body in a ring of `segments`; the last segment is for those without.
pub(crate) fn usable_bytes(segments: usize, segment_bytes: u64) -> u64 {
    (segments.max(3) as u64 - 1).saturating_mul(segment_bytes)
}
