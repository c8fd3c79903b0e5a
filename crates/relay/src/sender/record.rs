//! What is decided becomes durable: changes of recipients, joined while an earlier batch is under way, and notifications with the changes that they tell of.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use posthaste_spool::{Batch, Body, Entry, Spool, StreamId};

use crate::queue::entry::CHANGES_MAX;
use crate::queue::{Change, Clock, QueueEntry, Secs};

/// Appends for the queue. An append that fails is repeated: outcomes are not forgotten.
pub(super) struct Recorder {
    spool: Arc<dyn Spool>,
    stream: StreamId,
    state: Mutex<State>,
    /// Nothing is left to be appended, or under way.
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    changes: Vec<Change>,
    /// Refused by the spool, to be repeated.
    refused: Vec<Told>,
    joined_under_way: bool,
    under_way: usize,
}

/// Changes, and the notification that tells of them.
#[derive(Clone)]
pub(super) struct Told {
    pub at: Secs,
    pub changes: Vec<Change>,
    /// Entries for streams that deliver the notification.
    pub entries: Vec<Entry>,
    pub body: Vec<Bytes>,
}

impl Recorder {
    pub fn new(spool: Arc<dyn Spool>, stream: StreamId) -> Self {
        Recorder { spool, stream, state: Mutex::default(), is_idle: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("what is to be recorded")
    }

    /// Records a change with the next batch: at once, or when the batch under way is durable.
    pub fn record(self: &Arc<Self>, changes: impl IntoIterator<Item = Change>, now: Secs) {
        let mut state = self.state();
        state.changes.extend(changes);
        self.append_joined(state, now);
    }

    fn append_joined(self: &Arc<Self>, mut state: MutexGuard<'_, State>, now: Secs) {
        if state.joined_under_way || state.changes.is_empty() {
            return;
        }
        let more = state.changes.len().min(CHANGES_MAX);
        let changes: Vec<Change> = state.changes.drain(..more).collect();
        state.joined_under_way = true;
        state.under_way += 1;
        drop(state);
        let entry = self.entry(now, &changes);
        let recorder = self.clone();
        let then = move |outcome: Result<_, _>| {
            let mut state = recorder.state();
            state.joined_under_way = false;
            state.under_way -= 1;
            if outcome.is_err() {
                state.changes.extend(changes);
                recorder.is_idle.notify_all();
                return;
            }
            recorder.is_idle.notify_all();
            recorder.append_joined(state, now);
        };
        self.spool.append(Batch { entries: vec![entry], body: Body::None }, Box::new(then));
    }

    /// Records changes together with a notification: all of it or nothing.
    pub fn record_told(self: &Arc<Self>, told: Told) {
        self.state().under_way += 1;
        let mut entries = vec![self.entry(told.at, &told.changes)];
        entries.extend(told.entries.iter().cloned());
        let body = Body::Inline(told.body.clone());
        let recorder = self.clone();
        let then = move |outcome: Result<_, _>| {
            let mut state = recorder.state();
            state.under_way -= 1;
            if outcome.is_err() {
                state.refused.push(told);
            }
            recorder.is_idle.notify_all();
        };
        self.spool.append(Batch { entries, body }, Box::new(then));
    }

    /// Tries once more what the spool has refused; to be called each second.
    pub fn retry(self: &Arc<Self>, now: Secs) {
        let refused = std::mem::take(&mut self.state().refused);
        refused.into_iter().for_each(|told| self.record_told(told));
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

    fn entry(&self, at: Secs, changes: &[Change]) -> Entry {
        let entry = QueueEntry::Changes { at, changes: changes.to_vec() };
        Entry { stream: self.stream, needs_body: false, payload: entry.encode().into() }
    }
}

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
