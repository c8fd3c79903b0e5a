//! The pause of intake before each message, so that making room keeps pace.
//!
//! Pressure comes from the ring, once the keeper must pack to make room, and from the queue of mail for other hosts,
//! once sendable mail waits for long. No mail is refused for it, and no pause exceeds [`PAUSE_MAX`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The pauses of intake requested by a spool and its queue. Reading them takes no lock.
#[derive(Debug)]
pub struct Pressure {
    /// Bytes of the ring in use, as the ring counts them.
    used: Arc<AtomicU64>,
    /// Bytes of the ring that mail may use now.
    usable: AtomicU64,
    queue: AtomicU32,
}

impl Pressure {
    pub(crate) fn new(used: Arc<AtomicU64>, usable: u64) -> Self {
        Pressure { used, usable: usable.into(), queue: AtomicU32::new(0) }
    }

    pub(crate) fn set_usable(&self, bytes: u64) {
        self.usable.store(bytes, Ordering::Relaxed);
    }

    /// Sets the queue's pressure: 0 for none, 1 for the longest pause.
    pub fn set_queue(&self, level: f32) {
        self.queue.store(level.to_bits(), Ordering::Relaxed);
    }

    /// The pause of intake before a message. The queue's part applies only to messages for other hosts (`queued`).
    pub fn pause(&self, queued: bool) -> Duration {
        let ring = pause_of_ring(self.used.load(Ordering::Relaxed), self.usable.load(Ordering::Relaxed));
        if queued { ring.max(pause_at(f32::from_bits(self.queue.load(Ordering::Relaxed)))) } else { ring }
    }
}

/// Pressure starts at three quarters. The keeper packs from five eighths on, so a queue of deferred mail alone keeps
/// the ring below that.
fn pause_of_ring(used: u64, usable: u64) -> Duration {
    let from = usable / 4 * 3;
    if used <= from {
        return Duration::ZERO;
    }
    pause_at((used - from) as f32 / usable.saturating_sub(from).max(1) as f32)
}

/// The third power of `level`: almost nothing at first, so that a burst is not slowed, and enough near the end to slow
/// thousands of connections.
fn pause_at(level: f32) -> Duration {
    // NaN gives no pause, too.
    if level > 0.0 { PAUSE_MAX.mul_f32(level.min(1.0).powi(3)) } else { Duration::ZERO }
}

/// The longest pause before a message.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn pressure(used: u64) -> Pressure {
        Pressure::new(Arc::new(used.into()), 4 * GIB)
    }

    #[test]
    fn pauses_grow_from_three_quarters_full_up_to_a_second() {
        assert_eq!(pressure(3 * GIB).pause(false), Duration::ZERO);
        assert!(pressure(3 * GIB + GIB / 8).pause(false) < Duration::from_millis(3), "a wave is not felt");
        assert_eq!(pressure(3 * GIB + GIB / 2).pause(false), PAUSE_MAX / 8);
        for full in [4 * GIB, 5 * GIB, u64::MAX] {
            assert_eq!(pressure(full).pause(false), PAUSE_MAX);
        }
    }

    #[test]
    fn a_fuller_ring_never_makes_a_shorter_pause() {
        let steps = || (0..=64).map(|part| part * GIB / 16).chain([1, u64::MAX]);
        for one in steps() {
            for other in steps().filter(|other| *other >= one) {
                for fixed in steps() {
                    assert!(pause_of_ring(one, fixed) <= pause_of_ring(other, fixed), "{one} {other} of {fixed}");
                    assert!(pause_of_ring(fixed, one) >= pause_of_ring(fixed, other), "{fixed} of {one} {other}");
                }
                assert!(pause_of_ring(one, other) <= PAUSE_MAX);
            }
        }
    }

    #[test]
    fn the_queue_slows_queue_mail_alone_and_the_longer_pause_counts() {
        let pressure = pressure(0);
        pressure.set_queue(0.5);
        assert_eq!((pressure.pause(true), pressure.pause(false)), (PAUSE_MAX / 8, Duration::ZERO));
        pressure.used.store(4 * GIB, Ordering::Relaxed);
        assert_eq!((pressure.pause(true), pressure.pause(false)), (PAUSE_MAX, PAUSE_MAX));
        for (level, pause) in [(7.0, PAUSE_MAX), (-1.0, Duration::ZERO), (f32::NAN, Duration::ZERO)] {
            pressure.used.store(0, Ordering::Relaxed);
            pressure.set_queue(level);
            assert_eq!(pressure.pause(true), pause, "{level}");
        }
    }
}
