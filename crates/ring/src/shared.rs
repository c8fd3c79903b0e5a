//! State that the handle, the writer and the preparer share: the queue, the table of segments, the poison.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::layout::{FIRST_RECORD, record_span};
use crate::pool::{Pool, PoolError};
use crate::queue::Item;
use crate::stats::Counters;
use crate::table::Table;
use crate::{Config, Lsn, Proof, RingAppendError, RingEvent};

/// State that the handle, the writer and the preparer share.
pub(crate) struct Shared {
    pub config: Config,
    pub pool: Pool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    table: Mutex<Table>,
    poison: OnceLock<Arc<str>>,
    pub counters: Counters,
    /// The last record that is published.
    pub durable: AtomicU64,
    /// See [`Table::bytes_used`].
    pub used: Arc<AtomicU64>,
    pub opened: Opened,
    segment_wanted: (Mutex<bool>, Condvar),
    closed: AtomicBool,
}

/// Facts from the opening.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opened {
    pub epoch: u64,
    /// The first LSN of this epoch.
    pub first: Lsn,
    /// The last record that was found.
    pub last: Lsn,
    pub found: Proof,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
}

#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
}

impl Shared {
    pub fn new(config: Config, pool: Pool, table: Table, opened: Opened) -> Self {
        Shared {
            config,
            pool,
            used: Arc::new(table.bytes_used().into()),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            table: Mutex::new(table),
            poison: OnceLock::new(),
            counters: Counters::default(),
            durable: AtomicU64::new(opened.last.get()),
            opened,
            segment_wanted: (Mutex::new(false), Condvar::new()),
            closed: AtomicBool::new(false),
        }
    }

    /// Accepts nothing more and lets the threads end.
    pub fn close(&self) {
        {
            // Of a thread that has panicked, too.
            let _no_more_appends = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let _preparer = self.segment_wanted.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.closed.store(true, Ordering::Release);
        }
        self.pool.hurry();
        self.arrived.notify_all();
        self.segment_wanted.1.notify_all();
    }

    pub fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("table lock")
    }

    pub fn tell(&self, event: RingEvent) {
        (self.config.events)(event);
    }

    pub fn poison(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    /// Accepts nothing more. The first reason stays.
    pub fn poison_with(&self, why: String) -> Arc<str> {
        let why: Arc<str> = why.into();
        if self.poison.set(why.clone()).is_ok() {
            self.tell(RingEvent::Poisoned(why));
        }
        self.poison.get().expect("set by somebody").clone()
    }

    pub fn max_record_bytes(&self) -> usize {
        self.config.segment_bytes as usize - FIRST_RECORD - record_span(0, 0)
    }

    /// Queues an item after all waiting ones, or returns it with the error.
    pub fn push(&self, item: Item) -> Result<(), (Item, RingAppendError)> {
        self.push_at(item, Place::Last)
    }

    /// Queues an item before all waiting ones, without a limit of bytes.
    pub fn push_first(&self, item: Item) -> Result<(), (Item, RingAppendError)> {
        self.push_at(item, Place::First)
    }

    fn push_at(&self, item: Item, place: Place) -> Result<(), (Item, RingAppendError)> {
        // A flush is answered once everything appended before it has been refused.
        if let Some(why) = self.poison().filter(|_| matches!(item, Item::Record(_))) {
            return Err((item, RingAppendError::Poisoned(why)));
        }
        let bytes = item.bytes();
        let mut queue = self.queue.lock().expect("queue lock");
        if self.closed.load(Ordering::Acquire) {
            return Err((item, RingAppendError::Closed));
        }
        let is_over = queue.bytes + bytes > self.config.max_pending_bytes && !queue.items.is_empty();
        match place {
            Place::Last if is_over => return Err((item, RingAppendError::Busy)),
            Place::Last => queue.items.push_back(item),
            Place::First => queue.items.push_front(item),
        }
        queue.bytes += bytes;
        // The writer sleeps only while nothing waits.
        let wakes = queue.items.len() == 1;
        drop(queue);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// All waiting items, up to a batch; `None` once the ring is closed and empty.
    pub fn next_batch(&self) -> Option<Vec<Item>> {
        let mut queue = self.queue.lock().expect("queue lock");
        while queue.items.is_empty() {
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            queue = self.arrived.wait(queue).expect("queue lock");
        }
        let count = queue.items.len().min(self.config.max_batch);
        let batch: Vec<Item> = queue.items.drain(..count).collect();
        queue.bytes -= batch.iter().map(Item::bytes).sum::<usize>();
        Some(batch)
    }

    /// Accepts nothing more, and refuses waiting items.
    pub fn fail_all(&self, error: &RingAppendError) {
        self.close();
        let items = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.bytes = 0;
            std::mem::take(&mut queue.items)
        };
        items.into_iter().for_each(|item| item.fail(error));
    }

    pub fn want_segment(&self) {
        *self.segment_wanted.0.lock().expect("preparer lock") = true;
        self.segment_wanted.1.notify_one();
    }

    /// Keeps segments ready ahead of the writer, until the ring is closed.
    pub fn prepare_segments(&self) {
        loop {
            let mut wanted = self.segment_wanted.0.lock().expect("preparer lock");
            while !*wanted && !self.closed.load(Ordering::Acquire) {
                wanted = self.segment_wanted.1.wait(wanted).expect("preparer lock");
            }
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            *wanted = false;
            drop(wanted);
            let goes_on = || !self.closed.load(Ordering::Acquire) && self.poison().is_none();
            while goes_on() && self.pool.ready() < READY_AHEAD {
                if let Err(error) = self.pool.prepare_ahead(READY_AHEAD) {
                    self.report(error);
                    break;
                }
            }
        }
    }

    /// Reports a failed segment, and returns the error for an append that needs it.
    pub fn report(&self, error: PoolError) -> RingAppendError {
        match error {
            PoolError::NoneFree => {
                self.tell(RingEvent::RoomWanted);
                RingAppendError::Full(
                    "all segments that there may be, or that the disk has room for, hold records".into(),
                )
            }
            PoolError::NoSpace(error) => {
                let why = error.to_string();
                self.tell(RingEvent::SegmentFailed(Arc::new(error)));
                RingAppendError::Full(why.into())
            }
            PoolError::Other(error) => {
                let error = Arc::new(error);
                self.tell(RingEvent::SegmentFailed(error.clone()));
                RingAppendError::Local(error)
            }
            PoolError::Device(why) => RingAppendError::Poisoned(self.poison_with(why)),
        }
    }
}

/// Segments kept ready: one to continue with, and one reserved for records without a body.
const READY_AHEAD: usize = 2;
