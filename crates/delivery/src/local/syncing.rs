//! Schedule and results of a mount's syncs. Bookkeeping only: reads no clock and touches no disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_spool::Lsn;
use posthaste_units::BackOff;

/// Schedule and results of a mount's syncs.
pub(super) struct Syncing {
    pub wanted: bool,
    /// Messages with entries up to this LSN must be rewritten: the spool needs the space.
    pub through: Lsn,
    /// Bytes that became visible since the last sync began.
    pub bytes: u64,
    pub last: Instant,
    pub running_since: Option<Instant>,
    /// Entries applied since everything was last synced, and bytes that became visible since then.
    pub entries: usize,
    pub lagging_bytes: u64,
    /// The last LSN applied at the end of the last round.
    pub seen: Lsn,
    /// Rounds requested, and rounds ended.
    pub asked: u64,
    pub ended: u64,
    /// Consecutive failed rounds.
    pub failures: u32,
    /// The error of the last sync, if it failed.
    pub error: Option<Arc<str>>,
    /// The spool's refusal in the last round, if any.
    pub refused: Option<Arc<str>>,
}

impl Syncing {
    pub fn new(now: Instant) -> Self {
        Syncing {
            wanted: false,
            through: Lsn::ZERO,
            bytes: 0,
            last: now,
            running_since: None,
            entries: 0,
            lagging_bytes: 0,
            seen: Lsn::ZERO,
            asked: 0,
            ended: 0,
            failures: 0,
            error: None,
            refused: None,
        }
    }

    /// Requests a sync. A failed sync has everything rewritten: while it fails only the clock triggers it.
    pub fn want_if(&mut self, wanted: bool) {
        self.wanted |= wanted && self.failures == 0;
    }

    pub fn want_through(&mut self, through: Lsn) {
        self.through = self.through.max(through);
        self.want_if(true);
    }

    pub fn saw_entry(&mut self) {
        self.entries += 1;
    }

    pub fn made_visible(&mut self, bytes: u64, bytes_max: u64) {
        self.bytes += bytes;
        self.lagging_bytes += bytes;
        self.want_if(self.bytes >= bytes_max);
    }

    /// True if few entries have come since the `messages` waiting ones: the spool keeps all of them until these are
    /// rewritten.
    pub fn is_little(&self, messages: usize) -> bool {
        self.entries < CARRY_ENTRIES + CARRY_RATIO * messages
            && self.lagging_bytes < CARRY_BYTES + CARRY_RATIO as u64 * ENTRY_BYTES * messages as u64
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// True if visible mail cannot be made durable: the last sync failed, or one hangs.
    pub fn is_in_trouble(&self, now: Instant) -> bool {
        let hangs = |since: Instant| now.saturating_duration_since(since) >= SYNC_HANGS;
        self.failures > 0 || self.running_since.is_some_and(hangs)
    }

    /// True if a sync is due, even if nothing was visible: the spool may then release applied entries.
    pub fn is_due(&mut self, now: Instant, interval: Duration) -> bool {
        let pause = BackOff::new(interval, interval.saturating_mul(PAUSE_RATIO_MAX)).after(self.failures + 1);
        self.wanted |= now.saturating_duration_since(self.last) >= pause;
        self.wanted
    }

    pub fn is_running(&self) -> bool {
        self.running_since.is_some()
    }

    /// Start of the sync in progress.
    pub fn running_since(&self) -> Option<Instant> {
        self.running_since
    }
}

/// Time of a sync after which mail for its mount counts as waiting.
const SYNC_HANGS: Duration = Duration::from_secs(60);
/// Longest pause between failing syncs, in intervals.
const PAUSE_RATIO_MAX: u32 = 16;
/// Base number of entries that may be applied before waiting messages are rewritten; each waiting message allows as
/// many more.
const CARRY_ENTRIES: usize = 4096;
const CARRY_RATIO: usize = 8;
/// Like [`CARRY_ENTRIES`], in bytes that became visible.
const CARRY_BYTES: u64 = 64 << 20;
/// Bytes that a visible message counts for the next sync in addition to its body.
pub(super) const ENTRY_BYTES: u64 = 1024;
