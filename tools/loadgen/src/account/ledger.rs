//! The ledger of promises: for each message of a run, the copies that must be there, and those that may be.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mailfiles::must_begin_with;

/// Copies expected of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expected {
    /// Recipients for whom the server has acknowledged it: so many copies must be there.
    pub acked: u16,
    /// Recipients whose verdict is unknown, as the connection was lost before it: so many more copies may be there.
    pub uncertain: u16,
}

/// All messages of a run by number. A number that is not set was refused or never sent: nothing may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    pub run: u64,
    messages: Vec<Expected>,
}

/// Error in reading or writing a ledger.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {text}")]
pub struct LedgerFileError {
    path: PathBuf,
    text: String,
}

/// The file's format: equal neighbours share a line.
#[derive(Serialize, Deserialize)]
struct OnDisk {
    schema: String,
    run: String,
    /// First number, last number, acknowledged copies, uncertain copies.
    messages: Vec<(u64, u64, u16, u16)>,
}

const SCHEMA: &str = "posthaste-acked/1";
/// Maximum messages of a run, all rounds and warm-ups together. Each takes four octets of memory, however few are in
/// the file, so 1 GiB. A run ends there, and no file may name more.
pub const MESSAGES_MAX: u64 = 1 << 28;

impl Ledger {
    /// An empty ledger.
    pub fn new(run: u64) -> Self {
        Self { run, messages: Vec::new() }
    }

    /// Records the outcome of a message.
    pub fn set(&mut self, number: u64, acked: u16, uncertain: u16) {
        let index = usize::try_from(number).expect("a run has fewer messages than memory has octets");
        if index >= self.messages.len() {
            self.messages.resize(index + 1, Expected::default());
        }
        self.messages[index] = Expected { acked, uncertain };
    }

    /// Copies expected of message `number`.
    pub fn get(&self, number: u64) -> Expected {
        usize::try_from(number).ok().and_then(|index| self.messages.get(index)).copied().unwrap_or_default()
    }

    /// All messages with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Expected)> {
        (0..).zip(self.messages.iter().copied())
    }

    /// True if its run ended at the limit of messages.
    pub fn is_full(&self) -> bool {
        self.messages.len() as u64 >= MESSAGES_MAX
    }

    /// Messages acknowledged for at least one recipient.
    pub fn acked(&self) -> u64 {
        self.messages.iter().filter(|expected| expected.acked > 0).count() as u64
    }

    /// Checks that [`Ledger::save`] would replace only an earlier ledger.
    ///
    /// # Errors
    /// When there is another file at `path`.
    pub fn check_path(path: &Path) -> Result<(), LedgerFileError> {
        let begin = format!(r#"{{"schema":"{SCHEMA}""#);
        must_begin_with(path, &begin, "a list of acknowledged messages")
            .map_err(|error| failed(path, error.to_string()))
    }

    /// Writes the ledger as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), LedgerFileError> {
        let mut messages: Vec<(u64, u64, u16, u16)> = Vec::new();
        for (number, Expected { acked, uncertain }) in self.iter() {
            match messages.last_mut() {
                Some(last) if (last.2, last.3) == (acked, uncertain) => last.1 = number,
                _ => messages.push((number, number, acked, uncertain)),
            }
        }
        let on_disk = OnDisk { schema: SCHEMA.into(), run: format!("{:016x}", self.run), messages };
        let text = serde_json::to_string(&on_disk).expect("plain data can be written");
        fs::write(path, text + "\n").map_err(|error| failed(path, error.to_string()))
    }

    /// Reads a ledger written by [`Ledger::save`].
    ///
    /// # Errors
    /// When the file cannot be read or is not a ledger.
    pub fn load(path: &Path) -> Result<Self, LedgerFileError> {
        let text = fs::read_to_string(path).map_err(|error| failed(path, error.to_string()))?;
        let no_ledger =
            || failed(path, "this is not a list of acknowledged messages, as `load --acked FILE` writes it".into());
        let on_disk: OnDisk = serde_json::from_str(&text).map_err(|_| no_ledger())?;
        let run = u64::from_str_radix(&on_disk.run, 16).ok().filter(|_| on_disk.schema == SCHEMA);
        let run = run.ok_or_else(no_ledger)?;
        let mut ledger = Self::new(run);
        // Looked at whole before anything is made room for. Entries that overlap would also take time without bound.
        let mut next = 0;
        for (first, last, ..) in &on_disk.messages {
            if *first < next || first > last || *last >= MESSAGES_MAX {
                return Err(failed(
                    path,
                    format!("messages {first} to {last}: ranges ascend, and end below {MESSAGES_MAX}"),
                ));
            }
            next = last + 1;
        }
        ledger.messages.resize(next as usize, Expected::default());
        for (first, last, acked, uncertain) in on_disk.messages {
            ledger.messages[first as usize..=last as usize].fill(Expected { acked, uncertain });
        }
        Ok(ledger)
    }
}

fn failed(path: &Path, text: String) -> LedgerFileError {
    LedgerFileError { path: path.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acked.json");
        let mut ledger = Ledger::new(0xabc);
        (0..1000).for_each(|number| ledger.set(number, 1, 0));
        ledger.set(500, 0, 1);
        ledger.set(1200, 3, 0);
        ledger.save(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 300, "neighbours share a line");
        let read = Ledger::load(&path).unwrap();
        assert_eq!(read, ledger);
        assert_eq!(read.get(1100), Expected::default());
        fs::write(&path, r#"{"schema":"other/1","run":"0","messages":[]}"#).unwrap();
        assert!(Ledger::load(&path).is_err());
    }

    #[test]
    fn a_small_file_cannot_ask_for_all_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acked.json");
        let check = |messages: &str| {
            fs::write(&path, format!(r#"{{"schema":"{SCHEMA}","run":"0","messages":{messages}}}"#)).unwrap();
            Ledger::load(&path).map(|ledger| ledger.messages.len()).map_err(|error| error.to_string())
        };
        assert_eq!(check("[[0,0,1,0],[5,9,2,0]]"), Ok(10));
        for wrong in ["[[0,4294967295,1,0]]", "[[0,268435456,1,0]]", "[[9,5,1,0]]", "[[0,9,1,0],[0,9,1,0]]"] {
            assert!(check(wrong).is_err_and(|error| error.contains("ranges ascend")), "{wrong}");
        }
    }
}
