//! Idempotency keys in memory: outcomes, running requests, and each token's limit.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::entry::{BodyDigest, Indexes, KeyId, Settled};
use crate::answer::Refusal;

/// The idempotency keys of a server.
#[derive(Debug)]
pub(super) struct KeyTable {
    state: Mutex<State>,
    /// Maximum weight of all keys: tokens have equal shares of it.
    weight_max: usize,
}

#[derive(Debug)]
struct State {
    /// By the first octet of the key, so that a snapshot locks one part at a time.
    shards: [HashMap<KeyId, Known>; SHARDS],
    tokens: HashMap<[u8; 8], OfToken>,
    running: HashSet<KeyId>,
    /// The latest time in the table.
    latest: u32,
}

#[derive(Debug, Default)]
struct OfToken {
    /// Weight of the token's keys.
    weight: usize,
    /// Keys in the order of their last outcome, each with its time. Entries of keys with a later outcome are stale.
    order: VecDeque<(u32, [u8; 16])>,
}

#[derive(Debug)]
struct Known {
    digest: BodyDigest,
    begun: u32,
    at: u32,
    total: u32,
    /// Settled recipients; `None`: all of them.
    open: Option<Box<Indexes>>,
    failed: BTreeMap<u32, Refusal>,
}

/// The outcome of a request so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyOutcome {
    /// Indexes of settled recipients.
    pub settled: Indexes,
    /// Recipients that have failed, by index.
    pub failed: BTreeMap<u32, Refusal>,
}

/// State of an idempotency key when a request uses it.
#[derive(Debug)]
pub enum FoundKey {
    /// All recipients are settled.
    Complete(KeyOutcome),
    /// New, or with unsettled recipients: the request may continue.
    Open(RunningKey),
}

/// Why a request with an idempotency key is refused unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// Another request with the key is still running.
    #[error("a request with this Idempotency-Key is running")]
    Running,
    /// The key was used before with another body.
    #[error("this Idempotency-Key was used before with a different body")]
    OtherBody,
    /// The token has reached its limit, and no key is old enough to be dropped.
    #[error("this token has used too many Idempotency-Keys in the last hour")]
    TooMany,
}

/// The idempotency key of a running request: no other request may use it until this is dropped.
#[derive(Debug)]
pub struct RunningKey {
    table: Arc<KeyTable>,
    id: KeyId,
    digest: BodyDigest,
    begun: u32,
    before: KeyOutcome,
}

impl RunningKey {
    /// Outcome of earlier requests with the key.
    pub fn before(&self) -> &KeyOutcome {
        &self.before
    }

    /// Makes the entry for the batch that settles these recipients.
    pub fn settles(&self, total: u32, indexes: Indexes, failed: BTreeMap<u32, Refusal>, now: u32) -> Settled {
        let Self { id, digest, begun, .. } = *self;
        Settled { id, digest, begun, at: now, total, indexes, failed }
    }
}

impl Drop for RunningKey {
    fn drop(&mut self) {
        self.table.lock().running.remove(&self.id);
    }
}

impl Known {
    fn is_complete(&self) -> bool {
        self.open.is_none()
    }

    fn outcome(&self) -> KeyOutcome {
        let settled = self.open.as_deref().cloned().unwrap_or_else(|| Indexes::all_of(self.total));
        KeyOutcome { settled, failed: self.failed.clone() }
    }

    /// Memory in units of one key, about 100 bytes.
    fn weight(&self) -> usize {
        let ranges = self.open.as_ref().map_or(0, |open| open.ranges());
        1 + ranges / 8 + self.failed.len() / 2
    }

    fn add(&mut self, settled: Settled) {
        self.at = self.at.max(settled.at);
        if let Some(mut open) = self.open.take() {
            open.add_all(&settled.indexes);
            self.open = (!open.are_all_of(self.total)).then_some(open);
        }
        self.failed.extend(settled.failed);
    }
}

