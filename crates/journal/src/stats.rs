//! What a journal counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of a journal; times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Records written, notes and the journal's own included.
    pub records: u64,
    /// Bytes of those records with their headers.
    pub bytes: u64,
    /// Bytes that they take in the segments: commits are padded to whole blocks.
    pub bytes_used: u64,
    /// Commits written.
    pub commits: u64,
    /// Syncs made.
    pub syncs: u64,
    /// Time spent in them.
    pub sync_ns: u64,
    /// The longest of them.
    pub sync_ns_max: u64,
    /// Records not settled.
    pub live_records: usize,
    /// Segments that hold records.
    pub segments_in_service: usize,
    /// Segment files in all.
    pub segments: usize,
}

#[derive(Default)]
pub(crate) struct Stats {
    pub records: AtomicU64,
    pub bytes: AtomicU64,
    pub bytes_used: AtomicU64,
    pub commits: AtomicU64,
    pub syncs: AtomicU64,
    pub sync_ns: AtomicU64,
    pub sync_ns_max: AtomicU64,
}

impl Stats {
    pub fn count(&self, records: usize, bytes: usize, padded: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes_used.fetch_add(padded as u64, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_sync(&self, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}
