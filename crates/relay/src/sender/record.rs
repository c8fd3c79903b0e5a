//! What is decided becomes durable: changes of recipients, joined while an earlier batch is under way.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use posthaste_spool::watch::{Watch, Worker};
use posthaste_spool::{Batch, Body, Entry, Spool, StreamId};

use super::observer::{Attempt, Observer};
use super::replies;
use crate::queue::{Change, Clock, Key, QueueEntry, Secs};

/// Appends for the queue. An append that fails is repeated: outcomes are not forgotten.
pub(super) struct Recorder {
    spool: Arc<dyn Spool>,
    stream: StreamId,
    observer: Option<Arc<dyn Observer>>,
    state: Mutex<State>,
    worker: Worker,
    /// Nothing is left to be appended, or under way.
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    changes: Vec<(Change, Option<Attempt>)>,
    /// What was said of recipients that are tried again.
    replies: Vec<(Key, Arc<str>)>,
    /// Batches that are made already, one of them perhaps refused by the spool before: they come first.
    made: VecDeque<Vec<Entry>>,
    joined_under_way: bool,
    under_way: usize,
}

impl Recorder {
    pub fn new(spool: Arc<dyn Spool>, stream: StreamId, observer: Option<Arc<dyn Observer>>, watch: &Watch) -> Self {
        let worker = watch.worker("records of the queue", &["", "waiting for the spool"], PATIENCE);
        Recorder { spool, stream, observer, state: Mutex::default(), worker, is_idle: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("what is to be recorded")
    }

    /// Records changes with the next batch: at once, or when the batch under way is durable. What is told of them is in the same batch.
    pub fn record(self: &Arc<Self>, changes: Vec<(Change, Option<Attempt>)>, now: Secs) {
        let mut state = self.state();
        state.changes.extend(changes);
        self.append_joined(state, now);
    }

    /// How many changes more may wait to be recorded, for what can be decided later.
    pub fn room(&self) -> usize {
        CHANGES_MAX.saturating_sub(self.state().changes.len())
    }

    /// Has the next batch of changes say why a recipient is tried again.
    pub fn reply(&self, key: Key, said: Arc<str>) {
        let mut state = self.state();
        if state.replies.len() < REPLIES_MAX {
            state.replies.push((key, said));
        }
    }

    /// Records changes whose event is an entry already, in a batch of their own.
    pub fn record_with(self: &Arc<Self>, changes: &[Change], events: Option<Entry>, now: Secs) {
        let mut state = self.state();
        state.made.push_back(std::iter::once(self.entry(now, changes)).chain(events).collect());
        self.append_joined(state, now);
    }

    fn append_joined(self: &Arc<Self>, mut state: MutexGuard<'_, State>, now: Secs) {
        if state.joined_under_way || state.changes.is_empty() && state.made.is_empty() {
            return;
        }
        state.joined_under_way = true;
        self.worker.pulse().step(1);
        state.under_way += 1;
        let made = state.made.pop_front();
        let more = if made.is_some() { 0 } else { state.changes.len().min(JOINED_MAX) };
        let joined: Vec<_> = state.changes.drain(..more).collect();
        let replies = if made.is_some() { 0 } else { state.replies.len().min(REPLIES_JOINED_MAX) };
        let replies: Vec<_> = state.replies.drain(..replies).collect();
        drop(state);
        let entries = made.unwrap_or_else(|| self.entries(joined, replies, now));
        let (recorder, again) = (self.clone(), entries.clone());
        let then = move |outcome: Result<_, _>| {
            let mut state = recorder.state();
            state.joined_under_way = false;
            recorder.worker.pulse().step(0);
            state.under_way -= 1;
            recorder.is_idle.notify_all();
            if outcome.is_err() {
                state.made.push_front(again);
                return;
            }
            recorder.append_joined(state, now);
        };
        self.spool.append(Batch { entries, body: Body::None }, Box::new(then));
    }

    fn entries(&self, joined: Vec<(Change, Option<Attempt>)>, replies: Vec<(Key, Arc<str>)>, now: Secs) -> Vec<Entry> {
        let changes: Vec<Change> = joined.iter().map(|(change, _)| *change).collect();
        let mut entries = vec![self.entry(now, &changes)];
        let of_reply =
            |entry: QueueEntry| Entry { stream: self.stream, needs_body: false, payload: entry.encode().into() };
        entries.extend(replies::entries(replies).into_iter().map(of_reply));
        let attempts = joined.into_iter().filter_map(|(_, attempt)| attempt);
        entries.extend(self.events(attempts.collect()));
        entries
    }

    /// What the observer wants to have in the batch of attempts.
    pub fn events(&self, attempts: Vec<Attempt>) -> Option<Entry> {
        match &self.observer {
            Some(observer) if !attempts.is_empty() => observer.attempts(attempts),
            _ => None,
        }
    }

    /// Something else is under way that is recorded with a batch of its own.
    pub fn begin(&self) {
        self.state().under_way += 1;
    }

    /// It is recorded, or is given up because the relay ends.
    pub fn end(&self) {
        self.state().under_way -= 1;
        self.is_idle.notify_all();
    }

    /// Tries once more what the spool has refused; to be called each second.
    pub fn retry(self: &Arc<Self>, now: Secs) {
        self.append_joined(self.state(), now);
    }

    /// Waits until nothing is under way, or the deadline. Blocks.
    pub fn wait_until(&self, deadline: std::time::Instant) {
        let mut state = self.state();
        while state.under_way > 0 {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.is_idle.wait_timeout(state, left).expect("what is to be recorded").0;
        }
    }

    /// The entry for changes, for a batch of the caller's.
    pub fn entry(&self, at: Secs, changes: &[Change]) -> Entry {
        let entry = QueueEntry::Changes { at, changes: changes.to_vec() };
        Entry { stream: self.stream, needs_body: false, payload: entry.encode().into() }
    }
}

/// Records that the spool has for longer are told of.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Changes in one batch: what is told of them must fit into it too.
const JOINED_MAX: usize = 1000;
/// Changes that wait, of those that could wait in the queue: a disk that is full for long costs no memory for them.
const CHANGES_MAX: usize = 20_000;
/// Replies in one batch, of a thousand bytes at most.
const REPLIES_JOINED_MAX: usize = 500;
/// Replies that wait for a batch; more are in memory alone.
const REPLIES_MAX: usize = 10_000;

/// The queue's time, from the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    clock: Clock,
    begun: std::time::Instant,
}

impl Time {
    /// The time of an opening.
    pub fn start(recorded: Secs, wall_secs: u64) -> Self {
        Time { clock: Clock::start(recorded, wall_secs, std::time::Duration::ZERO), begun: std::time::Instant::now() }
    }

    pub fn now(&self) -> Secs {
        self.clock.now(self.begun.elapsed())
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
