//! Makes deliveries durable. On failure no more begin: they would be repeated after a restart.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use posthaste_consumer::{OutcomeBudget, poison_watch};
use posthaste_spool::{AppendError, Entry, Spool};
use tokio::sync::Notify;

use crate::config::Config;
use crate::events::{TransportEvent, TransportEvents};
use crate::observer::TransportObserver;

/// Records deliveries within a budget; refused records are kept and appended again. It does not keep the spool open,
/// whose thread calls it.
pub(crate) struct DeliveryRecorder {
    pub budget: OutcomeBudget,
    /// Records refused by the spool, to be appended again.
    pub refused: Mutex<Vec<DoneRecord>>,
    events: TransportEvents,
    observer: Option<Arc<dyn TransportObserver>>,
    /// Wakes the scheduler.
    wake: Arc<Notify>,
    /// Notified when delivery ends for good.
    pub closed: Notify,
}

/// Finished targets, with the observer's records.
#[derive(Debug, Clone)]
pub(crate) struct DoneRecord {
    pub entries: Vec<Entry>,
    pub targets: usize,
    /// Targets in the observer's entry.
    pub observed: u64,
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

    pub fn recorded(&self, record: &DoneRecord) {
        let was_stopped = !self.budget.may_begin();
        self.budget.recorded(record.targets, Instant::now());
        if was_stopped {
            self.wake.notify_one();
        }
    }

    pub fn refused(&self, record: DoneRecord, error: &AppendError) {
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
    pub fn close(&self, why: &Arc<str>) {
        if self.budget.close() {
            let unrecorded = self.budget.unrecorded();
            (self.events.0)(TransportEvent::NotRecorded { unrecorded, why: why.clone(), is_final: true });
            self.closed.notify_waiters();
        }
    }
}

/// Maximum targets of one entry.
pub(crate) const KEYS_MAX: usize = 5000;
