//! Filters outdated answers. A server that has lost the lead of a stream may report an older state until it notices. So
//! an answer that contradicts an earlier one counts only after some time.

use std::time::{Duration, Instant};

/// The highest reported number: the end of a log, or the revision of a cell.
#[derive(Debug, Default)]
pub(super) struct Highest {
    number: u64,
    /// Answers have been lower since then.
    lower_since: Option<Instant>,
}

impl Highest {
    /// True if the answer is current, not outdated.
    pub fn takes(&mut self, number: u64, now: Instant) -> bool {
        if number < self.number && now.duration_since(*self.lower_since.get_or_insert(now)) < DOUBT {
            return false;
        }
        (self.number, self.lower_since) = (number, None);
        true
    }

    /// A quorum has stored this number: lower answers before were outdated.
    pub fn is_at(&mut self, number: u64) {
        if number > self.number {
            (self.number, self.lower_since) = (number, None);
        }
    }
}

/// A record that should exist and is missing.
#[derive(Debug, Default)]
pub(super) struct Missing(Option<(u64, Instant)>);

impl Missing {
    /// True if the record is certainly missing.
    pub fn takes(&mut self, position: u64, now: Instant) -> bool {
        let (at, since) = *self.0.get_or_insert((position, now));
        if at != position {
            self.0 = Some((position, now));
        }
        at == position && now.duration_since(since) >= DOUBT
    }

    /// The record exists: a later answer without it starts a new doubt.
    pub fn found(&mut self, position: u64) {
        self.0.take_if(|(at, _)| *at == position);
    }
}

/// A leader steps down within 10 s when it hears of no quorum.
const DOUBT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_number_counts_only_after_a_while() {
        let mut seen = Highest::default();
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert!(seen.takes(7, at(0)));
        assert!(!seen.takes(5, at(1)) && !seen.takes(5, at(20)));
        assert!(seen.takes(7, at(20)), "the new leader answers");
        seen.is_at(8);
        assert!(!seen.takes(7, at(21)) && !seen.takes(6, at(40)));
        assert!(seen.takes(6, at(41)) && seen.takes(6, at(42)));
        assert!(!seen.takes(5, at(50)));
        seen.is_at(7);
        assert!(!seen.takes(6, at(90)), "the doubt begins anew");
    }

    #[test]
    fn a_missing_record_counts_only_after_a_while() {
        let mut missing = Missing::default();
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert!(!missing.takes(4, at(50)) && !missing.takes(5, at(60)) && !missing.takes(5, at(79)));
        assert!(missing.takes(5, at(80)));
        missing.found(4);
        assert!(missing.takes(5, at(81)), "that is another one");
        missing.found(5);
        assert!(!missing.takes(5, at(100)) && !missing.takes(5, at(119)) && missing.takes(5, at(120)));
    }
}
