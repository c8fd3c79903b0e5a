//! Shared limits, and the queues of those that wait for them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;

use posthaste_units::{Bucket, Rate, Refused};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::sender::site::Site;
use posthaste_queue::Parked;

/// The waiter that is woken when a limit allows more.
#[derive(Debug)]
pub(in crate::sender) enum Waiter {
    /// A site with mail to send.
    Message(Weak<Site>),
    /// A site that needs one more connection.
    Connection(Weak<Site>),
    /// Mail that the queue has parked.
    Parked(Parked),
}

/// A rate limit, and its waiters.
#[derive(Debug)]
pub(in crate::sender) struct RateLimit {
    /// The name of the limited mail.
    pub name: Arc<str>,
    /// Where the limit is set.
    pub from: Arc<str>,
    bucket: Bucket,
    /// Tokens that [`Tokens`](super::Tokens) have reserved.
    reserved: AtomicU32,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    waiters: VecDeque<Waiter>,
    /// True if the alarm is set for it.
    is_armed: bool,
}

impl RateLimit {
    pub fn new(name: Arc<str>, from: Arc<str>, bucket: Bucket) -> Self {
        RateLimit { name, from, bucket, reserved: AtomicU32::new(0), waiting: Mutex::default() }
    }

    pub fn rate(&self) -> Rate {
        self.bucket.rate()
    }

    /// Tokens not reserved.
    pub fn available(&self, now: u64) -> u32 {
        self.bucket.available(now).saturating_sub(self.reserved())
    }

    /// When a free token is there; `None`: now. Sooner while some are reserved: they may be released.
    pub fn until(&self, now: u64) -> Option<u64> {
        let reserved = self.reserved();
        match self.bucket.check(reserved.saturating_add(1), now) {
            Ok(()) => None,
            Err(Refused::Until(until)) if reserved > 0 => Some(until.min(now.saturating_add(MAY_BE_FREE))),
            Err(Refused::Until(until)) => Some(until),
            // All that fit are reserved: check again once one may be spent.
            Err(Refused::Never) => Some(now.saturating_add(SOON)),
        }
    }

    /// True if the bucket is full and no token is reserved.
    pub fn is_full(&self, now: u64) -> bool {
        self.bucket.debt(now) == 0 && self.reserved() == 0
    }

    /// The bucket with another rate: reserved tokens count as taken.
    pub fn bucket_with(&self, rate: Rate, now: u64) -> Bucket {
        let bucket = self.bucket.with_rate(rate, now);
        let tokens = bucket.available(now).saturating_sub(self.reserved());
        Bucket::new(rate, tokens, now)
    }

