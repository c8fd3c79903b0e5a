//! The server's event log, read while it grows. An event of a delivery stands in the batch that records the delivery,
//! so a line here means that the outcome is durable.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::suite::SideError;

/// Counts of the lines so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages received.
    pub received: u64,
    /// Recipients whose delivery to another host is recorded.
    pub delivered: u64,
    /// Attempts that ended with a temporary refusal.
    pub waiting: u64,
    /// Recipients given up.
    pub failed: u64,
    /// Places where events are missing.
    pub left_out: u64,
}

/// Reads the log as it grows.
#[derive(Debug)]
pub struct Outcomes {
    dir: PathBuf,
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
    counts: Counts,
}

impl Outcomes {
    /// Opens the log in `dir`, which must not be rotated.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), file: None, rest: Vec::new(), counts: Counts::default() }
    }

    /// Reads the new lines.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read(&mut self) -> Result<Counts, SideError> {
        self.read_each(&mut |_| ())
    }

    /// Like [`read`](Self::read), and calls `each` with each line.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read_each(&mut self, each: &mut dyn FnMut(Line<'_>)) -> Result<Counts, SideError> {
        if self.file.is_none() {
            let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
            let is_log = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jsonl");
            let Some(path) = entries.map(|entry| entry.path()).filter(is_log).min() else { return Ok(self.counts) };
            self.file = Some(File::open(path).map_err(SideError::failed("event log"))?);
        }
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.rest).map_err(SideError::failed("event log"))?;
        }
        let whole = self.rest.iter().rposition(|octet| *octet == b'\n').map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&self.rest[..whole]);
        for line in text.split_terminator('\n').map(Line) {
            match line.event() {
                "received" => self.counts.received += 1,
                // Notifications come into mailboxes here.
                "delivered" if line.is_of_the_relay() => self.counts.delivered += 1,
                "deferred" => self.counts.waiting += 1,
                "bounced" | "expired" | "suppressed" => self.counts.failed += 1,
                "left_out" => self.counts.left_out += 1,
                _ => {}
            }
            each(line);
        }
        self.rest.drain(..whole);
        Ok(self.counts)
    }
}

/// A line of the log. The values of its first keys have no quotes within them.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a>(&'a str);

impl<'a> Line<'a> {
    pub fn event(self) -> &'a str {
        self.behind("\"event\":\"").and_then(|rest| rest.split('"').next()).unwrap_or_default()
    }

    /// Number of the line's message.
    pub fn message(self) -> Option<u64> {
        self.behind("\"message\":\"")?.split('"').next()?.parse().ok()
    }

    /// First recipient of a received message.
    pub fn first_recipient(self) -> Option<&'a str> {
        Some(self.behind("\"to\":[\"")?.split('"').next()?.trim_matches(['<', '>']))
    }

    /// Time in microseconds since midnight.
    pub fn time_us(self) -> Option<u64> {
        // 2026-01-31T12:00:00.123456Z
        let time = self.behind("\"time\":\"")?.get(11..26)?;
        let number = |from: usize, to: usize| time.get(from..to)?.parse::<u64>().ok();
        Some(((number(0, 2)? * 60 + number(3, 5)?) * 60 + number(6, 8)?) * 1_000_000 + number(9, 15)?)
    }

    fn is_of_the_relay(self) -> bool {
        self.0.contains("\"relay_target\":")
    }

    fn behind(self, key: &str) -> Option<&'a str> {
        self.0.find(key).map(|at| &self.0[at + key.len()..])
    }
}

/// Microseconds between two times of day, of which the later may be on the next day.
pub fn elapsed_us(from: u64, to: u64) -> u64 {
    const DAY_US: u64 = 86_400_000_000;
    // The clock may be set back a little meanwhile.
    let elapsed = (to + DAY_US - from) % DAY_US;
    if elapsed > DAY_US / 2 { 0 } else { elapsed }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn half_a_line_counts_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut outcomes = Outcomes::new(dir.path());
        assert_eq!(outcomes.read().unwrap(), Counts::default());
        let mut log = File::create(dir.path().join("events-00000001.jsonl")).unwrap();
        let mut check = |text: &str, delivered, left_out| {
            log.write_all(text.as_bytes()).unwrap();
            let counts = outcomes.read().unwrap();
            assert_eq!((counts.received, counts.delivered, counts.left_out), (1, delivered, left_out), "{text}");
        };
        check("{\"lsn\":\"1\",\"event\":\"received\"}\n{\"lsn\":\"2\",\"event\":\"deliv", 0, 0);
        check("ered\",\"relay_target\":0}\n{\"lsn\":\"2\",\"event\":\"delivered\",\"relay_target\":1}\n", 2, 0);
        check("{\"lsn\":\"3\",\"event\":\"left_out\",\"others\":4}\n{\"event\":\"delivered\",\"target\":0}\n", 2, 1);
    }

    #[test]
    fn a_line_tells_when_what_and_to_whom() {
        let text = r#"{"lsn":"7","time":"2026-01-31T12:00:01.000002Z","event":"received","message":"7","from":"<a@x.example>","to":["<b@y.example>"],"recipients":1}"#;
        let line = Line(text);
        assert_eq!((line.event(), line.message(), line.first_recipient()), ("received", Some(7), Some("b@y.example")));
        assert_eq!(line.time_us(), Some(43_201_000_002));
        let line = Line("{\"lsn\":\"7\",\"event\":\"left_out\"}");
        assert_eq!((line.message(), line.first_recipient(), line.time_us()), (None, None, None));
        assert_eq!((elapsed_us(5, 9), elapsed_us(86_399_999_999, 1), elapsed_us(9, 5)), (4, 2, 0));
    }
}
