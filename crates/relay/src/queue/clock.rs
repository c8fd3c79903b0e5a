//! The queue's own time.

use std::time::Duration;

/// Seconds of the queue's clock: like Unix seconds, but never set.
pub type Secs = u32;

/// Gives the queue's time from two clocks: the wall's at an opening, the monotonic one from then on.
///
/// While it runs, setting the wall's clock has no effect. At an opening it goes on behind the last time that the queue has recorded: a wall's clock that was set
/// back does not freeze the queue, and one that was set forward ages mail by [`STOPPED_SECS_MAX`] at most.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    at_start: Secs,
    start: Duration,
}

/// An opening counts at most so much time as spent without the server: a day.
pub const STOPPED_SECS_MAX: Secs = 86_400;

impl Clock {
    /// The clock of an opening. `recorded` is what the queue has [seen](super::Queue::recorded), 0 if nothing; `wall` is in Unix seconds; `mono` is the monotonic
    /// clock now, since any moment.
    pub fn start(recorded: Secs, wall: u64, mono: Duration) -> Self {
        let wall = Secs::try_from(wall).unwrap_or(Secs::MAX);
        let at_start = match recorded {
            0 => wall,
            _ => wall.clamp(recorded, recorded.saturating_add(STOPPED_SECS_MAX)),
        };
        Clock { at_start, start: mono }
    }

    /// The queue's time at `mono` of the same monotonic clock.
    pub fn now(&self, mono: Duration) -> Secs {
        let since = mono.saturating_sub(self.start).as_secs();
        self.at_start.saturating_add(Secs::try_from(since).unwrap_or(Secs::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_the_wall_clock_neither_expire_nor_freeze() {
        let start = |recorded, wall| Clock::start(recorded, wall, Duration::from_secs(70));
        let now = |recorded, wall| start(recorded, wall).now(Duration::from_secs(75));
        assert_eq!(now(0, 1_000_000), 1_000_005, "an empty queue takes the wall's time");
        assert_eq!(now(900_000, 900_100), 900_105, "a short stop counts");
        assert_eq!(now(900_000, 5), 900_005, "a clock set back does not freeze");
        assert_eq!(now(900_000, 4_000_000_000), 900_000 + STOPPED_SECS_MAX + 5, "one set forward expires nothing");
        assert_eq!(now(900_000, u64::MAX), 900_000 + STOPPED_SECS_MAX + 5);
    }
}
