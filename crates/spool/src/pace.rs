//! Packing yields to appends.

use std::time::{Duration, Instant};

use crate::shared::Shared;

/// The pace of one pack. Each piece is followed by an equally long pause, so that commits get half of the device and of
/// a processor. There is no pause without commits, or while the ring is short of room.
pub(crate) struct Pace<'a> {
    shared: &'a Shared,
    begun: Instant,
    bytes: u64,
    syncs: u64,
    pause_max: Duration,
}

impl<'a> Pace<'a> {
    pub fn new(shared: &'a Shared) -> Self {
        let syncs = shared.store.stats().syncs;
        Pace { shared, begun: Instant::now(), bytes: 0, syncs, pause_max: PAUSE_MAX }
    }

    /// Sets the pack's size so far, and may pause.
    pub fn step(&mut self, bytes: u64) {
        if bytes < self.bytes + PIECE_BYTES {
            return;
        }
        let stats = self.shared.store.stats();
        let is_short = stats.space_used * 8 >= stats.space_max * 7;
        if stats.syncs > self.syncs && !is_short {
            self.shared.core.bell.pause(self.begun.elapsed().min(self.pause_max));
        }
        (self.begun, self.bytes, self.syncs) = (Instant::now(), bytes, stats.syncs);
    }

    /// Adds `took` to the time of the piece, and so to the pause after it, up to `pause_max`.
    #[cfg(test)]
    pub fn behind(&mut self, took: Duration, pause_max: Duration) {
        (self.begun, self.pause_max) = (self.begun - took, pause_max);
    }
}

/// Bytes of one write of a pack.
const PIECE_BYTES: u64 = 1 << 20;
/// Maximum pause. A slower device is busy with other work; even so a pack of 256 MiB is made within half a minute.
const PAUSE_MAX: Duration = Duration::from_millis(100);
