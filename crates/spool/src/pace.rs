//! Packing gives way to those who append.

use std::time::{Duration, Instant};

use crate::shared::Shared;

/// The pace of one pack: after each piece a pause as long as the piece took, so that commits have half of the device and of a processor to themselves.
/// There is none while nobody commits, nor while the ring is short of room.
pub(crate) struct Pace<'a> {
    shared: &'a Shared,
    begun: Instant,
    bytes: u64,
    commits: u64,
}

impl<'a> Pace<'a> {
    pub fn new(shared: &'a Shared) -> Self {
        Pace { shared, begun: Instant::now(), bytes: 0, commits: shared.ring.stats().commits }
    }

    /// The pack has so many bytes now.
    pub fn step(&mut self, bytes: u64) {
        if bytes < self.bytes + PIECE_BYTES {
            return;
        }
        let ring = self.shared.ring.stats();
        let is_short = ring.segments_in_service * 8 >= ring.max_segments * 7;
        let pause = pause_after(self.begun.elapsed(), ring.commits > self.commits, is_short);
        self.shared.core.bell.pause(pause);
        (self.begun, self.bytes, self.commits) = (Instant::now(), bytes, ring.commits);
    }
}

fn pause_after(took: Duration, others_commit: bool, is_short: bool) -> Duration {
    if others_commit && !is_short { took.min(PAUSE_MAX) } else { Duration::ZERO }
}

/// What a pack writes at once.
const PIECE_BYTES: u64 = 1 << 20;
/// A device so slow is busy with others; a pack of 256 MiB is made within half a minute all the same.
const PAUSE_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_only_for_others_and_not_when_room_is_short() {
        let took = Duration::from_millis(3);
        assert_eq!(pause_after(took, true, false), took);
        assert_eq!(pause_after(Duration::from_secs(9), true, false), PAUSE_MAX);
        assert_eq!(pause_after(took, false, false), Duration::ZERO);
        assert_eq!(pause_after(took, true, true), Duration::ZERO);
    }
}
