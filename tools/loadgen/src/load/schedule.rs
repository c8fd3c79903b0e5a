//! The schedule: one counter of messages for all threads, so that a run has exactly the messages asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, Drawn, Pace};
use super::stop::Stop;
use crate::account::MESSAGES_MAX;

/// One round's messages, claimed one by one.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: Pace,
    /// Drawn times of random arrivals.
    drawn: Option<Mutex<Drawn>>,
    pub start: Instant,
    first: u64,
    claimed: AtomicU64,
    measured: AtomicU64,
    stop: Stop,
    stopped_at: OnceLock<Instant>,
}

/// Answer to a claim of the next message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Claim {
    Message(SendSlot),
    /// The next message is due at this time.
    NotBefore(Instant),
    /// There are no more.
    Finished,
}

/// One message to send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SendSlot {
    pub number: u64,
    /// Time at which it should be sent; in a closed loop, now.
    pub due: Instant,
    pub is_measured: bool,
    /// Times that it was sent without a final answer: the server may have it.
    pub repeats: u16,
}

impl Schedule {
    /// A round that starts at `start` with message number `first`, and ends early on `stop`.
    pub fn new(pace: Pace, start: Instant, first: u64, stop: Stop) -> Self {
        let drawn = match (pace.rate, pace.arrivals) {
            (Some(rate), Arrivals::Poisson { seed }) => Some(Mutex::new(Drawn::new(&pace, rate, seed ^ first))),
            _ => None,
        };
        Self {
            pace,
            drawn,
            start,
            first,
            claimed: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            stop,
            stopped_at: OnceLock::new(),
        }
    }

    /// Takes the next message if it is due.
    pub fn claim(&self, now: Instant) -> Claim {
        if self.stop.is_asked() {
            return Claim::Finished;
        }
        let claim = match (&self.drawn, self.pace.rate) {
            (Some(drawn), _) => self.claim_drawn(now, lock(drawn)),
            (None, Some(rate)) => self.claim_due(now, rate),
            (None, None) => self.claim_next(now),
        };
        match claim {
            // Nobody could account for more.
            Claim::Message(turn) if turn.number >= MESSAGES_MAX => {
                self.stop.ask();
                Claim::Finished
            }
            claim => claim,
        }
    }

    fn claim_drawn(&self, now: Instant, mut drawn: MutexGuard<'_, Drawn>) -> Claim {
        let Some(next) = drawn.next() else { return Claim::Finished };
        let due = self.start + next;
        if due > now {
            return Claim::NotBefore(due);
        }
        drawn.take();
        let number = self.first + self.claimed.fetch_add(1, Relaxed);
        Claim::Message(SendSlot { number, due, is_measured: next >= self.pace.warmup, repeats: 0 })
    }

    fn claim_next(&self, now: Instant) -> Claim {
        let since = now.saturating_duration_since(self.start);
        let is_measured = since >= self.pace.warmup;
        let is_late = |duration| since >= self.pace.warmup + duration;
        if self.pace.duration.is_some_and(is_late) {
            return Claim::Finished;
        }
        if is_measured && self.pace.count.is_some_and(|count| self.measured.fetch_add(1, Relaxed) >= count) {
            return Claim::Finished;
        }
        let number = self.first + self.claimed.fetch_add(1, Relaxed);
        Claim::Message(SendSlot { number, due: now, is_measured, repeats: 0 })
    }

    fn claim_due(&self, now: Instant, rate: f64) -> Claim {
        let mut index = self.claimed.load(Relaxed);
        loop {
            if index >= self.due_in_all(rate) {
                return Claim::Finished;
            }
            let after = Duration::from_secs_f64(index as f64 / rate);
            let due = self.start + after;
            if due > now {
                return Claim::NotBefore(due);
            }
            match self.claimed.compare_exchange_weak(index, index + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    let is_measured = index >= due_within(self.pace.warmup, rate);
                    return Claim::Message(SendSlot { number: self.first + index, due, is_measured, repeats: 0 });
                }
                Err(taken) => index = taken,
            }
        }
    }

    /// True if no message is left, so that no connection is needed for one.
    pub fn is_exhausted(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.start);
        let is_sent = match (&self.drawn, self.pace.rate) {
            (Some(drawn), _) => lock(drawn).next().is_none(),
            (None, Some(rate)) => self.claimed.load(Relaxed) >= self.due_in_all(rate),
            (None, None) => {
                self.pace.duration.is_some_and(|duration| since >= self.pace.warmup + duration)
                    || self.pace.count.is_some_and(|count| self.measured.load(Relaxed) >= count)
            }
        };
        is_sent || self.stop.is_asked()
    }

    /// Messages of the whole round (open loop).
    fn due_in_all(&self, rate: f64) -> u64 {
        let warmup = due_within(self.pace.warmup, rate);
        let by_count = self.pace.count.map_or(u64::MAX, |count| warmup + count);
        let by_time = self.pace.duration.map_or(u64::MAX, |time| due_within(self.pace.warmup + time, rate));
        by_count.min(by_time)
    }

    /// Messages due by `now` and not claimed: the lag of an open loop.
    pub fn behind(&self, now: Instant) -> u64 {
        let Some(rate) = self.pace.rate else { return 0 };
        let since = now.saturating_duration_since(self.start);
        if let Some(drawn) = &self.drawn {
            return lock(drawn).due_by(since);
        }
        due_within(since, rate).min(self.due_in_all(rate)).saturating_sub(self.claimed.load(Relaxed))
    }

    /// True if the round ended or was stopped more than `drain` ago, or an immediate stop was asked for.
    pub fn is_over(&self, now: Instant, drain: Duration) -> bool {
        let stopped = self.stop.is_asked().then(|| *self.stopped_at.get_or_init(|| now));
        let end = self.pace.duration.map(|duration| self.start + self.pace.warmup + duration);
        let is_late = |end| now.saturating_duration_since(end) > drain;
        self.stop.is_urgent() || stopped.into_iter().chain(end).any(is_late)
    }

    /// Numbers given out, the first of them [`Schedule::first`].
    pub fn claimed(&self) -> u64 {
        self.claimed.load(Relaxed)
    }
}

