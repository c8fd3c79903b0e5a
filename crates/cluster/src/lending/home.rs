//! The home of limits: it has their tokens, and lends them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use posthaste_units::Rate;

use super::frame::{Heard, TokenAnswer, TokenAsk, TokenGrant, TokenRequest, TokensReturned};
use super::rules::{BEYOND_BURST, ECHO, LendingRules, LendingShards, MILLIS, burst_of};

/// Lends the tokens of the limits that are at home at a shard, while this node owns the shard.
#[derive(Debug)]
pub struct TokenHome {
    /// Random id that no other home has.
    id: u64,
    shards: LendingShards,
    rules: LendingRules,
    /// For each shard, by index: until when it is known to hear this home.
    hearing: BTreeMap<usize, u64>,
    /// Recent times with different sets of hearing shards, oldest first.
    spans: VecDeque<Span>,
    limits: HashMap<u64, HomeLimit>,
    /// Number of limits at which unused ones are dropped.
    tidy_at: usize,
}

/// A time in which the same shards hear. It ends where the next one begins.
#[derive(Debug)]
struct Span {
    from: u64,
    hears: Vec<bool>,
}

/// The tokens of a limit.
#[derive(Debug)]
struct HomeLimit {
    rate: Rate,
    rate_since: u64,
    /// Time of the last request at this rate.
    asked_at: u64,
    /// Tokens, each as the time that it takes at the whole rate.
    credit: u64,
    /// The time up to which `credit` is counted.
    at: u64,
    /// Shards that have got less than they asked for, with the time of the wish. The first is served first.
    waiting: VecDeque<(usize, u64)>,
}

impl TokenHome {
    /// A home that begins now. `id`: random.
    pub fn new(id: u64, shards: LendingShards, now: u64, rules: LendingRules) -> Self {
        let hears = vec![!rules.keeps_share; shards.len()];
        let spans = VecDeque::from([Span { from: now, hears }]);
        TokenHome { id, shards, rules, hearing: BTreeMap::new(), spans, limits: HashMap::new(), tidy_at: TIDY_MIN }
    }

    /// Answers a request. The caller must read the clock before it checks the lease of the shard. `None`: the shard is
    /// unknown.
    pub fn answer(&mut self, request: &TokenRequest, now: u64) -> Option<TokenAnswer> {
        let part = self.shards.binary_search(&request.shard).ok()?;
        let now = self.spans.back().map_or(now, |span| span.from.max(now));
        self.expire(now);
        let heard = request.heard.filter(|heard| heard.home == self.id);
        match heard {
            Some(heard) if self.rules.echo => self.hear(part, heard.at.saturating_add(ECHO), now),
            _ if !self.rules.echo => self.hear(part, now + ECHO, now),
            _ => {}
        }
        if heard.is_some() {
            request.returned.iter().for_each(|returned| self.take_back(returned, now));
        }
        // Tokens of a shard that may not hear would be lost.
        let hears = self.hearing.contains_key(&part);
        let nothing = |ask: &TokenAsk| TokenGrant { key: ask.key, count: 0, wait_ms: 0 };
        let asks = request.asks.iter();
        let grants = asks.map(|ask| if hears { self.grant(part, ask, now) } else { nothing(ask) }).collect();
        self.tidy(now);
        Some(TokenAnswer { heard: Heard { home: self.id, at: now }, grants })
    }

    /// Keeps the shares of shards that may not hear any more.
    fn expire(&mut self, now: u64) {
        while let Some((part, until)) = self.hearing.iter().map(|(part, until)| (*part, *until)).min_by_key(|it| it.1) {
            if until > now {
                return;
            }
            self.hearing.remove(&part);
            self.begin_span(until);
        }
    }

    fn hear(&mut self, part: usize, until: u64, now: u64) {
        if until <= now {
            return;
        }
        match self.hearing.get_mut(&part) {
            Some(known) => *known = until.max(*known),
            None => {
                self.hearing.insert(part, until);
                self.begin_span(now);
            }
        }
    }

    fn begin_span(&mut self, from: u64) {
        let hears = (0..self.shards.len()).map(|part| !self.rules.keeps_share || self.hearing.contains_key(&part));
        self.spans.push_back(Span { from, hears: hears.collect() });
        if self.spans.len() > SPANS_MAX {
            self.spans.pop_front();
        }
    }

    fn grant(&mut self, part: usize, ask: &TokenAsk, now: u64) -> TokenGrant {
        let mut limit = self.limits.remove(&ask.key).unwrap_or_else(|| self.new_limit(ask.rate, now));
        self.settle(ask.key, &mut limit, now);
        limit.agree(ask.rate, now);
        limit.waiting.retain(|(_, asked_at)| now.saturating_sub(*asked_at) < TURN);
        let place = limit.waiting.iter().position(|(other, _)| *other == part);
        let ahead = place.unwrap_or(limit.waiting.len());
        let others = limit.waiting.len() - usize::from(place.is_some());
        // Each that waits gets a part of what there is, and one at least in its turn.
        let free = limit.tokens().saturating_sub(ahead as u64).div_ceil(others as u64 + 1);
        let count = u32::try_from(free).unwrap_or(u32::MAX).min(ask.count);
        limit.credit -= limit.rate.interval() * u64::from(count);
        if let Some(place) = place {
            limit.waiting.remove(place);
        }
        let mut wait_ms = 0;
        if count < ask.count {
            let place = if count == 0 { ahead } else { limit.waiting.len() };
            limit.waiting.insert(place, (part, now));
            let missing = limit.rate.interval().saturating_mul(place as u64 + 1).saturating_sub(limit.credit);
            wait_ms = u32::try_from(missing.div_ceil(MILLIS)).unwrap_or(u32::MAX);
        }
        self.limits.insert(ask.key, limit);
        TokenGrant { key: ask.key, count, wait_ms }
    }

