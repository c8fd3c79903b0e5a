//! Distribution of an open loop's messages over time.

use std::collections::VecDeque;
use std::time::Duration;

/// Limits of one round, and the distribution of its messages over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Messages a second, each due at its own moment (open loop); `None` sends the next as soon as a connection is free
    /// (closed loop).
    pub rate: Option<f64>,
    /// Distribution of an open loop's messages.
    pub arrivals: Arrivals,
    /// Messages after the warm-up.
    pub count: Option<u64>,
    /// Time after the warm-up.
    pub duration: Option<Duration>,
    /// Messages due in this time at the start are sent and accounted for, but not measured.
    pub warmup: Duration,
}

/// Gaps between due messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// Equal gaps.
    #[default]
    Even,
    /// Independent senders: gaps are exponential, so that messages also come in bursts. The same seed gives the same
    /// gaps.
    Poisson { seed: u64 },
}

/// A Poisson process, drawn as far as needed; times count from the start of the round.
#[derive(Debug)]
pub(super) struct Drawn {
    random: fastrand::Rng,
    mean_gap_s: f64,
    warmup: Duration,
    /// End of the round: no message is due later.
    end: Option<Duration>,
    /// Messages after the warm-up that may still be drawn.
    measured_left: Option<u64>,
    last: Duration,
    /// Drawn and not taken yet.
    waiting: VecDeque<Duration>,
    is_complete: bool,
}

impl Drawn {
    pub fn new(pace: &Pace, rate: f64, seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            mean_gap_s: 1.0 / rate,
            warmup: pace.warmup,
            end: pace.duration.map(|duration| pace.warmup + duration),
            measured_left: pace.count,
            last: Duration::ZERO,
            waiting: VecDeque::new(),
            is_complete: false,
        }
    }

    /// Time at which the next message is due; `None` when there are no more.
    pub fn next(&mut self) -> Option<Duration> {
        if self.waiting.is_empty() {
            self.draw();
        }
        self.waiting.front().copied()
    }

    /// Takes the next message.
    pub fn take(&mut self) {
        self.waiting.pop_front();
    }

    /// Messages due by `time` that are not taken yet.
    pub fn due_by(&mut self, time: Duration) -> u64 {
        while !self.is_complete && self.last <= time {
            self.draw();
        }
        self.waiting.iter().take_while(|due| **due <= time).count() as u64
    }

    fn draw(&mut self) {
        if self.is_complete {
            return;
        }
        // 1 - u is never 0, so its logarithm is finite.
        let gap_s = -(1.0 - self.random.f64()).ln() * self.mean_gap_s;
        self.last += Duration::from_secs_f64(gap_s);
        let is_measured = self.last >= self.warmup;
        let is_late = self.end.is_some_and(|end| self.last >= end);
        if is_late || is_measured && self.measured_left == Some(0) {
            self.is_complete = true;
            return;
        }
        if let Some(left) = self.measured_left.as_mut().filter(|_| is_measured) {
            *left -= 1;
        }
        self.waiting.push_back(self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rate: f64, count: Option<u64>, seconds: Option<u64>, seed: u64) -> Vec<f64> {
        let duration = seconds.map(Duration::from_secs);
        let warmup = Duration::from_secs(1);
        let pace = Pace { rate: Some(rate), arrivals: Arrivals::Poisson { seed }, count, duration, warmup };
        let mut drawn = Drawn::new(&pace, rate, seed);
        let mut times = Vec::new();
        while let Some(due) = drawn.next() {
            drawn.take();
            times.push(due.as_secs_f64());
        }
        times
    }

    #[test]
    fn gaps_are_exponential() {
        let times = all(1000.0, None, Some(99), 7);
        let n = times.len() as f64;
        assert!((n - 100_000.0).abs() < 1_500.0, "{n} in 100 s at 1000 a second");
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / n;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.03, "an exponential's deviation is its mean: {deviation} of {mean}");
        let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / n;
        assert!((long - (-2.0_f64).exp()).abs() < 0.01, "{long} of the gaps are above twice the mean");
    }

    #[test]
    fn a_count_is_met_behind_the_warm_up_and_a_seed_repeats() {
        let times = all(50.0, Some(200), None, 3);
        assert_eq!(times.iter().filter(|time| **time >= 1.0).count(), 200);
        assert_eq!(times, all(50.0, Some(200), None, 3));
        assert_ne!(times, all(50.0, Some(200), None, 4));
    }

    #[test]
    fn what_is_due_and_not_taken_is_counted() {
        let pace = Pace {
            rate: Some(100.0),
            arrivals: Arrivals::Poisson { seed: 1 },
            count: None,
            duration: Some(Duration::from_secs(10)),
            warmup: Duration::ZERO,
        };
        let mut drawn = Drawn::new(&pace, 100.0, 1);
        let due = drawn.due_by(Duration::from_secs(5));
        assert!((400..600).contains(&due), "{due} in 5 s at 100 a second");
        drawn.next().expect("there is more");
        drawn.take();
        assert_eq!(drawn.due_by(Duration::from_secs(5)), due - 1);
    }
}
