//! Counters of the sink: one set for each thread, and their sum.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::stage::Stage;

/// Counters of one thread, which alone adds to them; all threads may read them. Aligned so that no two share a cache
/// line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    pub connections: Counter,
    pub closed: Counter,
    pub turned_away: Counter,
    pub tls_sessions: Counter,
    pub tls_failures: Counter,
    pub messages: Counter,
    pub octets: Counter,
    pub recipients: Counter,
    pub aborted: Counter,
    pub dropped: Counter,
    pub greylisted: Counter,
    pub timed_out: Counter,
    pub failed: Counter,
    pub stamped: Counter,
    pub altered: Counter,
    pub store_errors: Counter,
    /// Refusals by stage and code. A lock is good enough: they are rare, or slowness is wanted anyway.
    refusals: Mutex<BTreeMap<(Stage, u16), u64>>,
}

/// A counter with one writing thread, so that adding needs no locked instruction.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    pub fn refused(&self, stage: Stage, code: u16) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry((stage, code)).or_default() += 1;
    }
}

/// Counts of a sink, so far or in total.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Connections that were served.
    pub connections: u64,
    /// Number of open connections.
    pub open_connections: u64,
    /// The most connections open at the same time.
    pub open_connections_max: u64,
    /// Connections over the limit: answered with 421 and closed.
    pub turned_away: u64,
    /// Sessions with TLS.
    pub tls_sessions: u64,
    /// Failed TLS handshakes.
    pub tls_failures: u64,
    /// Messages answered with 250.
    pub messages: u64,
    /// Octets of those messages, after removal of the extra dots.
    pub octets: u64,
    /// Recipients of those messages.
    pub recipients: u64,
    /// Messages that were incomplete or not acceptable (bare newlines, NUL, too large).
    pub aborted: u64,
    /// Connections closed by rule.
    pub dropped: u64,
    /// Recipients deferred by the greylist; also among the refusals.
    pub greylisted: u64,
    /// Connections closed because no input came.
    pub timed_out: u64,
    /// Connections that ended with a network error.
    pub failed: u64,
    /// With an account: accepted messages with a stamp.
    pub stamped: u64,
    /// With an account: such messages whose octets had changed.
    pub altered: u64,
    /// Messages refused because they could not be stored.
    pub store_errors: u64,
    /// Refusals by rule: number for each stage and code.
    pub refusals: BTreeMap<&'static str, BTreeMap<u16, u64>>,
}

impl Counts {
    pub(super) fn of<'a>(tallies: impl IntoIterator<Item = &'a Tally>) -> Self {
        let mut sum = Self::default();
        for tally in tallies {
            sum.connections += tally.connections.get();
            // A connection may end between the two reads.
            sum.open_connections += tally.connections.get().saturating_sub(tally.closed.get());
            sum.turned_away += tally.turned_away.get();
            sum.tls_sessions += tally.tls_sessions.get();
            sum.tls_failures += tally.tls_failures.get();
            sum.messages += tally.messages.get();
            sum.octets += tally.octets.get();
            sum.recipients += tally.recipients.get();
            sum.aborted += tally.aborted.get();
            sum.dropped += tally.dropped.get();
            sum.greylisted += tally.greylisted.get();
            sum.timed_out += tally.timed_out.get();
            sum.failed += tally.failed.get();
            sum.stamped += tally.stamped.get();
            sum.altered += tally.altered.get();
            sum.store_errors += tally.store_errors.get();
            let refusals = tally.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            for ((stage, code), n) in refusals.iter() {
                *sum.refusals.entry(stage.as_str()).or_default().entry(*code).or_default() += n;
            }
        }
        sum
    }

    /// All refusals by rule.
    pub fn refused(&self) -> u64 {
        self.refusals.values().flat_map(BTreeMap::values).sum()
    }
}

/// Totals of a whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Counts of the run.
    #[serde(flatten)]
    pub counts: Counts,
    /// Seconds from start to stop.
    pub seconds: f64,
    /// Processor time of this process meanwhile, user and system, all threads.
    pub cpu_seconds: f64,
    /// Processor time for each accepted message, in microseconds; `None` when there was none.
    pub cpu_us_per_message: Option<f64>,
}

impl Summary {
    pub(super) fn new(counts: Counts, elapsed: Duration, cpu: Duration) -> Self {
        let per_message = (counts.messages > 0).then(|| cpu.as_secs_f64() * 1e6 / counts.messages as f64);
        Self { counts, seconds: elapsed.as_secs_f64(), cpu_seconds: cpu.as_secs_f64(), cpu_us_per_message: per_message }
    }

    /// The summary as pretty JSON.
    pub fn to_json(&self) -> String {
        crate::report::to_json(self)
    }

    /// The summary as text for people; lines with 0 are left out.
    pub fn to_text(&self) -> String {
        let counts = &self.counts;
        let mut out = String::new();
        let mut line = |name: &str, value: u64| {
            if value > 0 {
                out += &format!("{name:<22}{value:>14}\n");
            }
        };
        line("connections", counts.connections);
        line("most at a time", counts.open_connections_max);
        line("turned away", counts.turned_away);
        line("TLS sessions", counts.tls_sessions);
        line("TLS failures", counts.tls_failures);
        line("recipients", counts.recipients);
        line("octets", counts.octets);
        line("with a stamp", counts.stamped);
        line("altered", counts.altered);
        line("aborted messages", counts.aborted);
        line("dropped connections", counts.dropped);
        line("greylisted", counts.greylisted);
        line("timed out", counts.timed_out);
        line("failed connections", counts.failed);
        line("store errors", counts.store_errors);
        for (stage, codes) in &counts.refusals {
            for (code, n) in codes {
                line(&format!("{code} at {stage}"), *n);
            }
        }
        let per_message = self.cpu_us_per_message.map_or(String::new(), |us| format!(" ({us:.1} µs a message)"));
        out + &format!(
            "{:<22}{:>14}\n{:<22}{:>14.2} s\n{:<22}{:>14.2} s{per_message}\n",
            "accepted messages", counts.messages, "time", self.seconds, "processor time", self.cpu_seconds
        )
    }
}
