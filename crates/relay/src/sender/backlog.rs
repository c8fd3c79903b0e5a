//! Delivery before intake: measures how far the relay lags with sendable mail.
//!
//! A message's lag is the volume of mail that arrived while it waited for its first attempt, as a share of the memory
//! for messages. At 1 its body has left memory and must be read back. Only messages that a connection takes are
//! counted. So mail that waits for its time, for an operator or for an unreachable host does not count, nor does a site
//! delayed by its limits. Of several sites, the one with the largest lag does not count either: one slow destination,
//! or a route that just came back, must not slow intake for others.

use std::time::Duration;

use tokio::time::Instant;

/// Recent work of a site's connections; older work counts less.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backlog {
    messages: f32,
    /// Sum of the messages' lags.
    behind: f32,
    /// Checks since the last message.
    looks: u32,
}

impl Backlog {
    /// Counts a first attempt with its lag.
    pub fn add(&mut self, behind: f32) {
        self.messages += 1.0;
        self.behind += behind;
    }

    /// Adds the work that `other` collected since its last look.
    pub fn add_all(&mut self, other: Backlog) {
        if other.messages > 0.0 {
            self.messages += other.messages;
            self.behind += other.behind;
            self.looks = 0;
        }
    }

    /// Returns the recent work; half of it remains for the next look, so it decays quickly.
    pub fn look(&mut self) -> Backlog {
        let now = *self;
        self.looks += 1;
        (self.messages, self.behind) =
            if self.looks > LOOKS { (0.0, 0.0) } else { (now.messages / 2.0, now.behind / 2.0) };
        now
    }
}

/// The queue's pressure on intake, 0 to 1; it rises from half of the memory on.
pub(super) fn level_of(sites: impl Iterator<Item = Backlog>) -> f32 {
    let mut all = Backlog::default();
    let mut worst = Backlog::default();
    let mut count = 0;
    for site in sites.filter(|site| site.messages > 0.0) {
        count += 1;
        all.messages += site.messages;
        all.behind += site.behind;
        if site.behind >= worst.behind {
            worst = site;
        }
    }
    let (messages, behind) = match count {
        0 => return 0.0,
        1 => (all.messages, all.behind),
        _ => (all.messages - worst.messages, all.behind - worst.behind),
    };
    (2.0 * behind / messages - 1.0).clamp(0.0, 1.0)
}

/// Decides when the level is checked.
pub(super) struct BacklogWatch {
    looked: Instant,
    level: f32,
}

impl Default for BacklogWatch {
    fn default() -> Self {
        BacklogWatch { looked: Instant::now(), level: 0.0 }
    }
}

impl BacklogWatch {
    /// Checks the level every [`LOOK_EVERY`]; returns it if it has changed. Call it often.
    pub fn look(&mut self, level_at: impl FnOnce(Instant) -> f32) -> Option<f32> {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK_EVERY {
            return None;
        }
        self.looked = now;
        let level = level_at(now);
        (level != std::mem::replace(&mut self.level, level)).then_some(level)
    }
}

/// Interval of checks of the level.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks without a message after which a site no longer counts: two seconds.
const LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// A site with `messages`, each with the same lag.
    fn site(messages: u32, behind: f32) -> Backlog {
        let mut site = Backlog::default();
        (0..messages).for_each(|_| site.add(behind));
        site
    }

    #[test]
    fn a_relay_slows_intake_from_half_of_its_memory_on() {
        assert_eq!(level_of([].into_iter()), 0.0);
        for count in [1, 2, 50] {
            let level = |behind| level_of(std::iter::repeat_n(site(10, behind), count));
            assert_eq!((level(0.0), level(0.5), level(0.75), level(1.0)), (0.0, 0.0, 0.5, 1.0), "{count} sites");
        }
    }

    #[test]
    fn one_site_does_not_slow_what_goes_elsewhere() {
        assert_eq!(level_of([site(1000, 1.0), site(1, 0.0)].into_iter()), 0.0);
        assert_eq!(level_of([site(1, 0.1), site(5, 1.0), site(0, 0.0), site(3, 0.0)].into_iter()), 0.0);
        // Several of them are most of what is sent.
        assert_eq!(level_of([site(500, 1.0), site(500, 1.0), site(1, 1.0)].into_iter()), 1.0);
        // A part that lags is no reason.
        assert_eq!(level_of([site(50, 1.0), site(50, 1.0), site(100, 0.0)].into_iter()), 0.0);
    }

    #[test]
    fn what_is_long_ago_is_forgotten_and_what_is_new_counts_more() {
        let mut state = Backlog::default();
        state.add_all(site(8, 1.0));
        state.look();
        state.add_all(site(8, 0.25));
        let now = state.look();
        assert_eq!((now.messages, now.behind), (12.0, 6.0));
        state.add_all(Backlog::default());
        let left: Vec<bool> = (0..2 * LOOKS).map(|_| state.look().messages > 0.0).collect();
        assert_eq!(left.iter().filter(|left| **left).count() as u32, LOOKS);
    }
}
