//! Makes decisions durable: changes of recipients, joined while an earlier batch is under way.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use posthaste_consumer::{BudgetChange, OutcomeBudget, poison_watch};
use posthaste_spool::{AppendError, Batch, Body, Entry, Spool, StreamId};
use posthaste_watch::{Watch, Worker};

use super::observer::{Attempt, Observer, RecordingState};
use super::replies;
use crate::queue::{Change, Clock, Key, QueueEntry, Secs, What};

/// Appends for the queue. An append that fails is repeated: outcomes are not forgotten.
pub(super) struct OutcomeRecorder {
    spool: Arc<dyn Spool>,
    stream: StreamId,
    observer: Option<Arc<dyn Observer>>,
    /// Outcomes of attempts that are not recorded; beyond it nothing is sent.
    pub budget: OutcomeBudget,
    state: Mutex<State>,
    worker: Worker,
    /// Notified when the last append has ended.
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    changes: Vec<(Change, Option<Attempt>)>,
    /// Replies about recipients that are tried again.
    replies: VecDeque<(Key, Arc<str>)>,
    /// The batch that the spool has refused: it comes first.
    refused: Option<MadeBatch>,
    joined_under_way: bool,
    under_way: usize,
}

/// A batch, and how many outcomes of attempts it records.
#[derive(Clone)]
struct MadeBatch {
    entries: Vec<Entry>,
    outcomes: usize,
}

