//! Counters of commits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_units::histogram::{Histogram, LATENCY_US, NUMBERS};

use crate::Stats;

pub(crate) struct GroupCounters {
    pub cancelled: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    sync_ns_max: AtomicU64,
    sync_us: Histogram,
    commit_records: Histogram,
}

impl Default for GroupCounters {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        GroupCounters {
            cancelled: none(),
            bytes: none(),
            syncs: none(),
            sync_ns: none(),
            sync_ns_max: none(),
            sync_us: Histogram::new(&LATENCY_US),
            commit_records: Histogram::new(&NUMBERS),
        }
    }
}

impl GroupCounters {
    /// Counts a durable group of records as one sync.
    pub fn count_commit(&self, records: u64, bytes: u64, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
        self.sync_us.count(ns / 1000);
        self.commit_records.count(records);
    }

    pub fn read(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            cancelled: of(&self.cancelled),
            bytes_written: of(&self.bytes),
            syncs: of(&self.syncs),
            sync_ns: of(&self.sync_ns),
            sync_ns_max: of(&self.sync_ns_max),
            sync_us: self.sync_us.read(),
            commit_records: self.commit_records.read(),
            // Limited only by the disk.
            space_max: 1,
            ..Stats::default()
        }
    }
}
