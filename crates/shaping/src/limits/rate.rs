//! Rates that mail shares, and the queues of those that wait for a token.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_units::{Bucket, Rate, Refused};

/// A rate limit, and its waiters.
pub struct RateLimit<W> {
    /// The name of the limited mail.
    pub name: Arc<str>,
    /// Where the limit is set.
    pub from: Arc<str>,
    bucket: Bucket,
    /// Tokens that [`Tokens`](super::Tokens) have reserved.
    reserved: AtomicU32,
    waiting: Mutex<Waiting<W>>,
}

struct Waiting<W> {
    waiters: VecDeque<W>,
    /// True if an alarm is set for it.
    is_armed: bool,
}

impl<W> RateLimit<W> {
    /// A limit with the tokens of `bucket`.
    pub fn new(name: Arc<str>, from: Arc<str>, bucket: Bucket) -> Self {
        let waiting = Waiting { waiters: VecDeque::new(), is_armed: false };
        RateLimit { name, from, bucket, reserved: AtomicU32::new(0), waiting: Mutex::new(waiting) }
    }

    /// The rate of its tokens.
    pub fn rate(&self) -> Rate {
        self.bucket.rate()
    }

    /// Tokens not reserved.
    pub fn available(&self, now: u64) -> u32 {
        self.bucket.available(now).saturating_sub(self.reserved())
    }

    /// Time at which a token is free; `None`: now. Sooner while some are reserved: they may be released.
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

    fn waiting(&self) -> MutexGuard<'_, Waiting<W>> {
        self.waiting.lock().expect("who waits")
    }

    /// Queues `waiter`, to be woken in its turn. True if the caller sets an alarm, after which it asks who is
    /// [due](Self::due).
    pub fn wait(&self, waiter: W) -> bool {
        let mut waiting = self.waiting();
        waiting.waiters.push_back(waiter);
        !std::mem::replace(&mut waiting.is_armed, true)
    }

    /// As many waiters as there are tokens. The others stay: the time of the next alarm for them.
    pub fn due(&self, now: u64) -> (Vec<W>, Option<u64>) {
        let mut waiting = self.waiting();
        let count = waiting.waiters.len().min(self.available(now) as usize);
        let due = waiting.waiters.drain(..count).collect();
        waiting.is_armed = !waiting.waiters.is_empty();
        // A woken waiter needs a moment for its token; if it takes none, the next in turn is woken.
        let next = waiting.is_armed.then(|| self.until(now).unwrap_or(now).max(now + SOON));
        (due, next)
    }

    /// Removes all waiters, as the limit has changed.
    pub fn drain(&self) -> Vec<W> {
        self.waiting().waiters.drain(..).collect()
    }

    /// True if anybody waits for a token.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting().waiters.is_empty()
    }
}

/// Checks that each limit has a token.
///
/// # Errors
/// The limit without a token for the longest time, and when it has one.
pub fn check<W>(limits: &[Arc<RateLimit<W>>], now: u64) -> Result<(), (&Arc<RateLimit<W>>, u64)> {
    let refused = limits.iter().filter_map(|limit| Some((limit, limit.until(now)?)));
    refused.max_by_key(|(_, until)| *until).map_or(Ok(()), Err)
}

/// Nanoseconds between two wake-ups of waiters.
const SOON: u64 = 1_000_000;
/// Nanoseconds until reserved tokens are checked for release.
const MAY_BE_FREE: u64 = 250_000_000;
