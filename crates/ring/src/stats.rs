//! Counters of a ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_units::histogram::{Histogram, HistogramRead, LATENCY_US, NUMBERS};

/// Counters of a ring since it was opened; times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStats {
    /// Records written.
    pub records: u64,
    /// Records among them that were cancelled before they were published.
    pub cancelled: u64,
    /// Bytes of those records with their headers.
    pub bytes: u64,
    /// Bytes used in the segments, including padding of commits to whole blocks.
    pub bytes_used: u64,
    /// Commits written.
    pub commits: u64,
    /// Syncs of commits.
    pub syncs: u64,
    /// Total time of these syncs, in nanoseconds.
    pub sync_ns: u64,
    /// Duration of the longest sync, in nanoseconds.
    pub sync_ns_max: u64,
    /// Distribution of sync durations, in microseconds.
    pub sync_us: HistogramRead,
    /// Distribution of records per commit.
    pub commit_records: HistogramRead,
    /// Segments that hold records.
    pub segments_in_service: usize,
    /// Number of segment files, including prepared and free ones.
    pub segments: usize,
    /// [`Config::max_segments`](crate::Config::max_segments).
    pub max_segments: usize,
}

pub(crate) struct Counters {
    records: AtomicU64,
    cancelled: AtomicU64,
    bytes: AtomicU64,
    bytes_used: AtomicU64,
    commits: AtomicU64,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    sync_ns_max: AtomicU64,
    sync_us: Histogram,
    commit_records: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        Self {
            records: none(),
            cancelled: none(),
            bytes: none(),
            bytes_used: none(),
            commits: none(),
            syncs: none(),
            sync_ns: none(),
            sync_ns_max: none(),
            sync_us: Histogram::new(&LATENCY_US),
            commit_records: Histogram::new(&NUMBERS),
        }
    }
}

impl Counters {
    pub fn count_commit(&self, records: usize, bytes: usize, padded: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes_used.fetch_add(padded as u64, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commit_records.count(records as u64);
    }

    pub fn count_cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_sync(&self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
        self.sync_us.count(ns / 1000);
    }

    /// The counters; the caller adds facts about the segments.
    pub fn read(&self) -> RingStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RingStats {
            records: of(&self.records),
            cancelled: of(&self.cancelled),
            bytes: of(&self.bytes),
            bytes_used: of(&self.bytes_used),
            commits: of(&self.commits),
            syncs: of(&self.syncs),
            sync_ns: of(&self.sync_ns),
            sync_ns_max: of(&self.sync_ns_max),
            sync_us: self.sync_us.read(),
            commit_records: self.commit_records.read(),
            ..RingStats::default()
        }
    }
}
