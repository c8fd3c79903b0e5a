//! The server's event log, read while it grows. An event of a delivery stands in the batch that records the delivery,
//! so a line here means that the outcome is durable.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::suite::SideError;

/// Lines so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Recipients whose delivery is recorded.
    pub delivered: u64,
    /// Refusals for now.
    pub waiting: u64,
    /// Recipients that were given up.
    pub failed: u64,
    /// Places where events are missing.
    pub left_out: u64,
}

/// Reads the log on.
#[derive(Debug)]
pub struct Outcomes {
    dir: PathBuf,
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
    counts: Counts,
}

impl Outcomes {
    /// Of the log in `dir`, which must not change its file.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), file: None, rest: Vec::new(), counts: Counts::default() }
    }

    /// Reads what is new.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read(&mut self) -> Result<Counts, SideError> {
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
        let count = |event: &str| text.matches(&format!("\"event\":\"{event}\"")).count() as u64;
        self.counts.delivered += count("delivered");
        self.counts.waiting += count("waiting");
        self.counts.failed += count("held") + count("given_up");
        self.counts.left_out += count("left_out");
        self.rest.drain(..whole);
        Ok(self.counts)
    }
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
            assert_eq!((counts.delivered, counts.left_out), (delivered, left_out), "{text}");
        };
        check("{\"lsn\":1,\"event\":\"received\"}\n{\"lsn\":2,\"event\":\"deliv", 0, 0);
        check("ered\"}\n{\"lsn\":2,\"event\":\"delivered\"}\n", 2, 0);
        check("{\"lsn\":3,\"event\":\"left_out\",\"others\":4}\n", 2, 1);
    }
}
