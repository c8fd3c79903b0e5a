//! Histograms of the server's work, for `/metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste_admin::{CHECK_METHODS, CHECK_RESULTS, CheckCounts, Distribution};
use posthaste_units::histogram::{AGE_SECS, Histogram, LATENCY_US, NUMBERS};

use crate::receive::webhook_states::WebhookStates;

/// Histograms since the start.
#[derive(Debug)]
pub(crate) struct Meters {
    /// Time from the first octet of a message to its 250, in microseconds.
    accepted: Histogram,
    /// Time from the 250 to another host's, in seconds, by domain.
    delivered: Mutex<BTreeMap<String, Histogram>>,
    /// Times of domains without their own row.
    others: Histogram,
    /// The age of retried recipients, in seconds.
    deferred: Histogram,
    /// Batches that a stream still has to pass, sampled each second.
    behind: Mutex<BTreeMap<String, Histogram>>,
    /// Times that hosts became unreachable, and times that TLS with a host was given up for a while.
    back_offs: AtomicU64,
    tls_avoided: AtomicU64,
    /// Tokens of limits in a cluster: lent to this node, lent ones used, and own ones used.
    lent: [AtomicU64; 3],
    /// Signed messages, and unsigned ones because of an unusable key.
    signed: AtomicU64,
    not_signed: AtomicU64,
    /// Results of the checks of strangers' mail, by method.
    checks: [[AtomicU64; CHECK_RESULTS.len()]; CHECK_METHODS.len()],
    /// States of the webhooks.
    pub webhooks: Arc<WebhookStates>,
}

/// Domains that are named: the first that get mail.
const DOMAINS_MAX: usize = 50;
const STREAMS_MAX: usize = 100;
const OTHER: &str = "other";

impl Default for Meters {
    fn default() -> Self {
        Self {
            accepted: Histogram::new(&LATENCY_US),
            delivered: Mutex::default(),
            others: Histogram::new(&AGE_SECS),
            deferred: Histogram::new(&AGE_SECS),
            behind: Mutex::default(),
            back_offs: AtomicU64::new(0),
            tls_avoided: AtomicU64::new(0),
            lent: Default::default(),
            signed: AtomicU64::new(0),
            not_signed: AtomicU64::new(0),
            checks: Default::default(),
            webhooks: Arc::default(),
        }
    }
}

impl Meters {
    /// Records the time from the start of a message to its acceptance.
    pub fn accepted(&self, took: Duration) {
        self.accepted.count(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records the age of a recipient's message when another host accepted it, in seconds.
    pub fn delivered(&self, domain: &str, age_secs: u32) {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        match delivered.get(domain) {
            Some(known) => known.count(age_secs.into()),
            // A domain of that name would be told twice.
            None if delivered.len() < DOMAINS_MAX && domain != OTHER => {
                let histogram = Histogram::new(&AGE_SECS);
                histogram.count(age_secs.into());
                delivered.insert(domain.to_owned(), histogram);
            }
            None => self.others.count(age_secs.into()),
        }
    }

    /// Records the age of a recipient that will be retried.
    pub fn deferred(&self, age_secs: u32) {
        self.deferred.count(age_secs.into());
    }

    /// A message was signed with DKIM.
    pub fn signed(&self) {
        self.signed.fetch_add(1, Ordering::Relaxed);
    }

    /// A message waits or was sent unsigned because of an unusable key.
    pub fn not_signed(&self) {
        self.not_signed.fetch_add(1, Ordering::Relaxed);
    }

    /// Messages signed, and not signed for want of a key.
    pub fn of_signatures(&self) -> (u64, u64) {
        (self.signed.load(Ordering::Relaxed), self.not_signed.load(Ordering::Relaxed))
    }

    /// A stranger's message was checked: methods and results.
    pub fn checked(&self, results: impl IntoIterator<Item = (&'static str, &'static str)>) {
        for (method, result) in results {
            let at = |all: &[&str], name| all.iter().position(|known| *known == name);
            if let Some((method, result)) = at(&CHECK_METHODS, method).zip(at(&CHECK_RESULTS, result)) {
                self.checks[method][result].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Results of the checks of strangers' mail.
    pub fn of_checks(&self) -> CheckCounts {
        CheckCounts(self.checks.each_ref().map(|of| of.each_ref().map(|count| count.load(Ordering::Relaxed))))
    }

    /// Counts hosts that became unreachable.
    pub fn backed_off(&self) {
        self.back_offs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a host that gets mail without TLS because TLS with it failed.
    pub fn tls_avoided(&self) {
        self.tls_avoided.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts of hosts that became unreachable, and of hosts with failed TLS.
    pub fn of_hosts(&self) -> (u64, u64) {
        (self.back_offs.load(Ordering::Relaxed), self.tls_avoided.load(Ordering::Relaxed))
    }

    /// Counts tokens: lent to this node by other shards, lent ones used, and own ones used.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn lent(&self, lent: u64, used: u64, alone: u64) {
        for (counter, more) in self.lent.iter().zip([lent, used, alone]) {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Counts of tokens: lent to this node, lent ones used, and own ones used.
    pub fn of_lending(&self) -> [u64; 3] {
        self.lent.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Records the lag of a stream, in batches.
    pub fn behind(&self, stream: &str, batches: u64) {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = behind.get(stream) {
            return known.count(batches);
        }
        if behind.len() < STREAMS_MAX {
            let histogram = Histogram::new(&NUMBERS);
            histogram.count(batches);
            behind.insert(stream.to_owned(), histogram);
        }
    }

    /// All values.
    pub fn read(&self) -> Vec<Distribution> {
        let mut all = vec![
            Distribution::new("posthaste_accept_seconds", self.accepted.read()).in_millionths(),
            Distribution::new("posthaste_deferred_age_seconds", self.deferred.read()),
        ];
        let delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        let named = delivered.iter().map(|(domain, histogram)| (domain.as_str(), histogram));
        for (domain, histogram) in named.chain([(OTHER, &self.others)]) {
            let of = Distribution::new("posthaste_sent_age_seconds", histogram.read());
            all.push(of.labelled("destination", domain));
        }
        for (stream, histogram) in self.behind.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            all.push(Distribution::new("posthaste_stream_lag_batches", histogram.read()).labelled("stream", stream));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_nothing_is_left_out() {
        let meters = Meters::default();
        for number in 0..1000 {
            meters.delivered(&format!("d{number}.example"), 3);
            meters.behind(&format!("s{number}"), 1);
        }
        meters.delivered(OTHER, 3);
        meters.delivered("d0.example", 3);
        let all = meters.read();
        let delivered = all.iter().filter(|one| one.name == "posthaste_sent_age_seconds");
        let counts: Vec<u64> = delivered.map(|one| one.read.counts.iter().sum()).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>(), counts[DOMAINS_MAX]), (DOMAINS_MAX + 1, 1002, 951));
        assert_eq!(all.iter().filter(|one| one.name == "posthaste_stream_lag_batches").count(), STREAMS_MAX);
    }
}
