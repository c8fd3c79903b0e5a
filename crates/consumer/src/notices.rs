//! The schedule of owed notices.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use posthaste_units::BackOff;
use tokio::time::Instant;

/// The schedule of owed notices. A bounded number is made at a time; while they fail, one is tried occasionally.
///
/// `K` identifies a notice. Its content is looked up when it is made, so a waiting notice takes a few bytes.
#[derive(Debug)]
pub struct NoticeSchedule<K> {
    gathered_for: Duration,
    waiting: HashMap<K, Waiting>,
    /// Notices without a failure come first.
    due: [BTreeSet<(Instant, K)>; 2],
    making: usize,
    /// Consecutive failures of all notices.
    failures: u32,
    not_before: Option<Instant>,
    told: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    due: Instant,
    failures: u32,
    is_making: bool,
}

impl<K: Copy + Ord + Hash> NoticeSchedule<K> {
    /// An empty schedule. `gathered_for`: maximum time that a notice waits to collect more outcomes.
    pub fn new(gathered_for: Duration) -> Self {
        let waiting = HashMap::new();
        let due = [BTreeSet::new(), BTreeSet::new()];
        NoticeSchedule { gathered_for, waiting, due, making: 0, failures: 0, not_before: None, told: None }
    }

    /// Adds a notice, or reschedules a waiting one; the gathering time counts from its first addition. A notice that
    /// was tried keeps its time. Has no effect on one in progress: add it again afterwards if there is more to report.
    pub fn add(&mut self, key: K, due: Instant, now: Instant) {
        let waiting = self.waiting.entry(key).or_insert_with(|| {
            self.due[FRESH].insert((due, key));
            Waiting { since: now, due, failures: 0, is_making: false }
        });
        if !waiting.is_making && waiting.failures == 0 {
            self.due[FRESH].remove(&(waiting.due, key));
            waiting.due = due.min(waiting.since + self.gathered_for);
            self.due[FRESH].insert((waiting.due, key));
        }
    }

    /// Takes the next notice that is due; the caller reports its outcome with [`made`](Self::made). `is_last`:
    /// ignores pauses.
    pub fn begin(&mut self, now: Instant, is_last: bool) -> Option<K> {
        let most = if self.failures == 0 { AT_ONCE } else { 1 };
        if self.making >= most || !is_last && self.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let is_due = |due: &BTreeSet<(Instant, K)>| due.first().is_some_and(|first| first.0 <= now || is_last);
        let (_, key) = self.due.iter_mut().find(|due| is_due(due))?.pop_first()?;
        self.making += 1;
        self.waiting.get_mut(&key).expect("what is due waits").is_making = true;
        Some(key)
    }

    /// Takes the outcome of a notice. Returns the reason of a failure once a minute, for the log.
    pub fn made(&mut self, key: K, made: Result<(), String>, now: Instant) -> Option<String> {
        self.making -= 1;
        let Err(why) = made else {
            (self.failures, self.not_before) = (0, None);
            self.waiting.remove(&key);
            return None;
        };
        let waiting = self.waiting.get_mut(&key).expect("what is made waits");
        waiting.is_making = false;
        waiting.failures = waiting.failures.saturating_add(1);
        waiting.due = now + RETRY.after(waiting.failures);
        self.due[FAILED].insert((waiting.due, key));
        self.failures = self.failures.saturating_add(1);
        // One that fails is no reason for others to wait.
        self.not_before = (self.failures > 1).then(|| now + GAP.after(self.failures));
        let is_new = self.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        is_new.then(|| {
            self.told = Some(now);
            why
        })
    }

    /// When to call [`begin`](Self::begin) again, unless an outcome comes first.
    pub fn next_due(&self, is_last: bool) -> Option<Instant> {
        let may_begin = self.making == 0 || self.failures == 0 && self.making < AT_ONCE;
        let due = self.due.iter().filter_map(|due| Some(due.first()?.0)).min().filter(|_| may_begin)?;
        Some(due.max(self.not_before.filter(|_| !is_last).unwrap_or(due)))
    }

    /// True if nothing is left to try. At the end each notice is tried once more.
    pub fn is_done(&self) -> bool {
        self.making == 0 && (self.failures > 0 || self.due.iter().all(BTreeSet::is_empty))
    }
}

const FRESH: usize = 0;
const FAILED: usize = 1;
/// Concurrent notices: each is a message in memory.
const AT_ONCE: usize = 64;
/// Pause between two attempts at the same notice.
const RETRY: BackOff = BackOff::new(Duration::from_millis(100), Duration::from_secs(30));
/// Pause between attempts while all fail.
const GAP: BackOff = BackOff::new(Duration::from_millis(100), Duration::from_secs(1));
/// Interval of log lines about one failure.
const TOLD_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_none_can_be_made_one_is_tried_at_a_time() {
        let now = Instant::now();
        let mut schedule = NoticeSchedule::new(Duration::ZERO);
        (0..AT_ONCE as u32 + 5).for_each(|key| schedule.add(key, now, now));
        let begun: Vec<u32> = std::iter::from_fn(|| schedule.begin(now, false)).collect();
        assert_eq!(begun.len(), AT_ONCE);
        let told: Vec<String> = begun.iter().filter_map(|key| schedule.made(*key, Err(key.to_string()), now)).collect();
        assert_eq!(told, ["0"], "one line a minute");
        assert_eq!(schedule.begin(now, false), None);
        let then = schedule.next_due(false).unwrap();
        assert!(then > now && then <= now + GAP.after(u32::MAX));
        // Notices that were not tried yet come first.
        assert_eq!((schedule.begin(then, false), schedule.begin(then, false)), (Some(AT_ONCE as u32), None));
        assert_eq!(schedule.made(AT_ONCE as u32, Ok(()), then), None);
        let rest = std::iter::from_fn(|| schedule.begin(then + RETRY.after(u32::MAX), false)).count();
        assert_eq!(rest, AT_ONCE);
    }

    #[test]
    fn a_notice_waits_for_more_to_tell_up_to_a_bound() {
        let now = Instant::now();
        let minute = Duration::from_secs(60);
        let mut schedule = NoticeSchedule::new(minute);
        schedule.add(1, now + minute, now);
        let later = now + minute / 2;
        schedule.add(1, later + minute, later);
        assert_eq!((schedule.next_due(false), schedule.begin(later, false)), (Some(now + minute), None));
        schedule.add(1, later, later);
        assert_eq!(schedule.begin(later, false), Some(1));
        schedule.add(1, later, later);
        assert_eq!(schedule.begin(later, false), None, "it is being made");
        assert!(!schedule.is_done());
        schedule.made(1, Ok(()), later);
        assert!(schedule.is_done());
    }
}
