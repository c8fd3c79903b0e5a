//! A shard that borrows tokens.

use std::collections::{BTreeSet, HashMap, VecDeque};

use posthaste_units::{Bucket, Rate, Refused};

use super::frame::{ASKS_MAX, Heard, TokenAnswer, TokenAsk, TokenRequest, TokensReturned};
use super::rules::{
    ALONE, BEYOND_BURST, IDLE_PACE, LendingRules, LendingShards, MILLIS, PACE, VALID, burst_of, home_of,
};

/// Borrows tokens for the messages of one shard, from the homes of its limits. Dropped with the shard's relay: the next
/// owner begins with another.
#[derive(Debug)]
pub struct Borrower {
    shard: u16,
    part: usize,
    shards: LendingShards,
    rules: LendingRules,
    homes: Vec<HomeView>,
    limits: HashMap<u64, BorrowedLimit>,
    counts: LendingCounts,
}

/// Tokens since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LendingCounts {
    /// Tokens lent to this shard.
    pub lent: u64,
    /// Lent tokens that were used.
    pub used: u64,
    /// Tokens used from the shard's own shares, while their homes were not heard.
    pub alone: u64,
}

/// A home as this shard hears it.
#[derive(Debug)]
struct HomeView {
    heard: Option<Heard>,
    heard_at: u64,
    sent_at: Option<u64>,
    /// Limits with something to ask or return, each with the time at which that is due. A request looks at no other.
    due: BTreeSet<(u64, u64)>,
    returned: Vec<TokensReturned>,
}

/// A limit in use.
#[derive(Debug)]
struct BorrowedLimit {
    rate: Rate,
    rate_since: u64,
    /// Lent tokens, by their end.
    lots: VecDeque<Lot>,
    /// The shard's own share, with the time from which on it counts by itself. No bucket: it has no burst.
    share: Option<(u64, Option<Bucket>)>,
    /// Tokens reserved for messages in progress.
    held: u32,
    /// Tokens used since the last request.
    used: u32,
    /// Tokens missed since the last request.
    missed: u32,
    /// Tokens needed in an interval, as of the last request.
    target: u32,
    /// The home has no more tokens before this time.
    next_ask: u64,
    /// Its time among those of its home.
    due: Option<u64>,
}

#[derive(Debug)]
struct Lot {
    until: u64,
    home: u64,
    granted_at: u64,
    count: u32,
}

impl Borrower {
    /// For a shard of `shards` that begins to send.
    ///
    /// # Panics
    /// If `shards` does not contain the shard.
    pub fn new(shard: u16, shards: LendingShards, now: u64, rules: LendingRules) -> Self {
        let part = shards.binary_search(&shard).expect("the shard is one of all");
        let heard_at = if rules.waits_at_start { now } else { now.saturating_sub(ALONE) };
        let view = |_| HomeView { heard: None, heard_at, sent_at: None, due: BTreeSet::new(), returned: Vec::new() };
        let homes = shards.iter().map(view).collect();
        Borrower { shard, part, shards, rules, homes, limits: HashMap::new(), counts: LendingCounts::default() }
    }

    /// Begins to borrow for a limit, or changes its rate. The shard's own share begins without tokens.
    pub fn set(&mut self, key: u64, rate: Rate, now: u64) {
        let new = || BorrowedLimit {
            rate,
            rate_since: now,
            lots: VecDeque::new(),
            share: None,
            held: 0,
            used: 0,
            missed: 0,
            target: 0,
            next_ask: 0,
            due: None,
        };
        let limit = self.limits.entry(key).or_insert_with(new);
        if limit.rate != rate {
            (limit.rate, limit.rate_since, limit.share) = (rate, now, None);
        }
    }

    /// Ends borrowing for a limit. Its tokens expire unused.
    pub fn remove(&mut self, key: u64) {
        let home = self.home_of(key);
        if let Some(due) = self.limits.remove(&key).and_then(|limit| limit.due) {
            self.homes[home].due.remove(&(due, key));
        }
    }

