//! Wakes tasks that wait for a token, once there is one, and tasks that the holder of a lock cannot wake itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_shaping::limits::RateLimit;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Limits by the time of their next token.
pub(super) struct Alarm<W> {
    opened: Instant,
    state: Mutex<AlarmState<W>>,
    /// Notified when the next time changes.
    changed: Notify,
}

struct AlarmState<W> {
    due: BinaryHeap<Reverse<Due<W>>>,
    /// Waiters to wake now, regardless of limits.
    now: Vec<W>,
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
        let state = AlarmState { due: BinaryHeap::new(), now: Vec::new() };
        Alarm { opened: Instant::now(), state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, AlarmState<W>> {
        self.state.lock().expect("the alarm")
    }

    /// Nanoseconds since the opening of the relay: the clock of all buckets.
    pub fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Queues `waiter` at a limit, to be woken in its turn, at `until` at the earliest.
    pub fn wait(&self, limit: &Arc<RateLimit<W>>, waiter: W, until: u64) {
        if limit.wait(waiter) {
            self.set(until, limit.clone());
        }
    }

    /// Wakes these waiters soon. For callers that hold the lock of a site, so cannot serve another.
    pub fn wake(&self, waiters: impl IntoIterator<Item = W>) {
        self.state().now.extend(waiters);
        self.changed.notify_one();
    }

    fn set(&self, at: u64, limit: Arc<RateLimit<W>>) {
        let mut state = self.state();
        let is_next = state.due.peek().is_none_or(|Reverse(next)| at < next.at);
        state.due.push(Reverse(Due { at, limit }));
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Waits for the next time, and returns the waiters due then.
    pub async fn next(&self) -> Vec<W> {
        loop {
            let next = {
                let mut state = self.state();
                if !state.now.is_empty() {
                    return std::mem::take(&mut state.now);
                }
                state.due.peek().map(|Reverse(next)| next.at)
            };
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
            let due = &mut self.state().due;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiters_that_are_due_now_are_woken_before_any_time() {
        let alarm = Alarm::new();
        let woken = async { tokio::time::timeout(Duration::from_secs(1), alarm.next()).await.unwrap_or_default() };
        // It waits already.
        let (found, ()) = tokio::join!(woken, async { alarm.wake([1, 2]) });
        assert_eq!(found, [1, 2]);
        alarm.wake([3]);
        assert_eq!(alarm.next().await, [3]);
    }
}
