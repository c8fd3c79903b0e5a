//! The consumer of the transports' stream: published messages, outcomes of attempts, and the stream's progress.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use posthaste_consumer::{BudgetChange, StreamHandle};
use posthaste_spool::{AppendError, Batch, Body, Consumer, Lsn, MessageReader, Published, PublishedBody};
use tokio::sync::{Notify, Semaphore};

use crate::carry::CarriedMessage;
use crate::config::Config;
use crate::entry::{TargetKey, TransportEntry};
use crate::events::{TransportEvent, TransportEvents, event, observe, trouble, unix_secs};
use crate::observer::TargetId;
use crate::queues::Queues;
use crate::record::{DeliveryRecorder, DoneRecord, KEYS_MAX};
use crate::work::{LostMail, Note, Outcome, Work};

pub(crate) struct Shared {
    pub stream: StreamHandle,
    pub config: Config,
    pub events: TransportEvents,
    pub queues: Mutex<Queues>,
    /// Wakes the scheduler.
    pub wake: Arc<Notify>,
    /// Some targets owe a notice.
    pub notices_wanted: Notify,
    /// Notified when a worker has ended, or its last target is done.
    pub idle: Condvar,
    /// The LSN that the spool wants to be passed.
    pub wanted: AtomicU64,
    pub is_ending: AtomicBool,
    /// Records outcomes; nothing begins once its budget is used up.
    pub recorder: Arc<DeliveryRecorder>,
    pub lmtp_memory: Arc<Semaphore>,
    pub lmtp_memory_kib: u32,
    pub delivered: AtomicU64,
    pub failed_attempts: AtomicU64,
}

impl Consumer for Shared {
    fn published(&self, entry: Published) {
        let body_len = match &entry.body {
            PublishedBody::None => 0,
            PublishedBody::Stored { len } => *len,
            PublishedBody::Memory(parts) => parts.iter().map(|part| part.len() as u64).sum(),
        };
        let done = self.queues().show(entry.lsn, TransportEntry::decode(entry.payload), body_len);
        if !done.is_empty() {
            // Their entries may be passed with the older entry.
            self.append(&TransportEntry::Done(done));
        }
        self.wake.notify_one();
    }

    fn advance_wanted(&self, through: Lsn) {
        self.wanted.fetch_max(through.get(), Ordering::AcqRel);
        self.wake.notify_one();
    }
}

impl Shared {
    pub fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("no thread panics while it holds the queues")
    }

    pub fn wait_until(&self, deadline: Instant, holds: impl Fn(&Queues) -> bool) -> bool {
        let mut queues = self.queues();
        while !holds(&queues) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queues = self.idle.wait_timeout(queues, left).expect("the queues").0;
        }
        true
    }

    /// Appends an entry without waiting.
    pub fn append(&self, entry: &TransportEntry) {
        self.stream.append([entry.encode()], |_| ());
    }

    /// Appends an entry and waits until it is durable. Blocks.
    pub fn append_durably(&self, entry: &TransportEntry) -> Result<(), String> {
        self.stream.append_durably([entry.encode()]).map(drop).map_err(|error| format!("the spool: {error}"))
    }

    /// Appends an operator's command, and waits until it is durable, if necessary for room. Blocks.
    pub fn append_command(&self, entry: &TransportEntry) -> Result<(), String> {
        self.stream.append_command(entry.encode()).map(drop).map_err(|error| format!("the spool: {error}"))
    }

    /// Advances the stream, and appends the messages again that hold it up.
    pub fn advance(&self) {
        let wanted = Lsn::new(self.wanted.swap(0, Ordering::AcqRel));
        let (advance, laggards, troubles) = {
            let mut queues = self.queues();
            let laggards = queues.take_laggards(wanted);
            let troubles = if laggards.is_empty() { Vec::new() } else { queues.troubles(NOTES_MAX) };
            (queues.take_advance(), laggards, troubles)
        };
        let failed_carries = self.queues().failed_carries.clone();
        if let Some((position, released)) = advance {
            self.stream.advance(position, None, released);
        }
        for CarriedMessage { body, entries } in laggards {
            let failed = failed_carries.clone();
            self.stream.append(entries.iter().map(TransportEntry::encode), move |outcome| {
                if outcome.is_err() {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(body);
                }
            });
        }
        let now = Instant::now();
        troubles.iter().filter_map(|note| trouble(note, now)).for_each(|trouble| self.append(&trouble));
    }

    /// Records the outcome of a worker's attempt.
    pub fn finish(&self, worker: u64, work: &Work, outcomes: Vec<Outcome>) {
        let now = Instant::now();
        let age = Duration::from_secs(unix_secs(SystemTime::now()).saturating_sub(work.deliver.secs));
        self.tell_lost(work, &outcomes);
        let delivered = work.targets_with(&outcomes, |outcome| *outcome == Outcome::Delivered);
        let delivered: Vec<TargetId> = delivered.map(|(target, _)| target).collect();
        self.delivered.fetch_add(delivered.len() as u64, Ordering::Relaxed);
        let (done, notes) = self.queues().finish(worker, work, outcomes, age > self.config.max_age, now);
        if !done.is_empty() {
            self.record_done(done, delivered);
        }
        // An event that cannot be recorded happens again after the restart, and is reported then.
        if !self.recorder.budget.is_closed() {
            self.tell(notes, now);
        }
        self.wake.notify_one();
    }

    /// Reports losses before anything is given up.
    fn tell_lost(&self, work: &Work, outcomes: &[Outcome]) {
        for (target, outcome) in work.targets_with(outcomes, |outcome| matches!(outcome, Outcome::Lost(..))) {
            let Outcome::Lost(error, kept) = outcome else { continue };
            if let Some(observer) = &self.config.observer {
                observer.given_up(target.clone(), error.clone());
            }
            let received_secs = work.deliver.secs;
            let bytes = work.body_len;
            let error = error.clone();
            (self.events.0)(TransportEvent::Lost(LostMail { target, received_secs, bytes, error, kept: kept.clone() }));
        }
    }

    /// Handles the end of a worker, however it ended.
    pub fn worker_ended(&self, worker: u64, panic: Option<&str>) {
        let now = Instant::now();
        let why = format!("the worker panicked, which is a bug: {}", panic.unwrap_or("it has ended too early"));
        let notes = self.queues().worker_ended(worker, &why.into(), now);
        self.idle.notify_all();
        self.wake.notify_one();
        self.tell(notes, now);
    }

    fn tell(&self, notes: Vec<Note>, now: Instant) {
        for note in notes {
            let is_failure = matches!(note, Note::Failed { .. } | Note::Unavailable { .. });
            self.failed_attempts.fetch_add(u64::from(is_failure), Ordering::Relaxed);
            if let Some(trouble) = trouble(&note, now) {
                self.append(&trouble);
                self.notices_wanted.notify_one();
            }
            if let Some(observer) = &self.config.observer {
                observe(&**observer, &note);
            }
            event(note, now).into_iter().for_each(|event| (self.events.0)(event));
        }
    }

    pub fn reader(&self, work: &Work) -> MessageReader {
        MessageReader::in_spool(self.stream.spool().clone(), work.body, work.body_len)
    }
}