impl KeyTable {
    pub fn new(weight_max: usize) -> Self {
        let shards = std::array::from_fn(|_| HashMap::new());
        let state = State { shards, tokens: HashMap::new(), running: HashSet::new(), latest: 0 };
        Self { state: Mutex::new(state), weight_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest time of an outcome; 0 without any.
    pub fn latest(&self) -> u32 {
        self.lock().latest
    }

    /// Begins a request with a key, at `now` of the [clock](KeyClock).
    pub fn begin(self: &Arc<Self>, id: KeyId, digest: BodyDigest, now: u32) -> Result<FoundKey, KeyRefusal> {
        let mut state = self.lock();
        state.forget_expired(id.token, now);
        if state.running.contains(&id) {
            return Err(KeyRefusal::Running);
        }
        let (begun, before) = match state.shard(id).get(&id) {
            Some(known) if known.digest != digest => return Err(KeyRefusal::OtherBody),
            Some(known) if known.is_complete() => return Ok(FoundKey::Complete(known.outcome())),
            Some(known) => (known.begun, known.outcome()),
            None => {
                let share = self.weight_max / state.tokens.len().max(1);
                if !state.make_room(id.token, share, now) {
                    return Err(KeyRefusal::TooMany);
                }
                (now, KeyOutcome::default())
            }
        };
        state.running.insert(id);
        drop(state);
        Ok(FoundKey::Open(RunningKey { table: Arc::clone(self), id, digest, begun, before }))
    }

    /// Applies durable entries. Entries may be repeated, and in any order within one life of a key.
    pub fn apply(&self, settled: Settled, now: u32) {
        let mut state = self.lock();
        let id = settled.id;
        let at = settled.at;
        state.latest = state.latest.max(at);
        state.forget_expired(id.token, now);
        if now.saturating_sub(at) >= KEPT_MAX_SECS {
            return;
        }
        let known = state.shards[shard_of(id)].remove(&id);
        let (before, placed_at) = known.as_ref().map_or((0, None), |known| (known.weight(), Some(known.at)));
        let known = match known {
            Some(known) if known.begun > settled.begun => known,
            Some(mut known) if known.begun == settled.begun => {
                known.add(settled);
                known
            }
            // What an earlier life of the key has settled does not count.
            _ => {
                let Settled { digest, begun, total, .. } = settled;
                let mut known = Known { digest, begun, at, total, open: Some(Box::default()), failed: BTreeMap::new() };
                known.add(settled);
                known
            }
        };
        let of = state.tokens.entry(id.token).or_default();
        of.weight = of.weight + known.weight() - before;
        if placed_at != Some(known.at) {
            of.order.push_back((known.at, id.key));
        }
        state.shards[shard_of(id)].insert(id, known);
    }

    /// Number of keys of all tokens.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().shards.iter().map(HashMap::len).sum()
    }

    /// Keys of one shard, as equivalent entries. `None` after the last shard.
    pub fn part(&self, number: usize) -> Option<Vec<Settled>> {
        let state = self.lock();
        let shard = state.shards.get(number)?;
        Some(
            shard
                .iter()
                .map(|(id, known)| {
                    let KeyOutcome { settled: indexes, failed } = known.outcome();
                    let Known { digest, begun, at, total, .. } = *known;
                    Settled { id: *id, digest, begun, at, total, indexes, failed }
                })
                .collect(),
        )
    }

    /// Sorts keys by time, after reading a snapshot.
    pub fn sort(&self) {
        self.lock().tokens.values_mut().for_each(|of| of.order.make_contiguous().sort_unstable());
    }
}

impl State {
    fn shard(&self, id: KeyId) -> &HashMap<KeyId, Known> {
        &self.shards[shard_of(id)]
    }