    /// Tokens that can be taken.
    pub fn available(&mut self, key: u64, now: u64) -> u32 {
        let alone = self.alone_since(self.home_of(key), now);
        let own = self.own();
        let Some(limit) = self.limits.get_mut(&key) else { return 0 };
        match alone {
            Some(since) => limit.share(key, since, &own).map_or(0, |share| share.available(now)),
            None => limit.valid_after(now),
        }
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, key: u64, now: u64) -> bool {
        let alone = self.alone_since(self.home_of(key), now);
        let own = self.own();
        let Some(limit) = self.limits.get_mut(&key) else { return false };
        let is_taken = match alone {
            Some(since) => limit.share(key, since, &own).is_some_and(|share| share.take(1, now).is_ok()),
            None => limit.take_lent(now),
        };
        match (is_taken, alone) {
            (false, _) => limit.missed = limit.missed.max(1),
            (true, None) => self.counts.used += 1,
            (true, Some(_)) => self.counts.alone += 1,
        }
        self.activate(key, now);
        is_taken
    }

    /// Notes that a token is reserved, or no longer so. Reserved tokens are renewed.
    pub fn hold(&mut self, key: u64, is_held: bool, now: u64) {
        let Some(limit) = self.limits.get_mut(&key) else { return };
        limit.held = if is_held { limit.held + 1 } else { limit.held.saturating_sub(1) };
        self.activate(key, now);
    }

    /// Notes that `count` tokens are needed and fewer are available. Returns the time to check again.
    pub fn want(&mut self, key: u64, count: u32, now: u64) -> u64 {
        let alone = self.alone_since(self.home_of(key), now);
        let own = self.own();
        let Some(limit) = self.limits.get_mut(&key) else { return now + ALONE };
        limit.missed = limit.missed.max(count);
        let until = match alone.map(|since| limit.share(key, since, &own)) {
            Some(Some(share)) => match share.check(count.min(share.rate().burst()), now) {
                Err(Refused::Until(until)) => until,
                Ok(()) | Err(Refused::Never) => now + LOOK,
            },
            Some(None) => now + LOOK_ALONE,
            None => limit.next_ask.max(now) + LOOK,
        };
        self.activate(key, now);
        // The home may answer before.
        until.min(now + LOOK_ALONE)
    }

    /// Makes a limit due at once: it has changed.
    fn activate(&mut self, key: u64, now: u64) {
        let home = self.home_of(key);
        let Some(limit) = self.limits.get_mut(&key).filter(|limit| limit.due.is_none_or(|due| due > now)) else {
            return;
        };
        let due = &mut self.homes[home].due;
        if let Some(before) = limit.due.replace(now) {
            due.remove(&(before, key));
        }
        due.insert((now, key));
    }

    /// Index of a limit's home among all shards.
    pub fn home_of(&self, key: u64) -> usize {
        home_of(key, &self.shards)
    }

    /// Tokens since the start.
    pub fn counts(&self) -> LendingCounts {
        self.counts
    }

    /// True if this shard counts by itself for the limits of a home.
    pub fn is_alone(&self, home: usize, now: u64) -> bool {
        self.alone_since(home, now).is_some()
    }

    /// The time from which on this shard counts by itself.
    fn alone_since(&self, home: usize, now: u64) -> Option<u64> {
        let after = if self.rules.late_share { ALONE } else { VALID };
        let since = self.homes[home].heard_at.saturating_add(after);
        (since <= now).then_some(since)
    }

    fn own(&self) -> OwnPart {
        OwnPart { part: self.part, shards: self.shards.clone(), rules: self.rules }
    }

