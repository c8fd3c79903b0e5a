//! Warm-up of new addresses: a bound of messages per day, which grows from day to day.

use std::sync::Mutex;

use posthaste_units::{Bucket, Rate};

use posthaste_queue::Secs;

/// The limits of a source's first days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    /// The first day, in days since 1970 (UTC).
    pub since: u32,
    /// Messages on the first day, the second and so on. After the last day there is no limit.
    pub per_day: Vec<u32>,
}

impl WarmUp {
    /// The rate on a day; `None`: no limit any more. Before the first day, the rate of that day.
    fn rate(&self, day: u32) -> Option<Rate> {
        let per_day = *self.per_day.get(day.saturating_sub(self.since) as usize)?;
        Rate::new(per_day, DAY_SECS, (per_day / 24).clamp(1, BURST_MAX)).ok()
    }
}

/// A warm-up in force: a day's messages at most, spread over the day, with bursts of an hour's share.
#[derive(Debug)]
pub(super) struct Warming {
    settings: WarmUp,
    state: Mutex<(u32, Option<Bucket>)>,
}

impl Warming {
    /// Starts empty: a restart allows no extra messages.
    pub fn new(settings: WarmUp) -> Self {
        Warming { settings, state: Mutex::new((0, None)) }
    }

    /// Takes one message. Exact: on false nothing may be sent.
    pub fn take(&self, now: Secs) -> bool {
        self.with(now, |bucket, nanos| bucket.take(1, nanos).is_ok())
    }

    /// True if resuming after a refusal is worthwhile: two seconds' worth of messages is available, at least one.
    pub fn is_worth_it(&self, now: Secs) -> bool {
        self.with(now, |bucket, nanos| {
            let rate = bucket.rate();
            let wanted = (2_000_000_000 / rate.interval()).clamp(1, u64::from(rate.burst()));
            u64::from(bucket.available(nanos)) >= wanted
        })
    }

    fn with(&self, now: Secs, use_bucket: impl FnOnce(&Bucket, u64) -> bool) -> bool {
        let day = now / DAY_SECS;
        let nanos = u64::from(now) * 1_000_000_000;
        let Some(rate) = self.settings.rate(day) else { return true };
        let mut state = self.state.lock().expect("a warm-up");
        let bucket = match state.1.take() {
            Some(bucket) if state.0 == day => bucket,
            Some(bucket) => bucket.with_rate(rate, nanos),
            None => Bucket::new(rate, 0, nanos),
        };
        let result = use_bucket(&bucket, nanos);
        *state = (day, Some(bucket));
        result
    }
}

const DAY_SECS: u32 = 86_400;
const BURST_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages sent on each of the first days by a sender that tries every 10 seconds.
    fn sent(per_day: &[u32], days: u32) -> Vec<u32> {
        let warming = Warming::new(WarmUp { since: 20_000, per_day: per_day.to_vec() });
        let day = |day: u32| {
            let begin = (20_000 + day) * DAY_SECS;
            (0..DAY_SECS / 10).map(|at| (0..5).filter(|_| warming.take(begin + at * 10)).count() as u32).sum()
        };
        (0..days).map(day).collect()
    }

    #[test]
    fn each_warm_up_day_has_its_limit_and_the_end_has_none() {
        let sent = sent(&[50, 100, 2000], 4);
        for (sent, most) in sent.iter().zip([50, 100, 2000]) {
            // The last evening's savings, an hour's share, count for the next day.
            assert!((most * 95 / 100..=most + most / 24).contains(sent), "{sent} of {most}");
        }
        assert_eq!(sent[3], DAY_SECS / 2, "everything that was tried");
    }

    #[test]
    fn a_warm_up_begins_empty_and_returns_with_mail() {
        let warming = Warming::new(WarmUp { since: 20_000, per_day: vec![DAY_SECS * 10] });
        let begin = 20_000 * DAY_SECS;
        assert!(!warming.take(begin) && !warming.is_worth_it(begin) && !warming.is_worth_it(begin + 1));
        assert!(warming.is_worth_it(begin + 2));
        assert_eq!((0..100).filter(|_| warming.take(begin + 2)).count(), 20);
        // A clock that goes back gives nothing.
        assert!(!warming.take(begin));
        let early = Warming::new(WarmUp { since: 30_000, per_day: vec![1] });
        assert!(!early.take(begin) && early.take(begin + DAY_SECS) && !early.take(begin + DAY_SECS + 1));
    }
}
