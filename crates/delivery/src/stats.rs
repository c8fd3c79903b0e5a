//! Statistics of an executor, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Work of an executor since its start. Sums and counts: rates and means are differences of two snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryStats {
    /// Messages made durable.
    pub delivered: u64,
    /// Messages that ended with an error.
    pub failed: u64,
    /// Batches flushed.
    pub batches: u64,
    /// Total messages of all batches; divided by `batches`, the mean size.
    pub batch_messages: u64,
    /// Size of the largest batch, in messages.
    pub batch_messages_max: u64,
    /// Time from being queued until a batch took the message, summed over messages, in microseconds.
    pub wait_us: u64,
    /// The longest such wait, in microseconds.
    pub wait_us_max: u64,
    /// Time from a batch being taken until it was durable, summed over batches, in microseconds.
    pub flush_us: u64,
    /// The longest such time, in microseconds.
    pub flush_us_max: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    delivered: AtomicU64,
    failed: AtomicU64,
    batches: AtomicU64,
    batch_messages: AtomicU64,
    batch_messages_max: AtomicU64,
    wait_us: AtomicU64,
    wait_us_max: AtomicU64,
    flush_us: AtomicU64,
    flush_us_max: AtomicU64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Counters {
    pub(crate) fn batch_taken(&self, waits: impl ExactSizeIterator<Item = Duration>) {
        let fill = waits.len() as u64;
        let (sum, max) = waits.map(micros).fold((0, 0), |(sum, max), us| (sum + us, us.max(max)));
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batch_messages.fetch_add(fill, Ordering::Relaxed);
        self.batch_messages_max.fetch_max(fill, Ordering::Relaxed);
        self.wait_us.fetch_add(sum, Ordering::Relaxed);
        self.wait_us_max.fetch_max(max, Ordering::Relaxed);
    }

    pub(crate) fn batch_flushed(&self, took: Duration) {
        let us = micros(took);
        self.flush_us.fetch_add(us, Ordering::Relaxed);
        self.flush_us_max.fetch_max(us, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, delivered: bool) {
        let counter = if delivered { &self.delivered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> DeliveryStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeliveryStats {
            delivered: get(&self.delivered),
            failed: get(&self.failed),
            batches: get(&self.batches),
            batch_messages: get(&self.batch_messages),
            batch_messages_max: get(&self.batch_messages_max),
            wait_us: get(&self.wait_us),
            wait_us_max: get(&self.wait_us_max),
            flush_us: get(&self.flush_us),
            flush_us_max: get(&self.flush_us_max),
        }
    }
}
