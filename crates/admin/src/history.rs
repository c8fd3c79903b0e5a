//! Counters of the last minute, as rates.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

/// Counters of a server since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages made durable.
    pub received: u64,
    /// Recipients that got their message: mailboxes, programs, other hosts.
    pub delivered: u64,
    /// Senders, recipients and messages that were refused.
    pub refused: u64,
    /// Attempts that failed for now.
    pub deferred: u64,
    /// Messages that were signed.
    pub signed: u64,
    /// Messages that could not be signed, as a key of their domain could not be used.
    pub not_signed: u64,
    /// Results of the checks of strangers' mail.
    pub checks: CheckCounts,
}

/// Counts by method and result, in the order of [`CHECK_METHODS`] and [`CHECK_RESULTS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckCounts(pub [[u64; CHECK_RESULTS.len()]; CHECK_METHODS.len()]);

/// Checks of strangers' mail.
pub const CHECK_METHODS: [&str; 3] = ["spf", "dkim", "dmarc"];
/// Their results, in the words of RFC 8601.
pub const CHECK_RESULTS: [&str; 7] = ["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror"];

/// Rates of the last minute, a value for each second, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub received: Vec<f64>,
    pub delivered: Vec<f64>,
    pub refused: Vec<f64>,
    pub deferred: Vec<f64>,
}

/// The counters of each second of the last minute.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<VecDeque<(Instant, Counters)>>);

/// A minute, and the value before it.
const SAMPLES_MAX: usize = 61;

impl History {
    pub fn add(&self, at: Instant, counters: Counters) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back((at, counters));
    }

    pub fn rates(&self) -> Rates {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = |of: fn(&Counters) -> u64| {
            let pairs = samples.iter().zip(samples.iter().skip(1));
            let rate = |((before, first), (after, second)): (&(Instant, Counters), &(Instant, Counters))| {
                let secs = (*after - *before).as_secs_f64().max(0.001);
                let count = of(second).saturating_sub(of(first)) as f64;
                // One digit is enough to see.
                (count / secs * 10.0).round() / 10.0
            };
            pairs.map(rate).collect()
        };
        Rates {
            received: rates(|counters| counters.received),
            delivered: rates(|counters| counters.delivered),
            refused: rates(|counters| counters.refused),
            deferred: rates(|counters| counters.deferred),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_of_the_last_minute_and_of_the_time_that_has_passed() {
        let (history, begun) = (History::default(), Instant::now());
        assert_eq!(history.rates(), Rates::default());
        let add = |secs, received| {
            history.add(begun + Duration::from_secs(secs), Counters { received, ..Counters::default() });
        };
        add(0, 0);
        add(1, 10);
        // Late: the machine was busy.
        add(3, 30);
        assert_eq!(history.rates().received, [10.0, 10.0]);
        assert_eq!(history.rates().refused, [0.0, 0.0]);
        (4..100).for_each(|secs| add(secs, 30));
        assert_eq!(history.rates().received, [0.0; 60]);
    }
}