    /// A limit as if it had been unused since this home began.
    fn new_limit(&self, rate: Rate, now: u64) -> HomeLimit {
        let at = self.spans.front().map_or(now, |span| span.from);
        HomeLimit { rate, rate_since: now, asked_at: now, credit: 0, at, waiting: VecDeque::new() }
    }

    /// Counts the tokens up to now. While shards do not hear, their shares of rate and burst are not the home's.
    fn settle(&self, key: u64, limit: &mut HomeLimit, now: u64) {
        let oldest = self.spans.front().map_or(now, |span| span.from);
        if limit.at < oldest {
            (limit.at, limit.credit) = (oldest, 0);
        }
        let ends = self.spans.iter().skip(1).map(|next| next.from).chain([now]);
        let at = limit.at;
        for (span, end) in self.spans.iter().zip(ends).filter(|(_, end)| *end >= at) {
            let most = self.most(key, limit.rate, span);
            let gained = share_of(end - limit.at, span, &self.shards);
            limit.credit = limit.credit.min(most).saturating_add(gained).min(most);
            limit.at = end;
        }
    }

    /// The most credit of a limit.
    fn most(&self, key: u64, rate: Rate, span: &Span) -> u64 {
        let hears = span.hears.iter().enumerate().filter(|(_, hears)| **hears);
        let burst: u32 = hears.map(|(part, _)| burst_of(rate, key, part, &self.shards, self.rules)).sum();
        rate.interval().saturating_mul(burst.into()).saturating_add(share_of(BEYOND_BURST, span, &self.shards))
    }

    /// Takes back tokens that died unused: not more of them than if they had never been lent.
    fn take_back(&mut self, returned: &TokensReturned, now: u64) {
        let Some(mut limit) = self.limits.remove(&returned.key) else { return };
        self.settle(returned.key, &mut limit, now);
        let span = self.spans.back().expect("there is one from the beginning on");
        let worth = limit.rate.interval().saturating_mul(returned.count.into());
        // Meanwhile the limit may have gained what would not have fitted beside them.
        let lost = if self.rules.returned_late { now.saturating_sub(returned.granted_at) } else { 0 };
        if returned.granted_at >= span.from.max(limit.rate_since) || !self.rules.returned_late {
            let most = self.most(returned.key, limit.rate, span);
            limit.credit = limit.credit.saturating_add(worth.saturating_sub(lost)).min(most);
        }
        self.limits.insert(returned.key, limit);
    }

    /// Drops limits that were not asked for lately and are full: new ones would be the same.
    fn tidy(&mut self, now: u64) {
        if self.limits.len() < self.tidy_at {
            return;
        }
        let mut limits = std::mem::take(&mut self.limits);
        let span = self.spans.back().expect("there is one from the beginning on");
        limits.retain(|key, limit| {
            self.settle(*key, limit, now);
            now.saturating_sub(limit.asked_at) < KEPT || limit.credit < self.most(*key, limit.rate, span)
        });
        self.limits = limits;
        self.tidy_at = TIDY_MIN.max(2 * self.limits.len());
    }
}

impl HomeLimit {
    fn tokens(&self) -> u64 {
        self.credit / self.rate.interval()
    }

    /// Nodes that are configured differently, as during a change: the lowest rate counts.
    fn agree(&mut self, rate: Rate, now: u64) {
        let is_lower = |one: Rate, other: Rate| (one.interval(), other.burst()) > (other.interval(), one.burst());
        if rate != self.rate && (is_lower(rate, self.rate) || now.saturating_sub(self.asked_at) >= KEPT) {
            self.credit = self.tokens().saturating_mul(rate.interval());
            (self.rate, self.rate_since) = (rate, now);
        }
        if rate == self.rate {
            self.asked_at = now;
        }
    }
}

/// The part of a time, or of a rate in that time, of the shards that hear.
fn share_of(time: u64, span: &Span, shards: &[u16]) -> u64 {
    let hear = span.hears.iter().filter(|hears| **hears).count() as u64;
    let all = shards.len() as u64;
    time / all * hear + time % all * hear / all
}

/// A shard that waits for tokens asks again within this time, or loses its turn.
const TURN: u64 = 1500 * MILLIS;
/// A rate is in force so long after its last wish.
const KEPT: u64 = 10_000 * MILLIS;
/// Most changes of the shards that hear that a limit may sleep through.
const SPANS_MAX: usize = 256;
/// Number of limits below which unused ones stay.
const TIDY_MIN: usize = 10_000;
