//! The queue's own time.

use std::time::Duration;

/// Seconds of the queue's clock: like Unix seconds, but never set.
pub type Secs = u32;

/// Derives the queue's time from two clocks: the wall clock at an opening, the monotonic one from then on.
///
/// While it runs, setting the wall clock has no effect. An opening continues from the last time that the queue
/// recorded: a wall clock set back does not freeze the queue. One set forward ages mail by [`STOPPED_SECS_MAX`] at
/// most.
#[derive(Debug, Clone, Copy)]
pub struct QueueClock {
    /// Includes the wall clock's fraction of a second: both clocks' seconds end together.
    at_start: Duration,
    start: Duration,
}

/// Longest downtime that an opening counts: a day.
pub const STOPPED_SECS_MAX: Secs = 86_400;

impl QueueClock {
    /// The clock at an opening. `recorded`: the time [recorded](super::Queue::recorded) by the queue, 0 if none.
    /// `wall`: time since 1970. `mono`: the monotonic clock now.
    pub fn start(recorded: Secs, wall: Duration, mono: Duration) -> Self {
        let secs = Secs::try_from(wall.as_secs()).unwrap_or(Secs::MAX);
        let secs = match recorded {
            0 => secs,
            _ => secs.clamp(recorded, recorded.saturating_add(STOPPED_SECS_MAX)),
        };
        QueueClock { at_start: Duration::new(secs.into(), wall.subsec_nanos()), start: mono }
    }

    /// Seconds from the queue's time to the wall clock's, at one moment: `mono` of the same monotonic clock, `wall`
    /// since 1970. The queue decides by its own time. People see the wall clock's, which may be set meanwhile, or was
    /// wrong when the queue began.
    pub fn to_wall(&self, mono: Duration, wall: Duration) -> i64 {
        let queue = self.at_start.saturating_add(mono.saturating_sub(self.start));
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        // The two were not read at the same moment.
        millis(wall).saturating_sub(millis(queue)).saturating_add(500).div_euclid(1000)
    }

    /// The queue's time at `mono` of the same monotonic clock.
    pub fn now(&self, mono: Duration) -> Secs {
        let now = self.at_start.saturating_add(mono.saturating_sub(self.start));
        Secs::try_from(now.as_secs()).unwrap_or(Secs::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_the_wall_clock_neither_expire_nor_freeze() {
        let start = |recorded, wall| QueueClock::start(recorded, Duration::from_secs(wall), Duration::from_secs(70));
        let now = |recorded, wall| start(recorded, wall).now(Duration::from_secs(75));
        assert_eq!(now(0, 1_000_000), 1_000_005, "an empty queue takes the wall's time");
        assert_eq!(now(900_000, 900_100), 900_105, "a short stop counts");
        assert_eq!(now(900_000, 5), 900_005, "a clock set back does not freeze");
        assert_eq!(now(900_000, 4_000_000_000), 900_000 + STOPPED_SECS_MAX + 5, "one set forward expires nothing");
        assert_eq!(now(900_000, u64::MAX), 900_000 + STOPPED_SECS_MAX + 5);
    }

    #[test]
    fn wall_time_is_right_whatever_the_queue_began_with() {
        let millis = Duration::from_millis;
        let began = 1_790_000_000_700;
        for recorded in [0, 1_789_999_999, 5000, 2_000_000_000] {
            let clock = QueueClock::start(recorded, millis(began), millis(70_300));
            for later in [0, 200, 400, 900, 86_400_000] {
                let mono = millis(70_300 + later);
                let wall = millis(began + later);
                let shown = i64::from(clock.now(mono)) + clock.to_wall(mono, wall);
                let right = i64::try_from((began + later) / 1000).unwrap();
                assert_eq!(shown, right, "{recorded} {later}");
                assert_eq!(clock.to_wall(mono, wall), clock.to_wall(millis(70_300), millis(began)));
                // A moment passes between the reads of the two clocks.
                assert_eq!(clock.to_wall(mono, wall + millis(3)), clock.to_wall(mono + millis(3), wall), "{recorded}");
            }
            // The wall clock is set while the queue runs.
            let set = clock.to_wall(millis(71_300), millis(1_800_000_001_300));
            assert!((i64::from(clock.now(millis(71_300))) + set - 1_800_000_001).abs() <= 1);
        }
    }
}