    pub(super) fn reserve(&self) {
        self.reserved.fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves a token if there is one. Safe against concurrent callers.
    pub(super) fn try_reserve(&self, now: u64) -> bool {
        let reserved = self.reserved.fetch_add(1, Ordering::Relaxed);
        let is_there = self.bucket.check(reserved.saturating_add(1), now).is_ok();
        if !is_there {
            self.unreserve();
        }
        is_there
    }

    pub(super) fn unreserve(&self) {
        self.reserved.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn take(&self, now: u64) -> bool {
        self.bucket.take(1, now).is_ok()
    }

    fn reserved(&self) -> u32 {
        self.reserved.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("who waits")
    }

    /// Queues `waiter`, to be woken in its turn, at `until` at the earliest.
    pub fn wait(self: &Arc<Self>, alarm: &Alarm, waiter: Waiter, until: u64) {
        let mut waiting = self.waiting();
        waiting.waiters.push_back(waiter);
        if !std::mem::replace(&mut waiting.is_armed, true) {
            alarm.set(until, self.clone());
        }
    }

    /// As many waiters as there are tokens. The others stay, and the alarm is set for them.
    fn due(self: &Arc<Self>, alarm: &Alarm, now: u64) -> Vec<Waiter> {
        let mut waiting = self.waiting();
        let count = waiting.waiters.len().min(self.available(now) as usize);
        let due = waiting.waiters.drain(..count).collect();
        waiting.is_armed = !waiting.waiters.is_empty();
        if waiting.is_armed {
            // A woken site needs a moment for its token; if it takes none, the next in turn is woken.
            let next = self.until(now).unwrap_or(now).max(now + SOON);
            alarm.set(next, self.clone());
        }
        due
    }

    /// Removes all waiters, as the limit has changed.
    pub fn drain(&self) -> Vec<Waiter> {
        self.waiting().waiters.drain(..).collect()
    }

    pub fn is_waited_for(&self) -> bool {
        !self.waiting().waiters.is_empty()
    }
}

/// Checks that each limit has a token. Else returns the one without a token for the longest time, and when it has one.
pub(in crate::sender) fn check(limits: &[Arc<RateLimit>], now: u64) -> Result<(), (&Arc<RateLimit>, u64)> {
    let refused = limits.iter().filter_map(|limit| Some((limit, limit.until(now)?)));
    refused.max_by_key(|(_, until)| *until).map_or(Ok(()), Err)
}

/// Limits by the time of their next token.
#[derive(Debug)]
pub(in crate::sender) struct Alarm {
    opened: Instant,
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    /// Notified when the next time changes.
    changed: Notify,
}

#[derive(Debug)]
struct Due {
    at: u64,
    limit: Arc<RateLimit>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl Alarm {
    pub fn new() -> Self {
        Alarm { opened: Instant::now(), due: Mutex::default(), changed: Notify::new() }
    }

    /// Nanoseconds since the relay's opening: the time of all buckets.
    pub fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn set(&self, at: u64, limit: Arc<RateLimit>) {
        let mut due = self.due.lock().expect("the alarm");
        let is_next = due.peek().is_none_or(|Reverse(next)| at < next.at);
        due.push(Reverse(Due { at, limit }));
        drop(due);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Waits for the next time, and returns the waiters due then.
    pub async fn next(&self) -> Vec<Waiter> {
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

    fn take_due(&self, now: u64) -> Vec<Waiter> {
        let mut limits = Vec::new();
        {
            let mut due = self.due.lock().expect("the alarm");
            while due.peek().is_some_and(|Reverse(next)| next.at <= now) {
                limits.extend(due.pop().map(|Reverse(due)| due.limit));
            }
        }
        limits.iter().flat_map(|limit| limit.due(self, now)).collect()
    }
}

/// A limit of connections that some sites share, and the sites that wait for one.
#[derive(Debug)]
pub(in crate::sender) struct OpenLimit {
    /// The name of the limited mail.
    pub name: Arc<str>,
    open: AtomicU32,
    waiting: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    sites: VecDeque<Weak<Site>>,
    /// Idle connections, by number: one ends for each waiting site.
    idle: BTreeMap<u64, Waker>,
}

impl Waiters {
    fn wake_idle(&self) {
        self.idle.values().take(self.sites.len()).for_each(Waker::wake_by_ref);
    }

    /// Removes the site with this [number](Site::number), which has nothing to send. True if others wait.
    fn are_left_without(&mut self, site: usize) -> bool {
        self.sites.retain(|other| other.as_ptr().addr() != site);
        !self.sites.is_empty()
    }
}

impl OpenLimit {
    pub fn new(name: Arc<str>) -> Self {
        OpenLimit { name, open: AtomicU32::new(0), waiting: Mutex::default() }
    }

    pub fn count(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Opens one more connection, unless `most` are open.
    pub fn open(self: &Arc<Self>, most: u32) -> Option<Permit> {
        let more = |open: u32| (open < most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit { limit: self.clone() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiters> {
        self.waiting.lock().expect("who waits")
    }

    /// Queues a site, to be woken in its turn when a connection ends. Ends an idle one now.
    pub fn wait(&self, site: &Arc<Site>) {
        let mut waiting = self.waiting();
        if !waiting.sites.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(site))) {
            waiting.sites.push_back(Arc::downgrade(site));
        }
        waiting.wake_idle();
    }

    pub fn is_waited_for(&self) -> bool {
        !self.waiting().sites.is_empty()
    }

    /// True if others wait while the site with this [number](Site::number) has nothing to send. That site leaves the
    /// queue.
    pub fn is_waited_for_but_by(&self, site: usize) -> bool {
        self.waiting().are_left_without(site)
    }

    /// Registers an idle connection of the site with [this number](Site::number): it is woken when others wait. True if
    /// they do already.
    pub fn set_idle(&self, connection: u64, site: usize, waker: &Waker) -> bool {
        let mut waiting = self.waiting();
        waiting.idle.insert(connection, waker.clone());
        waiting.are_left_without(site)
    }

    /// Ends the registration of an idle connection.
    pub fn forget_idle(&self, connection: u64) {
        self.waiting().idle.remove(&connection);
    }

    /// Wakes an idle connection for a waiting site; others may end for it, too.
    pub fn wake_idle(&self) {
        self.waiting().wake_idle();
    }

    fn next(&self) -> Option<Arc<Site>> {
        let mut waiting = self.waiting();
        std::iter::from_fn(|| waiting.sites.pop_front()).find_map(|site| site.upgrade())
    }
}

/// One connection of an [`OpenLimit`], until it is dropped.
#[derive(Debug)]
pub(in crate::sender) struct Permit {
    limit: Arc<OpenLimit>,
}

impl Permit {
    pub fn limit(&self) -> &Arc<OpenLimit> {
        &self.limit
    }

    /// Ends the connection; returns the next site in turn.
    pub fn end(self) -> Option<Arc<Site>> {
        let limit = self.limit.clone();
        drop(self);
        limit.next()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Nanoseconds between two wake-ups of waiters.
const SOON: u64 = 1_000_000;
/// Nanoseconds until reserved tokens are checked for release.
const MAY_BE_FREE: u64 = 250_000_000;
/// Longest timer.
const A_WHILE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_allowed_are_open() {
        let (limit, most_seen) = (Arc::new(OpenLimit::new("a limit".into())), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        if let Some(_permit) = limit.open(2) {
                            most_seen.fetch_max(limit.count(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!((1..=2).contains(&most_seen.into_inner()));
        assert_eq!(limit.count(), 0);
        let two = (limit.open(2).unwrap(), limit.open(2).unwrap());
        assert!(limit.open(2).is_none() && limit.open(3).is_some());
        drop(two);
        assert_eq!(limit.count(), 0);
    }
}