    /// Drops keys of a token that are a day old. A running one keeps its position, and is dropped when it ends.
    fn forget_expired(&mut self, token: [u8; 8], now: u32) {
        let mut kept = Vec::new();
        while let Some(of) = self.tokens.get_mut(&token)
            && let Some(&(at, key)) = of.order.front()
            && now.saturating_sub(at) >= KEPT_MAX_SECS
        {
            let id = KeyId { token, key };
            if self.running.contains(&id) && self.shards[shard_of(id)].get(&id).is_some_and(|known| known.at == at) {
                of.order.pop_front();
                kept.push((at, key));
            } else {
                self.forget_first(token);
            }
        }
        self.put_back(token, kept);
    }

    /// Returns positions taken from the front of a token's order.
    fn put_back(&mut self, token: [u8; 8], kept: Vec<(u32, [u8; 16])>) {
        if let Some(of) = self.tokens.get_mut(&token) {
            kept.into_iter().rev().for_each(|place| of.order.push_front(place));
        }
    }

    /// Drops the oldest complete keys of a token until it has fewer than `share`. False if the rest is too young or
    /// incomplete.
    fn make_room(&mut self, token: [u8; 8], share: usize, now: u32) -> bool {
        // Keys that stay are put back.
        let mut kept = Vec::new();
        while let Some(of) = self.tokens.get_mut(&token).filter(|of| of.weight >= share) {
            let Some(&(at, key)) = of.order.front().filter(|(at, _)| now.saturating_sub(*at) >= KEPT_MIN_SECS) else {
                break;
            };
            let id = KeyId { token, key };
            match self.shards[shard_of(id)].get(&id) {
                Some(known) if known.at == at && (!known.is_complete() || self.running.contains(&id)) => {
                    of.order.pop_front();
                    kept.push((at, key));
                }
                _ => self.forget_first(token),
            }
        }
        self.put_back(token, kept);
        self.tokens.get(&token).is_none_or(|of| of.weight < share)
    }

    /// Takes the first position of a token, and drops its key unless it has a later outcome. The key must not be
    /// running.
    fn forget_first(&mut self, token: [u8; 8]) {
        let Some(of) = self.tokens.get_mut(&token) else { return };
        let Some((at, key)) = of.order.pop_front() else { return };
        let id = KeyId { token, key };
        let shard = &mut self.shards[shard_of(id)];
        if shard.get(&id).is_some_and(|known| known.at == at) {
            of.weight -= shard.remove(&id).map_or(0, |known| known.weight());
        }
        if of.weight == 0 && of.order.is_empty() {
            self.tokens.remove(&token);
        }
    }
}

/// A clock for keys, in seconds since 1970, that is never set. A wall clock set back would keep all keys for years, and
/// take a renewed key for an older one; one set forward would drop all keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyClock {
    at_opening: u32,
    opened: Instant,
}

impl KeyClock {
    /// Starts the clock at wall time `wall`, but after `latest`. Downtime counts, but each key keeps at least
    /// [`KEPT_MIN_SECS`].
    pub fn start(latest: u32, wall: u32, opened: Instant) -> Self {
        let at_opening = match latest {
            0 => wall,
            _ => wall.clamp(latest, latest.saturating_add(KEPT_MAX_SECS - KEPT_MIN_SECS)),
        };
        Self { at_opening, opened }
    }

    pub fn at(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.opened).as_secs();
        self.at_opening.saturating_add(u32::try_from(since).unwrap_or(u32::MAX))
    }
}

fn shard_of(id: KeyId) -> usize {
    usize::from(id.key[0]) % SHARDS
}

