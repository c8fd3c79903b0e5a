//! The settings of a spool in files.

use std::time::Duration;

use posthaste_watch::Watch;

use crate::events::Events;
use crate::{Lsn, StoreKind};

/// Durability of a kind on an LSM tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LsmDurability {
    /// Each group of batches is synced before its callers get a result.
    #[default]
    Synced,
    /// Each group is only passed to the kernel: a power cut loses it. For comparison with servers that do the same; no
    /// server's configuration can select it.
    None,
}

/// Settings of a [`FileSpool`](crate::FileSpool).
#[derive(Debug, Clone)]
pub struct Config {
    /// Kind of the store. A spool of another kind is refused.
    pub kind: StoreKind,
    /// Durability of kinds on an LSM tree. All other kinds always sync.
    pub lsm_durability: LsmDurability,
    /// The ring's segments and limits; other kinds use its limits of batches and of waiting bytes. Its own events are
    /// passed on as [`SpoolEvent`](crate::SpoolEvent)s.
    pub ring: posthaste_ring::Config,
    /// Longest time between checkpoints, if anything has changed.
    pub checkpoint_every: Duration,
    /// Bytes of heads and bodies after which a checkpoint is made.
    pub checkpoint_bytes: u64,
    /// Duration above which a checkpoint is reported as an event.
    pub checkpoint_slow: Duration,
    /// Target size of a pack. A pack has at least one record, so it may be larger.
    pub pack_bytes: u64,
    /// Floor of free bytes on the file system: below it batches with a body are refused. Large bodies that would fall
    /// below it are refused, too.
    pub free_bytes_min: u64,
    /// Like [`free_bytes_min`](Self::free_bytes_min), for inodes; ignored if the file system does not count them.
    pub free_inodes_min: u64,
    /// Starts a thread for checkpoints and packs. Without it the owner must call `checkpoint`, `pack_oldest` and
    /// `clean_packs`.
    pub keeper: bool,
    /// Interval of background scrubs: each reads all stored data and verifies the checksums. Damage is reported as an
    /// event.
    pub scrub_every: Duration,
    /// Maximum read rate of a scrub in bytes per second; 0 disables scrubs.
    pub scrub_bytes_per_sec: u64,
    /// The highest LSN of this spool that its owner has recorded elsewhere; 0 if unknown. If the directory holds
    /// another spool, whose LSNs end below it, new LSNs begin above it and above all LSNs that the first spool may have
    /// assigned since.
    pub lsns_above: Lsn,
    /// Receives failures and other events.
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
