//! Makes deliveries durable. On failure no more begin: they would be repeated after a restart.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Instant;

use posthaste_consumer::{BudgetChange, OutcomeBudget, poison_watch};
use posthaste_spool::{AppendError, Batch, Body, Entry, Lsn, Spool};
use tokio::sync::Notify;

use crate::config::Config;
use crate::consumer::Shared;
use crate::entry::{TargetKey, TransportEntry};
use crate::events::{TransportEvent, TransportEvents};
use crate::observer::{TargetId, TransportObserver};

/// Records deliveries within a budget; refused records are kept and appended again. It does not keep the spool open,
/// whose thread calls it.
pub(crate) struct DeliveryRecorder {
    pub budget: OutcomeBudget,
    /// Records refused by the spool, to be appended again.
    refused: Mutex<Vec<DoneRecord>>,
    events: TransportEvents,
    observer: Option<Arc<dyn TransportObserver>>,
    /// Of the scheduler.
    wake: Arc<Notify>,
    /// Notified when delivery ends for good.
    closed: Notify,
}

/// Finished targets, with the observer's records.
#[derive(Debug, Clone)]
struct DoneRecord {
    entries: Vec<Entry>,
    targets: usize,
    /// Targets in the observer's entry.
    observed: u64,
}

impl DeliveryRecorder {
    pub fn new(spool: &Arc<dyn Spool>, config: &Config, events: &TransportEvents, wake: Arc<Notify>) -> Self {
        let events = events.clone();
        let observer = config.observer.clone();
        let budget = OutcomeBudget::new(poison_watch(spool), Instant::now());
        let refused = Mutex::default();
        let closed = Notify::new();
        DeliveryRecorder { budget, refused, events, observer, wake, closed }
    }

    fn recorded(&self, record: &DoneRecord) {
        let was_stopped = !self.budget.may_begin();
        self.budget.recorded(record.targets, Instant::now());
        if was_stopped {
            self.wake.notify_one();
        }
    }

    fn refused(&self, record: DoneRecord, error: &AppendError) {
        if let AppendError::Poisoned(why) = error {
            self.close(why);
            if let Some(observer) = self.observer.as_ref().filter(|_| record.observed > 0) {
                observer.lost(record.observed);
            }
            return;
        }
        self.refused.lock().expect("refused records").push(record);
        self.budget.refused(error.to_string().into());
        self.wake.notify_one();
    }

    /// Ends delivery for good.
    fn close(&self, why: &Arc<str>) {
        if self.budget.close() {
            let unrecorded = self.budget.unrecorded();
            (self.events.0)(TransportEvent::NotRecorded { unrecorded, why: why.clone(), is_final: true });
            self.closed.notify_waiters();
        }
    }
}

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

/// Maximum targets of one entry.
pub(crate) const KEYS_MAX: usize = 5000;
