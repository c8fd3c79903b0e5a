//! Recipients received and settled over time, for a plot of the rate and of the queue's depth.

use posthaste_loadgen::report::{Curve, over_time};
use serde::{Deserialize, Serialize};

/// Totals since the beginning of a round, sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Seconds since the round began.
    pub at_s: Vec<f64>,
    /// Recipients received for other hosts.
    pub received: Vec<u64>,
    /// Recipients delivered or given up.
    pub settled: Vec<u64>,
}

/// Limit on samples; at the limit every other one is dropped.
const MOMENTS_MAX: usize = 1200;
/// Shortest interval for a rate: shorter ones are noise.
const STRETCH_S: f64 = 0.5;
/// Intervals in a plot, about.
const STRETCHES: f64 = 120.0;

impl Timeline {
    pub fn add(&mut self, at_s: f64, received: u64, settled: u64) {
        self.at_s.push(at_s);
        self.received.push(received);
        self.settled.push(settled);
        if self.at_s.len() >= MOMENTS_MAX {
            // The last one of each pair stays, and so the last of all.
            keep_every_other(&mut self.at_s);
            keep_every_other(&mut self.received);
            keep_every_other(&mut self.settled);
        }
    }

    /// The largest depth of the queue.
    pub fn depth_max(&self) -> u64 {
        self.depths().map(|(_, depth)| depth).max().unwrap_or(0)
    }

    fn depths(&self) -> impl Iterator<Item = (f64, u64)> {
        let waiting =
            self.received.iter().zip(&self.settled).map(|(received, settled)| received.saturating_sub(*settled));
        self.at_s.iter().copied().zip(waiting)
    }

    /// The middle of each interval, and the rate in it, in items a second.
    fn rates(&self, totals: &[u64]) -> Vec<(f64, f64)> {
        let stretch = (self.at_s.last().copied().unwrap_or(0.0) / STRETCHES).max(STRETCH_S);
        let (mut rates, mut from) = (Vec::new(), (0.0, 0));
        for (at, total) in self.at_s.iter().copied().zip(totals.iter().copied()) {
            if at - from.0 >= stretch {
                let added = total.saturating_sub(from.1) as f64;
                rates.push((f64::midpoint(from.0, at), added / (at - from.0)));
                from = (at, total);
            }
        }
        rates
    }

    /// Two plots: rates and depth. Empty if the time is too short.
    pub fn to_svg(&self, side: &str) -> String {
        let (received, settled) = (self.rates(&self.received), self.rates(&self.settled));
        if received.len() < 2 {
            return String::new();
        }
        let depths = self.depths().map(|(at, depth)| (at, depth as f64)).collect();
        let rates = [
            Curve { name: "received", colour: 1, points: received },
            Curve { name: "sent on or given up", colour: 0, points: settled },
        ];
        over_time(&format!("{side}: messages a second"), rates.into())
            + &over_time(
                &format!("{side}: in the queue"),
                vec![Curve { name: "in the queue", colour: 3, points: depths }],
            )
    }
}

fn keep_every_other<T>(values: &mut Vec<T>) {
    let mut count = 0u64;
    values.retain(|_| {
        count += 1;
        count.is_multiple_of(2)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_depth_follow_from_totals() {
        let mut timeline = Timeline::default();
        for tenth in 1..=40u64 {
            // 1000 a second for two seconds; 500 a second leave.
            timeline.add(tenth as f64 / 10.0, (tenth * 100).min(2000), tenth * 50);
        }
        assert_eq!(timeline.depth_max(), 1000);
        let near = |rate: f64, expected: f64| assert!((rate - expected).abs() < 1.0, "{rate} {expected}");
        let (received, settled) = (timeline.rates(&timeline.received), timeline.rates(&timeline.settled));
        near(received[0].1, 1000.0);
        near(received[received.len() - 1].1, 0.0);
        settled.iter().for_each(|(_, rate)| near(*rate, 500.0));
        let svg = timeline.to_svg("<side>");
        assert!(
            svg.contains("in the queue") && svg.contains("&lt;side&gt;") && svg.matches("<svg").count() == 2,
            "{svg}"
        );
        assert_eq!(Timeline::default().to_svg("x"), "");
    }

    #[test]
    fn moments_of_a_long_run_are_bounded_with_the_last() {
        let mut timeline = Timeline::default();
        (0..10_001).for_each(|at| timeline.add(f64::from(at), at as u64, at as u64));
        assert!(timeline.at_s.len() < MOMENTS_MAX && timeline.at_s.len() == timeline.settled.len());
        assert_eq!(timeline.at_s.last(), Some(&10_000.0));
        assert!(timeline.at_s.iter().zip(&timeline.received).all(|(at, total)| *at as u64 == *total));
    }
}
