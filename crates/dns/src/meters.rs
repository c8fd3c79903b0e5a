//! Counts of questions to DNS, for figures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hickory_resolver::proto::rr::RecordType;
use posthaste_units::histogram::{Histogram, HistogramRead, LATENCY_US};

/// Types of records that are counted by themselves.
const KINDS: [&str; 4] = ["mx", "a", "aaaa", "other"];
/// Ends of a question.
const OUTCOMES: [&str; 5] = ["answer", "no_such_name", "no_data", "timeout", "failure"];

/// The outcome of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The records that were asked for.
    Answer,
    /// NXDOMAIN.
    NoSuchName,
    /// The name exists without such records.
    NoData,
    /// No answer in time.
    Timeout,
    /// SERVFAIL, REFUSED and the like.
    Failure,
}

/// Counts since the start. A new resolver continues those of its predecessor.
#[derive(Debug)]
pub(super) struct DnsMeters {
    questions: [[AtomicU64; OUTCOMES.len()]; KINDS.len()],
    took_us: Histogram,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counts of a resolver since the start, and its questions now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsStats {
    /// Queries by type (`mx`, `a`, `aaaa`, `other`) and outcome (`answer`, `no_such_name`, `no_data`, `timeout`,
    /// `failure`). All pairs, in a fixed order.
    pub questions: Vec<(&'static str, &'static str, u64)>,
    /// Time from a query to its answer or timeout, in microseconds.
    pub took_us: HistogramRead,
    /// Look-ups of a domain's mail hosts, or of a host's addresses, that the cache knew.
    pub hits: u64,
    /// Look-ups that were not in the cache.
    pub misses: u64,
    /// Questions that are asked now.
    pub asked: u64,
    /// Questions that wait for a slot.
    pub waiting: u64,
}

impl Default for DnsMeters {
    fn default() -> Self {
        Self {
            questions: Default::default(),
            took_us: Histogram::new(&LATENCY_US),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }
}

impl DnsMeters {
    /// Counts a finished query.
    pub fn asked(&self, kind: RecordType, outcome: Outcome, took: Duration) {
        let kind = match kind {
            RecordType::MX => 0,
            RecordType::A => 1,
            RecordType::AAAA => 2,
            _ => 3,
        };
        self.questions[kind][outcome as usize].fetch_add(1, Ordering::Relaxed);
        self.took_us.count(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts a look-up of a name.
    pub fn looked_up(&self, is_hit: bool) {
        let count = if is_hit { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// All counts, including those of the slots.
    pub fn read(&self, (asked, waiting): (u64, u64)) -> DnsStats {
        let kinds = KINDS.iter().zip(&self.questions);
        let each = |(kind, counts): (&&'static str, &[AtomicU64; OUTCOMES.len()])| {
            let counts = OUTCOMES.iter().zip(counts);
            let count =
                |(outcome, count): (&&'static str, &AtomicU64)| (*kind, *outcome, count.load(Ordering::Relaxed));
            counts.map(count).collect::<Vec<_>>()
        };
        DnsStats {
            questions: kinds.flat_map(each).collect(),
            took_us: self.took_us.read(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            asked,
            waiting,
        }
    }
}
