//! Makes decisions durable: changes of recipients, joined in one batch while an earlier one is in flight.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use posthaste_consumer::{BudgetChange, BudgetGate, OutcomeBudget, poison_watch};
use posthaste_spool::{AppendError, Batch, Body, Entry, Spool, StreamId};
use posthaste_watch::{Watch, Worker};

use super::observer::{Observer, RecipientAttempt, RecordingState};
use super::replies;
use posthaste_queue::{Change, QueueClock, QueueEntry, RecipientKey, Secs, What};

/// Appends the queue's changes to the spool. A failed append is repeated, so no outcome is forgotten.
pub(super) struct OutcomeRecorder {
    spool: Arc<dyn Spool>,
    stream: StreamId,
    observer: Option<Arc<dyn Observer>>,
    /// Budget of unrecorded outcomes; once it is used up, nothing is sent.
    pub budget: OutcomeBudget,
    state: Mutex<State>,
    worker: Worker,
    /// Notified when the last append ends.
    is_idle: Condvar,
}

#[derive(Default)]
struct State {
    changes: Vec<(Change, Option<RecipientAttempt>)>,
    /// Replies about recipients to be retried.
    replies: VecDeque<(RecipientKey, Arc<str>)>,
    /// The batch that the spool refused: it is appended next.
    refused: Option<MadeBatch>,
    joined_under_way: bool,
    under_way: usize,
}

/// A batch, and the number of outcomes in it.
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

    /// Stops sending while this gate is closed.
    pub fn gated(mut self, gate: Option<BudgetGate>) -> Self {
        self.budget = self.budget.gated(gate);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("what is to be recorded")
    }

    /// Records changes with the next batch: at once, or once the batch in flight is durable. Their reports to the
    /// observer are in the same batch.
    pub fn record(self: &Arc<Self>, changes: Vec<(Change, Option<RecipientAttempt>)>, now: Secs) {
        self.budget.done(outcomes(changes.iter().map(|(change, _)| change)));
        let mut state = self.state();
        state.changes.extend(changes);
        self.append_joined(state, now);
    }

    /// Changes that may still wait to be recorded; bounds decisions that can be made later.
    pub fn changes_left(&self) -> usize {
        CHANGES_MAX.saturating_sub(self.state().changes.len())
    }

    /// Adds the reason of a retry to the next batch. A batch begins only with [`record`](Self::record), even without
    /// changes, or within a second.
    pub fn reply(&self, key: RecipientKey, said: Arc<str>) {
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
        let recorder = self.clone();
        let again = made.clone();
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
            // Room follows soon.
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

    /// Ends recording for good once the spool is poisoned, even if another stream found that. Call it often.
    pub fn look_for_poison(&self) {
        if let Some(why) = self.spool.poisoned() {
            self.close(&why);
        }
    }

    /// Reports whether records are made. Call it every second.
    pub fn look(&self) {
        match self.budget.look(Instant::now()) {
            Some(BudgetChange::Stopped { unrecorded, why }) => {
                self.tell(&RecordingState::Stopped { unrecorded, why: why.as_deref() });
            }
            Some(BudgetChange::GoesOn) => self.tell(&RecordingState::GoesOn),
            None => {}
        }
    }

    fn entries(
        &self,
        joined: Vec<(Change, Option<RecipientAttempt>)>,
        replies: Vec<(RecipientKey, Arc<str>)>,
        now: Secs,
    ) -> Vec<Entry> {
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
    pub fn events(&self, attempts: Vec<RecipientAttempt>) -> Option<Entry> {
        match &self.observer {
            Some(observer) if !attempts.is_empty() => observer.attempts(attempts),
            _ => None,
        }
    }

    /// Counts other work in flight that is recorded in its own batch.
    pub fn begin(&self) {
        self.state().under_way += 1;
    }

    /// Ends the count of [`begin`](Self::begin): the work is recorded, or dropped because the relay ends.
    pub fn end(&self) {
        self.state().under_way -= 1;
        self.is_idle.notify_all();
    }

    /// Retries a refused batch. Call it every second.
    pub fn retry(self: &Arc<Self>, now: Secs) {
        self.append_joined(self.state(), now);
    }

    /// Waits until nothing is in flight, or until the deadline. Blocks.
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

    /// The entry of changes for a caller's own batch.
    pub fn entry(&self, at: Secs, changes: &[Change]) -> Entry {
        let entry = QueueEntry::Changes { at, changes: changes.to_vec() };
        Entry { stream: self.stream, needs_body: false, payload: entry.encode().into() }
    }
}

/// Number of attempts that these changes end; without the record they would be repeated.
fn outcomes<'a>(changes: impl IntoIterator<Item = &'a Change>) -> usize {
    let is_outcome = |change: &&Change| {
        matches!(change.what, What::Delivered(_) | What::Failed(_) | What::Owed(..) | What::Deferred { .. })
    };
    changes.into_iter().filter(is_outcome).count()
}

/// Time after which an unanswered append is reported.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// Maximum changes in one batch, which must also hold their reports.
const JOINED_MAX: usize = 1000;
/// Maximum waiting changes of the kind that can wait in the queue instead, so that a full disk does not make them use
/// memory.
const CHANGES_MAX: usize = 20_000;
/// Replies in one batch, each of a thousand bytes at most.
const REPLIES_JOINED_MAX: usize = 500;
/// Maximum replies that wait for a batch. Beyond it the oldest stay in memory only.
const REPLIES_MAX: usize = 10_000;

/// The queue's clock, driven by the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    clock: QueueClock,
    begun: std::time::Instant,
}

impl Time {
    /// The clock of an opening, which continues from `recorded`.
    pub fn start(recorded: Secs) -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time { clock: QueueClock::start(recorded, wall, std::time::Duration::ZERO), begun: std::time::Instant::now() }
    }

    pub fn now(&self) -> Secs {
        self.clock.now(self.begun.elapsed())
    }

    /// Converts the queue's time to Unix seconds of the wall clock, for people and other hosts.
    pub fn wall_clock(&self) -> impl Fn(Secs) -> i64 + use<> {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let offset = self.clock.to_wall(self.begun.elapsed(), wall);
        move |secs| offset.saturating_add(secs.into())
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
