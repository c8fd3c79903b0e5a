//! Back-off between failing attempts.

use std::time::Duration;

/// Pauses that double with each consecutive failure, from the first to the longest.
///
/// It reads no clock and does not sleep. A caller with its own count of failures, such as one for each message, uses
/// [`after`](Self::after).
///
/// ```
/// use std::time::Duration;
/// use posthaste_units::BackOff;
///
/// let secs = Duration::from_secs;
/// let mut back_off = BackOff::new(secs(1), secs(5));
/// assert_eq!([(); 4].map(|()| back_off.failed()), [1, 2, 4, 5].map(secs));
/// back_off.succeeded();
/// assert_eq!(back_off.failed(), secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl BackOff {
    /// A back-off with no failure so far.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        BackOff { first, longest, failures: 0 }
    }

    /// The pause after this many consecutive failures, the first being 1.
    pub fn after(&self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.saturating_sub(1).min(DOUBLINGS_MAX)).min(self.longest)
    }

    /// Counts a failure, and returns the pause after it.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures)
    }

    /// Resets the count of failures.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// True if the last attempt failed.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }
}

/// Maximum doublings: from one second this makes 68 years.
const DOUBLINGS_MAX: u32 = 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let back_off = BackOff::new(Duration::from_secs(5), Duration::from_secs(1800));
        let secs = |failures| back_off.after(failures).as_secs();
        assert_eq!([0, 1, 2, 3, 9, 10, 40, u32::MAX].map(secs), [5, 5, 10, 20, 1280, 1800, 1800, 1800]);
        let endless = BackOff::new(Duration::MAX / 2, Duration::MAX);
        assert_eq!(endless.after(u32::MAX), Duration::MAX);
    }
}
