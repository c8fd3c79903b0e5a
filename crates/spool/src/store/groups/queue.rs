//! Records that wait for the writer.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, PoisonError};

use bytes::Bytes;
use posthaste_ring::RecordFate;

use super::header::StoredHeader;
use super::medium::NewRecord;
use crate::store::Commit;
use crate::{AppendError, Lsn};

/// A record to be written.
pub(crate) struct Waiting {
    header: StoredHeader,
    /// Head and body.
    parts: Vec<Bytes>,
    pub told: Told,
}

/// The receiver of a record's outcome.
pub(crate) struct Told {
    pub fate: RecordFate,
    then: Box<Commit>,
}

/// One item of the writer's queue.
pub(crate) enum Item {
    Record(Waiting),
    /// A barrier: the sender is notified once all earlier items are done.
    Flush(Sender<()>),
}

impl Waiting {
    pub fn new(header: StoredHeader, parts: Vec<Bytes>, then: Commit) -> Self {
        Waiting { header, parts, told: Told { fate: RecordFate::default(), then: Box::new(then) } }
    }

    /// Splits it into the record with its LSN, and the callback.
    pub fn numbered(self, lsn: u64) -> (NewRecord, Told) {
        (NewRecord { lsn, header: self.header, parts: self.parts }, self.told)
    }
}

impl Told {
    /// Reports the outcome, unless the batch was cancelled. True if it reported.
    pub fn tell(self, outcome: Result<Lsn, AppendError>) -> bool {
        let is_decided = self.fate.decide();
        if is_decided {
            self.then.tell(outcome);
        }
        is_decided
    }
}

/// The queue of waiting records, with a limit in bytes.
pub(crate) struct RecordQueue {
    inner: Mutex<Inner>,
    arrived: Condvar,
    bytes_max: usize,
    batch_max: usize,
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    bytes: usize,
    is_closed: bool,
}

impl RecordQueue {
    pub fn new(bytes_max: usize, batch_max: usize) -> Self {
        RecordQueue { inner: Mutex::default(), arrived: Condvar::new(), bytes_max, batch_max: batch_max.max(1) }
    }

    /// Queues an item, or returns it with the error.
    pub fn push(&self, item: Item) -> Result<(), (Item, AppendError)> {
        let bytes = item.bytes();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed {
            return Err((item, AppendError::Closed));
        }
        if inner.bytes + bytes > self.bytes_max && !inner.items.is_empty() {
            return Err((item, AppendError::Busy));
        }
        inner.bytes += bytes;
        inner.items.push_back(item);
        self.arrived.notify_one();
        Ok(())
    }

    /// All waiting items, up to a group's limit; blocks for the first. `None` once the queue is closed and empty.
    pub fn next(&self) -> Option<Vec<Item>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.arrived.wait_while(inner, |inner| inner.items.is_empty() && !inner.is_closed);
        let mut inner = waited.unwrap_or_else(PoisonError::into_inner);
        let count = inner.items.len().min(self.batch_max);
        let batch: Vec<Item> = inner.items.drain(..count).collect();
        inner.bytes -= batch.iter().map(Item::bytes).sum::<usize>();
        Some(batch).filter(|batch| !batch.is_empty())
    }

    /// Closes the queue: later pushes fail.
    pub fn close(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.arrived.notify_all();
    }
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Item::Record(waiting) => waiting.header.record_len() as usize,
            Item::Flush(_) => 0,
        }
    }
}
