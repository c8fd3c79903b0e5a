//! Rates that mail shares, and the queues of those that wait for a token.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_units::{Bucket, Rate, Refused};

use super::lent::Lent;

/// A rate limit, and its waiters.
pub struct RateLimit<W> {
    /// Name of the mail that is limited.
    pub name: Arc<str>,
    /// Where the limit is set.
    pub from: Arc<str>,
    supply: TokenSupply,
    /// Tokens that [`Tokens`](super::Tokens) have reserved.
    reserved: AtomicU32,
    waiting: Mutex<Waiting<W>>,
}

enum TokenSupply {
    Own(Bucket),
    Lent(Rate, Box<dyn Lent>),
}

struct Waiting<W> {
    waiters: VecDeque<W>,
    /// True if an alarm is set for the waiters.
    is_armed: bool,
}

impl<W> RateLimit<W> {
    /// A limit with the tokens of `bucket`.
    pub fn new(name: Arc<str>, from: Arc<str>, bucket: Bucket) -> Self {
        Self::of(name, from, TokenSupply::Own(bucket))
    }

    /// A rate limit shared with other nodes. Its tokens come from `tokens`, which lends them.
    pub fn lent(name: Arc<str>, from: Arc<str>, rate: Rate, tokens: Box<dyn Lent>) -> Self {
        Self::of(name, from, TokenSupply::Lent(rate, tokens))
    }

    fn of(name: Arc<str>, from: Arc<str>, supply: TokenSupply) -> Self {
        let waiting = Waiting { waiters: VecDeque::new(), is_armed: false };
        RateLimit { name, from, supply, reserved: AtomicU32::new(0), waiting: Mutex::new(waiting) }
    }

    /// The rate of its tokens.
    pub fn rate(&self) -> Rate {
        match &self.supply {
            TokenSupply::Own(bucket) => bucket.rate(),
            TokenSupply::Lent(rate, _) => *rate,
        }
    }

    /// True if another node lends the tokens.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.supply, TokenSupply::Lent(..))
    }

    /// Tokens that are available and not reserved.
    pub fn available(&self, now: u64) -> u32 {
        let there = match &self.supply {
            TokenSupply::Own(bucket) => bucket.available(now),
            TokenSupply::Lent(_, tokens) => tokens.available(),
        };
        there.saturating_sub(self.reserved())
    }

    /// Time at which a token is free; `None`: now. Sooner while some are reserved: they may be released.
    pub fn until(&self, now: u64) -> Option<u64> {
        let reserved = self.reserved();
        let bucket = match &self.supply {
            TokenSupply::Own(bucket) => bucket,
            TokenSupply::Lent(_, tokens) if tokens.available() > reserved => return None,
            TokenSupply::Lent(_, tokens) => return Some(now.saturating_add(tokens.want(reserved.saturating_add(1)))),
        };
        match bucket.check(reserved.saturating_add(1), now) {
            Ok(()) => None,
            Err(Refused::Until(until)) if reserved > 0 => Some(until.min(now.saturating_add(MAY_BE_FREE))),
            Err(Refused::Until(until)) => Some(until),
            // All that fit are reserved: check again once one may be spent.
            Err(Refused::Never) => Some(now.saturating_add(SOON)),
        }
    }

    /// True if it carries no state: a full bucket, and no token reserved.
    pub fn is_full(&self, now: u64) -> bool {
        let is_full = match &self.supply {
            TokenSupply::Own(bucket) => bucket.debt(now) == 0,
            TokenSupply::Lent(..) => true,
        };
        is_full && self.reserved() == 0
    }

    /// A bucket with another rate: reserved tokens count as taken.
    pub fn bucket_with(&self, rate: Rate, now: u64) -> Bucket {
        let TokenSupply::Own(bucket) = &self.supply else { return Bucket::new(rate, 0, now) };
        let bucket = bucket.with_rate(rate, now);
        let tokens = bucket.available(now).saturating_sub(self.reserved());
        Bucket::new(rate, tokens, now)
    }

    pub(super) fn reserve(&self) {
        self.add_reserved();
    }

    fn add_reserved(&self) -> u32 {
        if let TokenSupply::Lent(_, tokens) = &self.supply {
            tokens.hold(true);
        }
        self.reserved.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves a token if there is one. Safe against concurrent callers.
    pub(super) fn try_reserve(&self, now: u64) -> bool {
        let reserved = self.add_reserved();
        let is_there = match &self.supply {
            TokenSupply::Own(bucket) => bucket.check(reserved.saturating_add(1), now).is_ok(),
            TokenSupply::Lent(_, tokens) => tokens.available() > reserved,
        };
        if !is_there {
            self.unreserve();
        }
        is_there
    }

    pub(super) fn unreserve(&self) {
        self.reserved.fetch_sub(1, Ordering::Relaxed);
        if let TokenSupply::Lent(_, tokens) = &self.supply {
            tokens.hold(false);
        }
    }

    /// True if a reserved token has not died.
    pub(super) fn is_there(&self) -> bool {
        match &self.supply {
            TokenSupply::Own(_) => true,
            TokenSupply::Lent(_, tokens) => tokens.available() > 0,
        }
    }

    pub(super) fn take(&self, now: u64) -> bool {
        match &self.supply {
            TokenSupply::Own(bucket) => bucket.take(1, now).is_ok(),
            TokenSupply::Lent(_, tokens) => tokens.take(),
        }
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

    /// Removes and returns as many waiters as there are tokens. Also returns the time of the next alarm, if others
    /// still wait.
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
