//! Counts of values by their size, for figures such as latencies.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds of a histogram.
pub const BOUNDS: usize = 12;

/// Counts values by the first bound that they do not exceed. Lock-free: any thread may count.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64; BOUNDS],
    counts: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

/// Microseconds: from 250 µs to 10 s.
pub const LATENCY_US: [u64; BOUNDS] =
    [250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000];
/// Numbers of things: from 1 to 4096.
pub const NUMBERS: [u64; BOUNDS] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096];
/// Seconds: from 1 s to 5 days.
pub const AGE_SECS: [u64; BOUNDS] = [1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 172_800, 432_000];

/// A snapshot of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistogramRead {
    /// Bounds, in ascending order.
    pub bounds: &'static [u64; BOUNDS],
    /// Values up to each bound and above the one before; the last count is of values above all bounds.
    pub counts: [u64; BOUNDS + 1],
    /// The sum of all values.
    pub sum: u64,
}

impl Default for HistogramRead {
    fn default() -> Self {
        Self { bounds: &NUMBERS, counts: [0; BOUNDS + 1], sum: 0 }
    }
}

impl Histogram {
    /// An empty histogram. `bounds` must ascend.
    pub const fn new(bounds: &'static [u64; BOUNDS]) -> Self {
        Self { bounds, counts: [const { AtomicU64::new(0) }; BOUNDS + 1], sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn count(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn read(&self) -> HistogramRead {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed));
        HistogramRead { bounds: self.bounds, counts, sum: self.sum.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_at_its_bound() {
        let histogram = Histogram::new(&NUMBERS);
        [0, 1, 2, 3, 4096, 5000].into_iter().for_each(|value| histogram.count(value));
        let read = histogram.read();
        assert_eq!((read.counts[..3].to_vec(), read.counts[11..].to_vec()), (vec![2, 1, 1], vec![1, 1]));
        assert_eq!((read.sum, read.counts.iter().sum::<u64>()), (9102, 6));
    }

    #[test]
    fn bounds_rise() {
        for bounds in [LATENCY_US, NUMBERS, AGE_SECS] {
            assert!(bounds.is_sorted_by(|one, next| one < next), "{bounds:?}");
        }
    }
}