impl OutcomeRecorder {
    pub fn new(spool: Arc<dyn Spool>, stream: StreamId, observer: Option<Arc<dyn Observer>>, watch: &Watch) -> Self {
        let worker = watch.worker("records of the queue", &["", "waiting for the spool"], PATIENCE);
        let budget = OutcomeBudget::new(poison_watch(&spool), Instant::now());
        OutcomeRecorder { spool, stream, observer, budget, state: Mutex::default(), worker, is_idle: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("what is to be recorded")
    }

    /// Records changes with the next batch: at once, or when the batch under way is durable. What is told of them is in the same batch.
    pub fn record(self: &Arc<Self>, changes: Vec<(Change, Option<Attempt>)>, now: Secs) {
        self.budget.done(outcomes(changes.iter().map(|(change, _)| change)));
        let mut state = self.state();
        state.changes.extend(changes);
        self.append_joined(state, now);
    }

    /// Changes that may still wait to be recorded, for what can be decided later.
    pub fn room(&self) -> usize {
        CHANGES_MAX.saturating_sub(self.state().changes.len())
    }

    /// Has the next batch say why a recipient is tried again. It begins one only with [`record`](Self::record), also of no changes, or within a second.
    pub fn reply(&self, key: Key, said: Arc<str>) {
        let mut state = self.state();
        if state.replies.len() >= REPLIES_MAX {
            state.replies.pop_front();
        }
        state.replies.push_back((key, said));
    }

    fn append_joined(self: &Arc<Self>, mut state: MutexGuard<'_, State>, now: Secs) {
        let has_any = !state.changes.is_empty() || !state.replies.is_empty() || state.refused.is_some();
        if state.joined_under_way || !has_any || self.budget.is_closed() {
            return;
        }
        state.joined_under_way = true;
        self.worker.pulse().step(1);
        state.under_way += 1;
        let made = state.refused.take();
        let more = if made.is_some() { 0 } else { state.changes.len().min(JOINED_MAX) };
        let joined: Vec<_> = state.changes.drain(..more).collect();
        let replies = if made.is_some() { 0 } else { state.replies.len().min(REPLIES_JOINED_MAX) };
        let replies: Vec<_> = state.replies.drain(..replies).collect();
        drop(state);
        let made = made.unwrap_or_else(|| {
            let outcomes = outcomes(joined.iter().map(|(change, _)| change));
            MadeBatch { entries: self.entries(joined, replies, now), outcomes }
        });
        let (recorder, again) = (self.clone(), made.clone());
        let then = move |outcome: Result<_, _>| {
            match &outcome {
                Ok(_) => recorder.budget.recorded(again.outcomes, Instant::now()),
                Err(error) => recorder.refused(error),
            }
            let mut state = recorder.state();
            state.joined_under_way = false;
            recorder.worker.pulse().step(0);
            state.under_way -= 1;
            recorder.is_idle.notify_all();
            if outcome.is_err() {
                state.refused = Some(again);
                return;
            }
            recorder.append_joined(state, now);
        };
        self.spool.append(Batch { entries: made.entries, body: Body::None }, Box::new(then));
    }

    fn refused(&self, error: &AppendError) {
        match error {
            AppendError::Poisoned(why) => self.close(why),
            // There is room again in a moment.
            AppendError::Busy => {}
            error => self.budget.refused(error.to_string().into()),
        }
    }

    fn close(&self, why: &str) {
        if self.budget.close() {
            self.tell(&RecordingState::Poisoned { unrecorded: self.budget.unrecorded(), why });
        }
    }

    fn tell(&self, state: &RecordingState<'_>) {
        self.observer.iter().for_each(|observer| observer.recording(state));
    }

    /// Ends all for good once the spool is poisoned, also if another stream has found that. To be called often.
    pub fn look_for_poison(&self) {
        if let Some(why) = self.spool.poisoned() {
            self.close(&why);
        }
    }

    /// Tells whether records are made. To be called each second.
    pub fn look(&self) {
        match self.budget.look(Instant::now()) {
            Some(BudgetChange::Stopped { unrecorded, why }) => {
                self.tell(&RecordingState::Stopped { unrecorded, why: why.as_deref() });
            }
            Some(BudgetChange::GoesOn) => self.tell(&RecordingState::GoesOn),
            None => {}
        }
    }

    fn entries(&self, joined: Vec<(Change, Option<Attempt>)>, replies: Vec<(Key, Arc<str>)>, now: Secs) -> Vec<Entry> {
        let changes: Vec<Change> = joined.iter().map(|(change, _)| *change).collect();
        let mut entries = Vec::new();
        if !changes.is_empty() {
            entries.push(self.entry(now, &changes));
        }
        let of_reply =
            |entry: QueueEntry| Entry { stream: self.stream, needs_body: false, payload: entry.encode().into() };
        entries.extend(replies::of_replies(replies).into_iter().map(of_reply));
        let attempts = joined.into_iter().filter_map(|(_, attempt)| attempt);
        entries.extend(self.events(attempts.collect()));
        entries
    }

    /// The observer's entry in the batch of attempts.
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

/// Number of attempts that these changes end: without the record they would be repeated.
fn outcomes<'a>(changes: impl IntoIterator<Item = &'a Change>) -> usize {
    let is_outcome = |change: &&Change| {
        matches!(change.what, What::Delivered(_) | What::Failed(_) | What::Owed(..) | What::Deferred { .. })
    };
    changes.into_iter().filter(is_outcome).count()
}

/// Records that the spool has for longer are told of.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Changes in one batch: what is told of them must fit into it too.
const JOINED_MAX: usize = 1000;
/// Changes that wait, of those that could wait in the queue: a disk that is full for long costs no memory for them.
const CHANGES_MAX: usize = 20_000;
/// Replies in one batch, of a thousand bytes at most.
const REPLIES_JOINED_MAX: usize = 500;
/// Replies that wait for a batch. Of more the oldest are in memory alone.
const REPLIES_MAX: usize = 10_000;

/// The queue's time, from the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    clock: Clock,
    begun: std::time::Instant,
}

impl Time {
    /// The time of an opening.
    pub fn start(recorded: Secs) -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time { clock: Clock::start(recorded, wall, std::time::Duration::ZERO), begun: std::time::Instant::now() }
    }

    pub fn now(&self) -> Secs {
        self.clock.now(self.begun.elapsed())
    }

    /// From the queue's time to Unix seconds of the wall's clock, for people and other hosts.
    pub fn wall_clock(&self) -> impl Fn(Secs) -> i64 + use<> {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let offset = self.clock.to_wall(self.begun.elapsed(), wall);
        move |secs| offset.saturating_add(secs.into())
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