const SHARDS: usize = 64;
/// Lifetime of a key: a client repeats a request within it.
const KEPT_MAX_SECS: u32 = 24 * 3600;
/// Minimum lifetime of a key.
const KEPT_MIN_SECS: u32 = 3600;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::entry::body_digest;

    const HOUR: u32 = 3600;

    fn id(token: u8, key: u32) -> KeyId {
        KeyId::new(&[token; 32], "/", &key.to_string())
    }

    fn begin(table: &Arc<KeyTable>, id: KeyId, now: u32) -> Result<FoundKey, KeyRefusal> {
        table.begin(id, body_digest(b"{}"), now)
    }

    fn open(found: Result<FoundKey, KeyRefusal>) -> RunningKey {
        match found {
            Ok(FoundKey::Open(running)) => running,
            other => panic!("{other:?}"),
        }
    }

    fn refused(indexes: &[u32]) -> BTreeMap<u32, Refusal> {
        indexes.iter().map(|index| (*index, Refusal { code: 550, line: "550 5.1.1 No".into() })).collect()
    }

    /// Settles some of three recipients.
    fn settle(table: &Arc<KeyTable>, id: KeyId, indexes: &[u32], failed: &[u32], now: u32) {
        let running = open(begin(table, id, now));
        let settled = running.settles(3, indexes.iter().copied().collect(), refused(failed), now);
        table.apply(settled, now);
    }

    #[test]
    fn a_key_is_complete_once_all_recipients_are_settled() {
        let table = Arc::new(KeyTable::new(100));
        settle(&table, id(1, 1), &[0, 2], &[2], 10);
        let running = open(begin(&table, id(1, 1), 11));
        assert_eq!(running.before(), &KeyOutcome { settled: [0, 2].into_iter().collect(), failed: refused(&[2]) });
        assert_eq!(begin(&table, id(1, 1), 11).unwrap_err(), KeyRefusal::Running);
        table.apply(running.settles(3, [1].into_iter().collect(), BTreeMap::new(), 12), 12);
        drop(running);
        let Ok(FoundKey::Complete(outcome)) = begin(&table, id(1, 1), 13) else { panic!("not complete") };
        assert_eq!((outcome.settled, outcome.failed), (Indexes::all_of(3), refused(&[2])));
        assert_eq!(table.begin(id(1, 1), body_digest(b"[]"), 13).unwrap_err(), KeyRefusal::OtherBody);
        assert!(begin(&table, id(2, 1), 13).is_ok_and(|found| matches!(found, FoundKey::Open(_))), "of another token");
    }

    #[test]
    fn a_changed_wall_clock_ends_no_key_and_keeps_none_forever() {
        let opened = Instant::now();
        let (latest, wall_now) = (1_790_000_000, 1_790_000_500);
        let later = |secs: u32| opened + std::time::Duration::from_secs(secs.into());
        let clock = |wall| KeyClock::start(latest, wall, opened);
        assert_eq!(clock(wall_now).at(later(7)), wall_now + 7);
        assert_eq!(KeyClock::start(0, 5, opened).at(later(7)), 12, "without keys the wall's counts");
        for wall in [0, 5, latest - 1, u32::MAX, latest + 30 * HOUR] {
            let table = Arc::new(KeyTable::new(10));
            (0..10).for_each(|key| settle(&table, id(1, key), &[0, 1, 2], &[], latest));
            assert_eq!(table.latest(), latest);
            let clock = clock(wall);
            let known = begin(&table, id(1, 3), clock.at(opened));
            assert!(matches!(known, Ok(FoundKey::Complete(_))), "{wall}: it is known after the restart");
            // An hour later there is room again, and after a day it begins anew.
            drop(open(begin(&table, id(1, 10), clock.at(later(HOUR)))));
            drop(open(begin(&table, id(1, 3), clock.at(later(24 * HOUR)))));
        }
    }

    #[test]
    fn a_request_that_settles_nothing_leaves_no_key() {
        let table = Arc::new(KeyTable::new(100));
        drop(open(begin(&table, id(1, 1), 10)));
        assert_eq!(table.len(), 0);
        assert!(table.begin(id(1, 1), body_digest(b"[]"), 13).is_ok());
    }

    #[test]
    fn keys_are_forgotten_after_a_day_and_may_begin_anew() {
        let table = Arc::new(KeyTable::new(100));
        settle(&table, id(1, 1), &[0, 1, 2], &[], 10);
        let old = table.part(shard_of(id(1, 1))).unwrap().remove(0);
        assert!(matches!(begin(&table, id(1, 1), 9 + 24 * HOUR), Ok(FoundKey::Complete(_))));
        let now = 10 + 24 * HOUR;
        settle(&table, id(1, 1), &[0], &[], now);
        // Entries of both lives are shown again after a restart.
        let new = table.part(shard_of(id(1, 1))).unwrap().remove(0);
        for entries in [[&old, &new], [&new, &old]] {
            let table = Arc::new(KeyTable::new(100));
            entries.into_iter().for_each(|entry| table.apply(entry.clone(), 11));
            let running = open(begin(&table, id(1, 1), now));
            assert_eq!(running.before().settled, [0].into_iter().collect());
        }
    }

    #[test]
    fn a_key_that_expires_at_work_goes_afterwards() {
        let table = Arc::new(KeyTable::new(100));
        settle(&table, id(1, 1), &[0], &[], 10);
        let running = open(begin(&table, id(1, 1), 11));
        let late = 10 + 24 * HOUR;
        drop(open(begin(&table, id(1, 2), late)));
        assert_eq!(table.len(), 1, "it is at work");
        drop(running);
        drop(open(begin(&table, id(1, 2), late)));
        assert!(table.len() == 0 && table.lock().tokens.is_empty(), "it stays for ever");
    }

    #[test]
    fn a_token_over_its_share_loses_its_oldest_complete_keys() {
        let table = Arc::new(KeyTable::new(10));
        settle(&table, id(1, 0), &[0], &[], 0);
        (1..10).for_each(|key| settle(&table, id(1, key), &[0, 1, 2], &[], key));
        assert_eq!(begin(&table, id(1, 10), HOUR - 1).unwrap_err(), KeyRefusal::TooMany);
        assert!(matches!(begin(&table, id(1, 1), HOUR), Ok(FoundKey::Complete(_))), "a known key is answered");
        settle(&table, id(1, 10), &[0, 1, 2], &[], HOUR + 2);
        assert_eq!(open(begin(&table, id(1, 0), HOUR + 2)).before().settled, [0].into_iter().collect(), "not complete");
        drop(open(begin(&table, id(1, 1), HOUR + 2)));
        // Another token has a share of its own, and that of the first is smaller now.
        settle(&table, id(2, 0), &[0, 1, 2], &[], HOUR + 3);
        drop(open(begin(&table, id(1, 1), HOUR + 20)));
        assert_eq!(table.lock().tokens[&id(1, 0).token].weight, 4);
        assert_eq!(open(begin(&table, id(1, 0), HOUR + 20)).before().settled, [0].into_iter().collect());
    }

    #[test]
    fn failed_recipients_count_against_the_share() {
        let table = Arc::new(KeyTable::new(10));
        let running = open(begin(&table, id(1, 1), 1));
        let all: Vec<u32> = (0..30).collect();
        table.apply(running.settles(30, all.iter().copied().collect(), refused(&all), 1), 1);
        drop(running);
        assert_eq!(begin(&table, id(1, 2), 2).unwrap_err(), KeyRefusal::TooMany);
        drop(open(begin(&table, id(1, 2), HOUR + 1)));
        assert!(table.lock().tokens.is_empty());
    }

    #[test]
    fn keys_that_settle_and_expire_leave_nothing() {
        let table = Arc::new(KeyTable::new(1000));
        for key in 0..100 {
            settle(&table, id(1, key), &[0], &[], key);
            settle(&table, id(1, key), &[1, 2], &[2], key + 1);
        }
        assert_eq!(table.len(), 100);
        table.sort();
        drop(open(begin(&table, id(1, 1000), 25 * HOUR)));
        let state = table.lock();
        assert!(state.tokens.is_empty() && state.shards.iter().all(HashMap::is_empty) && state.running.is_empty());
    }
}
