//! Display of a running measurement: one line for a log, some lines and a sparkline for a terminal.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use crate::load::Progress;

/// Keeps the last rates for the sparkline.
#[derive(Debug, Default)]
pub struct Live {
    rates: VecDeque<f64>,
}

/// Steps of the sparkline.
const SPARKS_MAX: usize = 60;
const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Classes of errors shown in one line.
const CLASSES_MAX: usize = 4;

impl Live {
    /// Several lines for a terminal, to be drawn over the previous ones.
    pub fn view(&mut self, progress: &Progress<'_>) -> String {
        self.rates.push_back(progress.rate);
        if self.rates.len() > SPARKS_MAX {
            self.rates.pop_front();
        }
        let mut view = format!(
            "{:>8}  {} msg/s  {}\n          ",
            clock(progress.elapsed),
            thousands(progress.rate.round() as u64),
            sparkline(&self.rates)
        );
        write!(view, "{} acknowledged, {} in flight", thousands(progress.acked), progress.in_flight).expect(NO_ERROR);
        if progress.behind > 0 {
            write!(view, ", {} behind schedule", thousands(progress.behind)).expect(NO_ERROR);
        }
        let recent = progress.recent;
        let of = |us| millis(us as f64);
        write!(view, "\n          p50 {}  p99 {}  p99.9 {}", of(recent.p50_us), of(recent.p99_us), of(recent.p999_us))
            .expect(NO_ERROR);
        if progress.kills > 0 {
            write!(view, "\n          the server was killed {} times", progress.kills).expect(NO_ERROR);
        }
        if progress.failed > 0 || !progress.errors.is_empty() {
            write!(view, "\n          {} failed: {}", thousands(progress.failed), classes(progress)).expect(NO_ERROR);
        }
        view
    }
}

/// One line for a log.
pub fn line(progress: &Progress<'_>) -> String {
    let recent = progress.recent;
    let mut line = format!(
        "t={:.1}s round={} rate={:.0}/s acked={} failed={} in_flight={} behind={} p50={} p99={} p99.9={}",
        progress.elapsed.as_secs_f64(),
        progress.round,
        progress.rate,
        progress.acked,
        progress.failed,
        progress.in_flight,
        progress.behind,
        millis(recent.p50_us as f64).replace(' ', ""),
        millis(recent.p99_us as f64).replace(' ', ""),
        millis(recent.p999_us as f64).replace(' ', ""),
    );
    if progress.kills > 0 {
        write!(line, " kills={}", progress.kills).expect(NO_ERROR);
    }
    if !progress.errors.is_empty() {
        write!(line, " errors: {}", classes(progress)).expect(NO_ERROR);
    }
    line
}

const NO_ERROR: &str = "a String takes everything";

fn classes(progress: &Progress<'_>) -> String {
    let mut classes: Vec<_> = progress.errors.iter().map(|(class, (count, _))| (*count, class)).collect();
    classes.sort_by(|a, b| b.cmp(a));
    let shown: Vec<_> = classes.iter().take(CLASSES_MAX).map(|(count, class)| format!("{class} × {count}")).collect();
    let rest = classes.len().saturating_sub(CLASSES_MAX);
    if rest > 0 { format!("{}, {rest} more classes", shown.join(", ")) } else { shown.join(", ") }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// The values as bars between zero and the highest of them.
fn sparkline(values: &VecDeque<f64>) -> String {
    let highest = values.iter().fold(0.0_f64, |highest, value| highest.max(*value));
    let bar = |value: &f64| {
        if highest > 0.0 {
            SPARKS[((value / highest * SPARKS.len() as f64) as usize).min(SPARKS.len() - 1)]
        } else {
            SPARKS[0]
        }
    };
    values.iter().map(bar).collect()
}

/// `12 345`, with thin blanks between the thousands.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as a time with a fitting unit: `830 µs`, `12.4 ms`, `1.03 s`.
pub fn millis(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0} µs"),
        us if us < 9_995.0 => format!("{:.2} ms", us / 1e3),
        us if us < 99_950.0 => format!("{:.1} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::LatencySummary;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_are_fit_for_reading() {
        assert_eq!(thousands(1_234_567).replace('\u{202f}', " "), "1 234 567");
        assert_eq!(thousands(12), "12");
        let check = |us: f64, text: &str| assert_eq!(millis(us), text);
        check(830.0, "830 µs");
        check(1_030.0, "1.03 ms");
        check(12_400.0, "12.4 ms");
        check(999_700.0, "1.00 s");
        check(250_000.0, "250 ms");
    }

    #[test]
    fn a_line_and_a_view_tell_rate_errors_and_lag() {
        let errors = BTreeMap::from([("rcpt 550".to_owned(), (3, String::new()))]);
        let recent = LatencySummary { p50_us: 1500, p99_us: 20_000, p999_us: 1_000_000, ..LatencySummary::default() };
        let progress = Progress {
            elapsed: Duration::from_secs(65),
            round: 1,
            acked: 1234,
            failed: 3,
            in_flight: 7,
            behind: 9,
            rate: 99.6,
            recent: &recent,
            errors: &errors,
            kills: 2,
        };
        let line = line(&progress);
        assert!(line.contains("rate=100/s acked=1234 failed=3 in_flight=7 behind=9 p50=1.50ms"), "{line}");
        assert!(line.ends_with(" kills=2 errors: rcpt 550 × 3"), "{line}");
        let view = Live::default().view(&progress);
        for part in ["1:05", "100 msg/s", "█", "7 in flight", "9 behind", "p99.9 1.00 s", "rcpt 550 × 3"] {
            assert!(view.contains(part), "{part} is not in {view}");
        }
    }
}