/// Failures appended again together with messages.
const NOTES_MAX: usize = 1000;

impl Shared {
    /// True if a delivery may begin: its outcome can be recorded.
    pub fn may_begin(&self) -> bool {
        !self.is_poisoned() && self.recorder.budget.may_begin()
    }

    fn is_poisoned(&self) -> bool {
        if let Some(why) = self.stream.spool().poisoned() {
            self.recorder.close(&why);
        }
        self.recorder.budget.is_closed()
    }

    /// Continues an act until it is done. `None`: the spool is poisoned, so the outcome cannot be recorded; no further
    /// step was made.
    pub async fn unless_poisoned<T>(&self, act: impl Future<Output = T>) -> Option<T> {
        let mut act = pin!(act);
        let mut closed = pin!(self.recorder.closed.notified());
        closed.as_mut().enable();
        poll_fn(|cx| {
            // Before each step, such as the next command of a session: only the scheduler's look tells of it.
            if self.is_poisoned() {
                return Poll::Ready(None);
            }
            match act.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => closed.as_mut().poll(cx).map(|()| None),
            }
        })
        .await
    }

    /// Records finished targets, together with the observer's record of deliveries. Refused records are appended again
    /// each second.
    pub fn record_done(&self, done: Vec<TargetKey>, delivered: Vec<TargetId>) {
        let targets = done.len();
        let count = delivered.len() as u64;
        let mut entries = vec![self.stream.entry(TransportEntry::Done(done).encode())];
        let observer = self.config.observer.as_ref().filter(|_| !delivered.is_empty());
        let observed = observer.and_then(|observer| observer.delivered(delivered));
        let is_observed = observed.is_some();
        entries.extend(observed);
        self.recorder.budget.done(targets);
        self.append_record(DoneRecord { entries, targets, observed: if is_observed { count } else { 0 } });
    }

    fn append_record(&self, record: DoneRecord) {
        let recorder = self.recorder.clone();
        let entries = record.entries.clone();
        let then = move |outcome: Result<Lsn, AppendError>| match outcome {
            Ok(_) => recorder.recorded(&record),
            Err(error) => recorder.refused(record, &error),
        };
        self.stream.spool().append(Batch { entries, body: Body::None }, Box::new(then));
    }

    /// Records held targets in the stream, with retries.
    pub fn record_holds(&self) {
        let holds: Vec<TargetKey> = self.queues().holds_to_record.iter().copied().collect();
        holds.chunks(KEYS_MAX).for_each(|keys| self.append(&TransportEntry::Held(keys.to_vec())));
    }

    /// Appends refused records again.
    pub fn append_refused(&self) {
        let refused = std::mem::take(&mut *self.recorder.refused.lock().expect("refused records"));
        refused.into_iter().for_each(|record| self.append_record(record));
    }

    /// Appends refused records again, and reports problems. Call it each second while nothing may begin.
    pub fn look_at_records(&self) {
        self.append_refused();
        self.record_holds();
        match self.recorder.budget.look(Instant::now()) {
            Some(BudgetChange::Stopped { unrecorded, why }) => {
                let why = why.unwrap_or_else(|| "the disk does not answer".into());
                (self.events.0)(TransportEvent::NotRecorded { unrecorded, why, is_final: false });
            }
            Some(BudgetChange::GoesOn) => (self.events.0)(TransportEvent::RecordedAgain),
            None => {}
        }
    }
}