    /// The request that is due to a home, if any. Send it at once; read the clock for `now` before.
    pub fn request(&mut self, home: usize, now: u64) -> Option<TokenRequest> {
        let view = &mut self.homes[home];
        let mut asks = Vec::new();
        while let Some((at, key)) = view.due.first().copied()
            && at <= now
            && asks.len() < ASKS_MAX
        {
            view.due.pop_first();
            let limit = self.limits.get_mut(&key).expect("a limit that was removed is not due");
            limit.bury(key, view.heard, now, &mut view.returned);
            asks.extend(limit.wish(now).map(|count| TokenAsk { key, rate: limit.rate, count }));
            limit.due = limit.next_due(now);
            view.due.extend(limit.due.map(|due| (due, key)));
        }
        let is_idle = asks.is_empty() && view.returned.is_empty();
        if is_idle && view.sent_at.is_some_and(|sent_at| now.saturating_sub(sent_at) < IDLE_PACE) {
            return None;
        }
        view.sent_at = Some(now);
        let first = view.returned.len().min(ASKS_MAX);
        let returned = view.returned.drain(..first).collect();
        Some(TokenRequest { shard: self.shard, heard: view.heard, returned, asks })
    }

    /// Processes the answer to the latest request to a home, sent at `sent_at`.
    pub fn answered(&mut self, home: usize, sent_at: u64, answer: &TokenAnswer, now: u64) {
        let end = if self.rules.from_request { sent_at } else { now } + VALID;
        if now >= end {
            return;
        }
        let is_alone = self.is_alone(home, now);
        let view = &mut self.homes[home];
        if self.rules.share_ends || !is_alone {
            view.heard_at = now;
        }
        if view.heard.replace(answer.heard).is_some_and(|before| before.home != answer.heard.home) {
            view.returned.clear();
        }
        let until = if self.rules.tokens_die { end } else { u64::MAX };
        for grant in &answer.grants {
            let Some(limit) = self.limits.get_mut(&grant.key) else { continue };
            self.counts.lent += u64::from(grant.count);
            let wait = (u64::from(grant.wait_ms) * MILLIS).clamp(PACE, WAIT_MAX);
            limit.next_ask = if grant.wait_ms > 0 { sent_at + wait } else { 0 };
            if grant.count > 0 {
                let Heard { home, at: granted_at } = answer.heard;
                limit.lots.push_back(Lot { until, home, granted_at, count: grant.count });
            }
        }
        answer.grants.iter().for_each(|grant| self.activate(grant.key, now));
    }
}

/// The part of a shard that counts by itself.
struct OwnPart {
    part: usize,
    shards: LendingShards,
    rules: LendingRules,
}

impl OwnPart {
    fn bucket(&self, key: u64, rate: Rate, since: u64) -> Option<Bucket> {
        let parts = u32::try_from(self.shards.len()).expect("there are fewer than 32,768 shards");
        let burst = burst_of(rate, key, self.part, &self.shards, self.rules);
        let slow = rate.share(parts);
        let rate = Rate::new(slow.count(), slow.seconds(), burst).ok()?;
        Some(Bucket::new(rate, if self.rules.empty_share { 0 } else { burst }, since))
    }
}

impl BorrowedLimit {
    fn share(&mut self, key: u64, since: u64, own: &OwnPart) -> Option<&Bucket> {
        if self.share.as_ref().is_none_or(|(before, _)| *before != since) {
            self.share = Some((since, own.bucket(key, self.rate, since.max(self.rate_since))));
        }
        self.share.as_ref()?.1.as_ref()
    }

    /// Lent tokens still valid after that time.
    fn valid_after(&self, time: u64) -> u32 {
        let valid = self.lots.iter().filter(|lot| lot.until > time).map(|lot| lot.count);
        valid.fold(0, u32::saturating_add)
    }

    fn take_lent(&mut self, now: u64) -> bool {
        let Some(lot) = self.lots.iter_mut().find(|lot| lot.until > now && lot.count > 0) else { return false };
        lot.count -= 1;
        self.used += 1;
        true
    }

