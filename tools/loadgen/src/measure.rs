//! Figures of a run: rates, latencies, errors, over the whole run and over time.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies in microseconds, to three significant digits (HDR histogram).
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

/// Maximum latency that is measured, in microseconds.
const LATENCY_US_MAX: u64 = 24 * 3600 * 1_000_000;

impl Default for Latencies {
    fn default() -> Self {
        Self::with_digits(3)
    }
}

impl Latencies {
    fn with_digits(digits: u8) -> Self {
        let mut histogram = Histogram::new(digits).expect("the number of digits is allowed");
        histogram.auto(true);
        Self(histogram)
    }

    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).clamp(1, LATENCY_US_MAX);
        self.0.record(us).expect("the histogram grows as needed");
    }

    /// Merges `other` into `self`.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the histogram grows as needed");
    }

    /// The latency in microseconds that `share` (0 to 1) of all do not exceed; 0 without any.
    pub fn percentile_us(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures for a table.
    pub fn summary(&self) -> LatencySummary {
        let at = |share| self.percentile_us(share);
        let is_empty = self.0.is_empty();
        LatencySummary {
            count: self.0.len(),
            mean_us: if is_empty { 0.0 } else { self.0.mean() },
            min_us: if is_empty { 0 } else { self.0.min() },
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: self.0.max(),
        }
    }

    /// Counts by range, six ranges for each doubling; empty ones at the ends are left out.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut buckets: Vec<Bucket> = Vec::new();
        for value in self.0.iter_recorded() {
            let us = value.value_iterated_to();
            let step = (us as f64).log2() * STEPS_PER_DOUBLING;
            let from_us = (step.floor() / STEPS_PER_DOUBLING).exp2();
            let to_us = ((step.floor() + 1.0) / STEPS_PER_DOUBLING).exp2();
            match buckets.last_mut() {
                Some(last) if last.to_us > us as f64 => last.count += value.count_since_last_iteration(),
                _ => buckets.push(Bucket { from_us, to_us, count: value.count_since_last_iteration() }),
            }
        }
        buckets
    }

    /// Latencies at shares that approach 1, for a curve.
    pub fn curve(&self) -> Vec<CurvePoint> {
        let mut points = Vec::new();
        let mut missing = 1.0_f64;
        while self.count() > 0 && missing * self.count() as f64 >= 0.5 {
            let share = 1.0 - missing;
            points.push(CurvePoint { share, us: self.percentile_us(share) });
            missing /= 10_f64.powf(1.0 / CURVE_STEPS_PER_NINE);
        }
        points
    }
}

const STEPS_PER_DOUBLING: f64 = 6.0;
const CURVE_STEPS_PER_NINE: f64 = 8.0;

/// Latencies of acknowledged messages in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    pub count: u64,
    pub mean_us: f64,
    pub min_us: u64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p95_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub p9999_us: u64,
    pub max_us: u64,
}

/// One figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median, or the mean of the two middle values.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without any value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (lower, upper) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }
}

/// One bar of a histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    pub from_us: f64,
    pub to_us: f64,
    pub count: u64,
}

/// One point of a percentile curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    pub share: f64,
    pub us: u64,
}

/// Figures of one stretch of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Seconds since the run began.
    pub start_s: f64,
    /// Messages acknowledged in it, for at least one recipient.
    pub acked: u64,
    /// Messages that failed in it.
    pub failed: u64,
    /// Octets of the acknowledged messages.
    pub octets: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Errors in it by class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

/// Figures over time in equal stretches. They get longer during a run, which bounds their number.
#[derive(Debug)]
pub struct Timeline {
    width: Duration,
    stretches: Vec<Open>,
    end: Duration,
}

#[derive(Debug, Clone)]
struct Open {
    acked: u64,
    failed: u64,
    octets: u64,
    latencies: Latencies,
    errors: BTreeMap<String, u64>,
}

const STRETCHES_MAX: usize = 360;
const STRETCH_FIRST: Duration = Duration::from_millis(250);

impl Default for Timeline {
    fn default() -> Self {
        Self { width: STRETCH_FIRST, stretches: Vec::new(), end: Duration::ZERO }
    }
}

impl Timeline {
    fn at(&mut self, time: Duration) -> &mut Open {
        self.end = self.end.max(time);
        let mut index = (time.as_nanos() / self.width.as_nanos()) as usize;
        while index >= STRETCHES_MAX {
            self.halve();
            index = (time.as_nanos() / self.width.as_nanos()) as usize;
        }
        if index >= self.stretches.len() {
            let empty =
                Open { acked: 0, failed: 0, octets: 0, latencies: Latencies::with_digits(2), errors: BTreeMap::new() };
            self.stretches.resize(index + 1, empty);
        }
        &mut self.stretches[index]
    }

