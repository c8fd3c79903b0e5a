//! Wakes those that wait for a token when it is there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_shaping::limits::RateLimit;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Limits by the time of their next token.
pub(super) struct Alarm<W> {
    opened: Instant,
    due: Mutex<BinaryHeap<Reverse<Due<W>>>>,
    /// Notified when the next time changes.
    changed: Notify,
}

struct Due<W> {
    at: u64,
    limit: Arc<RateLimit<W>>,
}

impl<W> PartialEq for Due<W> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<W> Eq for Due<W> {}

impl<W> PartialOrd for Due<W> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<W> Ord for Due<W> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl<W> Alarm<W> {
    pub fn new() -> Self {
        Alarm { opened: Instant::now(), due: Mutex::new(BinaryHeap::new()), changed: Notify::new() }
    }

    /// Nanoseconds since the relay's opening: the time of all buckets.
    pub fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Queues `waiter` at a limit, to be woken in its turn, at `until` at the earliest.
    pub fn wait(&self, limit: &Arc<RateLimit<W>>, waiter: W, until: u64) {
        if limit.wait(waiter) {
            self.set(until, limit.clone());
        }
    }

    fn set(&self, at: u64, limit: Arc<RateLimit<W>>) {
        let mut due = self.due.lock().expect("the alarm");
        let is_next = due.peek().is_none_or(|Reverse(next)| at < next.at);
        due.push(Reverse(Due { at, limit }));
        drop(due);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Waits for the next time, and returns the waiters due then.
    pub async fn next(&self) -> Vec<W> {
        loop {
            let next = self.due.lock().expect("the alarm").peek().map(|Reverse(next)| next.at);
            let now = self.now();
            match next {
                Some(at) if at <= now => return self.take_due(now),
                Some(at) => {
                    let pause = Duration::from_nanos(at - now).min(A_WHILE);
                    let _ = tokio::time::timeout(pause, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn take_due(&self, now: u64) -> Vec<W> {
        let mut limits = Vec::new();
        {
            let mut due = self.due.lock().expect("the alarm");
            while due.peek().is_some_and(|Reverse(next)| next.at <= now) {
                limits.extend(due.pop().map(|Reverse(due)| due.limit));
            }
        }
        let mut all = Vec::new();
        for limit in limits {
            let (waiters, next) = limit.due(now);
            all.extend(waiters);
            next.into_iter().for_each(|at| self.set(at, limit.clone()));
        }
        all
    }
}

/// Longest timer.
const A_WHILE: Duration = Duration::from_secs(3600);