    /// Removes expired tokens, and collects those that go back to the home.
    fn bury(&mut self, key: u64, heard: Option<Heard>, now: u64, returned: &mut Vec<TokensReturned>) {
        while let Some(Lot { home, granted_at, count, .. }) =
            self.lots.pop_front_if(|lot| lot.until <= now || lot.count == 0)
        {
            if count > 0 && heard.is_some_and(|heard| heard.home == home) {
                returned.push(TokensReturned { key, granted_at, count });
                // A message is on its way: the home may lend them again at once.
                if self.held > 0 {
                    self.next_ask = 0;
                }
            }
        }
    }

    /// The first time after `now` with something to ask or return, unless the limit changes before.
    fn next_due(&self, now: u64) -> Option<u64> {
        let end = self.lots.front().map(|lot| lot.until);
        // What was used in this interval counts until the next one begins.
        let is_in_use = end.is_some() && (self.used > 0 || self.target > 0);
        let ask = (is_in_use || self.held > 0 || self.missed > 0).then_some(self.next_ask);
        ask.into_iter().chain(end).min().map(|due| due.max(now + 1))
    }

    /// Tokens to request: those needed in the next interval and not yet there.
    fn wish(&mut self, now: u64) -> Option<u32> {
        if now < self.next_ask {
            return None;
        }
        let used = std::mem::take(&mut self.used);
        let missed = std::mem::take(&mut self.missed);
        // A claim that was not met does not shrink: others would get more.
        let short = missed.max(used.saturating_mul(2)).max(self.target);
        let needed = if missed > 0 { short } else { used + used / 4 };
        let most = u32::try_from(BEYOND_BURST / self.rate.interval()).unwrap_or(u32::MAX);
        self.target = needed.min(self.rate.burst().saturating_add(most));
        let wish = self.target.max(self.held).saturating_sub(self.valid_after(now + PACE));
        Some(wish).filter(|count| *count > 0)
    }
}

/// Time until a wish may be answered.
const LOOK: u64 = 30 * MILLIS;
/// The longest time until the next look.
const LOOK_ALONE: u64 = 1000 * MILLIS;
/// A wish is repeated within this time, not to lose its turn.
const WAIT_MAX: u64 = 1000 * MILLIS;

#[cfg(test)]
mod tests {
    use super::super::frame::TokenGrant;
    use super::*;

    #[test]
    fn a_request_looks_at_no_limit_that_waits() {
        let mut borrower = Borrower::new(1, [1].into(), 0, LendingRules::ALL);
        let keys = 0..3 * ASKS_MAX as u64;
        keys.clone().for_each(|key| borrower.set(key, Rate::new(1, 1, 1).unwrap(), 0));
        // The home has no tokens for 900 ms, whichever limit is asked for.
        let ask = |borrower: &mut Borrower, now: u64| {
            let asks = borrower.request(0, now).map_or(Vec::new(), |request| request.asks);
            let grants = asks.iter().map(|ask| TokenGrant { key: ask.key, count: 0, wait_ms: 900 }).collect();
            borrower.answered(0, now, &TokenAnswer { heard: Heard { home: 7, at: now }, grants }, now);
            asks.iter().map(|ask| ask.key).collect::<BTreeSet<u64>>()
        };
        let want_all = |borrower: &mut Borrower, now: u64| {
            for key in keys.clone() {
                borrower.want(key, 1, now);
            }
        };
        want_all(&mut borrower, 0);
        let first: Vec<_> = (0..3).map(|turn| ask(&mut borrower, turn * PACE)).collect();
        assert_eq!(first.iter().flatten().collect::<BTreeSet<_>>().len(), 3 * ASKS_MAX, "each has its turn");
        want_all(&mut borrower, 3 * PACE);
        assert!(ask(&mut borrower, 3 * PACE).is_empty());
        let due = |borrower: &Borrower, until| borrower.homes[0].due.range(..(until, 0)).count();
        assert_eq!(due(&borrower, 900 * MILLIS), 0, "none is looked at before its time");
        for (turn, first) in (9..).zip(&first) {
            assert_eq!(ask(&mut borrower, turn * PACE), *first);
        }
        keys.for_each(|key| borrower.remove(key));
        assert!(borrower.homes[0].due.is_empty());
    }
}