    fn halve(&mut self) {
        self.width *= 2;
        let join = |pair: &[Open]| {
            let mut joined = pair[0].clone();
            for other in &pair[1..] {
                joined.acked += other.acked;
                joined.failed += other.failed;
                joined.octets += other.octets;
                joined.latencies.add(&other.latencies);
                for (class, count) in &other.errors {
                    *joined.errors.entry(class.clone()).or_default() += count;
                }
            }
            joined
        };
        self.stretches = self.stretches.chunks(2).map(join).collect();
    }

    /// Records an acknowledged message at `time`.
    pub fn acked(&mut self, time: Duration, latency: Duration, octets: u64) {
        let stretch = self.at(time);
        stretch.acked += 1;
        stretch.octets += octets;
        stretch.latencies.record(latency);
    }

    /// Records a failed message at `time`.
    pub fn failed(&mut self, time: Duration) {
        self.at(time).failed += 1;
    }

    /// Records `count` errors of a class at about `time`.
    pub fn errors(&mut self, time: Duration, class: &str, count: u64) {
        *self.at(time).errors.entry(class.to_owned()).or_default() += count;
    }

    /// Length of a stretch in seconds.
    pub fn width_s(&self) -> f64 {
        self.width.as_secs_f64()
    }

    /// Time of the last event, in seconds: the last stretch may be incomplete.
    pub fn end_s(&self) -> f64 {
        self.end.as_secs_f64()
    }

    /// All stretches so far, empty ones included.
    pub fn stretches(&self) -> Vec<Stretch> {
        let closed = |(index, open): (usize, &Open)| Stretch {
            start_s: index as f64 * self.width.as_secs_f64(),
            acked: open.acked,
            failed: open.failed,
            octets: open.octets,
            p50_us: open.latencies.percentile_us(0.5),
            p99_us: open.latencies.percentile_us(0.99),
            p999_us: open.latencies.percentile_us(0.999),
            max_us: open.latencies.percentile_us(1.0),
            errors: open.errors.clone(),
        };
        self.stretches.iter().enumerate().map(closed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_agree_with_exact_ones() {
        // A skewed series with a long tail, in an order that is not sorted.
        let mut series: Vec<u64> = (0..100_000_u64).map(|n| 100 + (n * 7919 % 100_000).pow(2) / 1000).collect();
        let mut latencies = Latencies::default();
        series.iter().for_each(|us| latencies.record(Duration::from_micros(*us)));
        series.sort_unstable();
        for share in [0.0001, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            let exact = series[((share * series.len() as f64).ceil() as usize).max(1) - 1] as f64;
            let shown = latencies.percentile_us(share) as f64;
            assert!((shown - exact).abs() <= exact / 1000.0 + 1.0, "{share}: {shown} instead of {exact}");
        }
        let summary = latencies.summary();
        assert_eq!(summary.count, 100_000);
        let mean = series.iter().sum::<u64>() as f64 / series.len() as f64;
        assert!((summary.mean_us - mean).abs() < mean / 1000.0, "{} instead of {mean}", summary.mean_us);
        assert_eq!(latencies.buckets().iter().map(|bucket| bucket.count).sum::<u64>(), 100_000);
        for pair in latencies.buckets().windows(2) {
            assert!(pair[0].to_us <= pair[1].from_us + 0.01, "{pair:?}");
        }
    }

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        let median = |values: &[f64]| Spread::of(values.iter().copied()).map(|spread| spread.median);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn nothing_recorded_shows_zeros() {
        assert_eq!(Latencies::default().summary(), LatencySummary::default());
        assert!(Latencies::default().buckets().is_empty() && Latencies::default().curve().is_empty());
    }

    #[test]
    fn a_long_run_keeps_its_sums_in_fewer_stretches() {
        let mut timeline = Timeline::default();
        for second in 0..3600 {
            timeline.acked(Duration::from_secs(second), Duration::from_millis(second + 1), 10);
            timeline.failed(Duration::from_secs(second));
            timeline.errors(Duration::from_secs(second), "rcpt 550", 2);
        }
        let stretches = timeline.stretches();
        assert!(stretches.len() <= STRETCHES_MAX);
        assert_eq!(stretches.iter().map(|s| s.acked).sum::<u64>(), 3600);
        assert_eq!(stretches.iter().map(|s| s.errors["rcpt 550"]).sum::<u64>(), 7200);
        assert_eq!(stretches[1].start_s, timeline.width_s());
    }
}