fn lock(drawn: &Mutex<Drawn>) -> MutexGuard<'_, Drawn> {
    drawn.lock().expect("nothing panics while it draws")
}

/// Messages due in the first `time` at `rate`: message k is due at k/rate, so the first at once.
fn due_within(time: Duration, rate: f64) -> u64 {
    (time.as_secs_f64() * rate).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(rate: Option<f64>, count: Option<u64>, seconds: Option<u64>, warmup: u64) -> Schedule {
        let pace = Pace {
            rate,
            arrivals: Arrivals::Even,
            count,
            duration: seconds.map(Duration::from_secs),
            warmup: Duration::from_secs(warmup),
        };
        Schedule::new(pace, Instant::now(), 100, Stop::default())
    }

    #[test]
    fn open_loop_messages_are_due_evenly_whenever_claimed() {
        let schedule = schedule(Some(10.0), None, Some(2), 1);
        let late = schedule.start + 5 * SECOND;
        assert_eq!(schedule.behind(late), 30);
        for index in 0..30_u32 {
            let Claim::Message(turn) = schedule.claim(late) else { panic!("message {index} is due") };
            assert_eq!(turn.number, 100 + u64::from(index));
            assert_eq!(turn.is_measured, index >= 10);
            let off = turn.due.duration_since(schedule.start).abs_diff(SECOND * index / 10);
            assert!(off < Duration::from_micros(1), "message {index} is {off:?} off");
        }
        assert!(schedule.is_exhausted(late));
        assert_eq!(schedule.claim(late), Claim::Finished);
        assert_eq!(schedule.behind(late), 0);
    }

    #[test]
    fn a_run_ends_where_nobody_could_account_for_more() {
        for rate in [None, Some(1000.0)] {
            let pace = schedule(rate, None, None, 0).pace;
            let stop = Stop::default();
            let schedule = Schedule::new(pace, Instant::now(), MESSAGES_MAX - 1, stop.clone());
            let late = schedule.start + SECOND;
            assert!(matches!(schedule.claim(late), Claim::Message(turn) if turn.number == MESSAGES_MAX - 1));
            assert!(!stop.is_asked());
            assert_eq!(schedule.claim(late), Claim::Finished);
            assert!(stop.is_asked(), "no other round begins");
        }
    }

    #[test]
    fn nothing_is_sent_before_it_is_due() {
        let schedule = schedule(Some(2.0), Some(3), None, 0);
        assert!(matches!(schedule.claim(schedule.start), Claim::Message(_)));
        assert_eq!(schedule.claim(schedule.start), Claim::NotBefore(schedule.start + SECOND / 2));
    }

    #[test]
    fn a_closed_loop_ends_by_count_or_time_after_its_warm_up() {
        let counted = schedule(None, Some(3), None, 1);
        for second in [0, 0, 1, 1, 1] {
            let Claim::Message(turn) = counted.claim(counted.start + SECOND * second) else { panic!("no message") };
            assert!(turn.is_measured == (second == 1) && counted.is_exhausted(counted.start) == (turn.number == 104));
        }
        assert_eq!(counted.claim(counted.start + SECOND), Claim::Finished);
        let timed = schedule(None, None, Some(2), 1);
        assert!(matches!(timed.claim(timed.start + SECOND * 2), Claim::Message(_)));
        assert_eq!(timed.claim(timed.start + SECOND * 3), Claim::Finished);
    }
}
