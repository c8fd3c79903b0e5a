//! Counters of the last minute, hour and day, as rates.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Counters of a server since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages made durable.
    pub received: u64,
    /// Recipients that got their message: in a mailbox, a program or another host.
    pub delivered: u64,
    /// Senders, recipients and messages that were refused.
    pub refused: u64,
    /// Attempts that failed temporarily.
    pub deferred: u64,
    /// Messages signed with DKIM.
    pub signed: u64,
    /// Messages left unsigned because a key of their domain was not usable.
    pub not_signed: u64,
    /// Results of the checks of strangers' mail.
    pub checks: CheckCounts,
}

/// Counts by method and result, in the order of [`CHECK_METHODS`] and [`CHECK_RESULTS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckCounts(pub [[u64; CHECK_RESULTS.len()]; CHECK_METHODS.len()]);

/// Methods by which strangers' mail is checked.
pub const CHECK_METHODS: [&str; 3] = ["spf", "dkim", "dmarc"];
/// Results of a check, in the words of RFC 8601.
pub const CHECK_RESULTS: [&str; 7] = ["pass", "fail", "softfail", "neutral", "none", "temperror", "permerror"];

/// Rates, a value for each step of a span, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub received: Vec<f64>,
    pub delivered: Vec<f64>,
    pub refused: Vec<f64>,
    pub deferred: Vec<f64>,
}

/// Rates of each span.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct AllRates {
    /// Rates of the last minute, by seconds.
    pub minute: Rates,
    /// Rates of the last hour, by minutes.
    pub hour: Rates,
    /// Rates of the last day, by quarters of an hour.
    pub day: Rates,
}

/// The counters of each second of the last minute, each minute of the last hour, and each quarter of the last day.
#[derive(Debug)]
pub(crate) struct History(Mutex<[Series; 3]>);

/// Samples at least one step apart.
#[derive(Debug)]
struct Series {
    step: Duration,
    samples_max: usize,
    samples: VecDeque<(Instant, Counters)>,
}

impl Default for History {
    fn default() -> Self {
        let series = |step, steps: usize| Series {
            step: Duration::from_secs(step),
            // With the one before the first step.
            samples_max: steps + 1,
            samples: VecDeque::new(),
        };
        // A look may come a little early; each second has one.
        Self(Mutex::new([series(0, 60), series(60, 60), series(15 * 60, 96)]))
    }
}

impl History {
    /// Adds a sample of the counters. Called once a second.
    pub fn add(&self, at: Instant, counters: Counters) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter_mut().for_each(|series| series.add(at, counters));
    }

    /// Rates of the last minute.
    pub fn rates(&self) -> Rates {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[0].rates()
    }

    /// Rates of each span.
    pub fn all(&self) -> AllRates {
        let [minute, hour, day] = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        AllRates { minute: minute.rates(), hour: hour.rates(), day: day.rates() }
    }
}

impl Series {
    fn add(&mut self, at: Instant, counters: Counters) {
        if self.samples.back().is_some_and(|(last, _)| at.saturating_duration_since(*last) < self.step) {
            return;
        }
        if self.samples.len() == self.samples_max {
            self.samples.pop_front();
        }
        self.samples.push_back((at, counters));
    }

    fn rates(&self) -> Rates {
        let rates = |of: fn(&Counters) -> u64| {
            let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
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

    #[test]
    fn an_hour_has_minutes_and_a_day_has_quarters() {
        let (history, begun) = (History::default(), Instant::now());
        // One a second for half a day, then ten a second.
        let half = 12 * 3600;
        let received = |secs: u64| secs + 9 * secs.saturating_sub(half);
        for secs in 0..=2 * half + 3600 {
            let counters = Counters { received: received(secs), ..Counters::default() };
            history.add(begun + Duration::from_secs(secs), counters);
        }
        let AllRates { minute, hour, day } = history.all();
        assert_eq!((minute.received, hour.received), (vec![10.0; 60], vec![10.0; 60]));
        // The day ends an hour after the second half.
        assert_eq!(day.received, [vec![1.0; 44], vec![10.0; 52]].concat());
        assert_eq!(history.rates().received.len(), 60);
    }
}
