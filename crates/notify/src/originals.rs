//! Mail sent under signed return paths: sender and recipient of each path, for as long as reports may come back.
//!
//! The queue forgets a recipient once the next hop has it; a report comes later. So this is a file of its own: a B-tree
//! by message and recipient. Sent mail is [fed](Originals::feed) and written with the next [flush](Originals::flush).
//! After a crash in between, only the numbers of a reported recipient are known.
//!
//! The key is the LSN (u64) and the number of the recipient (u16), big-endian. The value: version (u8: 1), minutes
//! since 1970 (u32, little-endian), and three texts with a zero octet between: tenant, sender, recipient.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use redb::{ReadableDatabase, TableDefinition, TableError};

use crate::database::DatabaseFile;
use crate::return_path::AGE_DAYS;
use posthaste_queue::RecipientKey;

/// A recipient of sent mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// The tenant; empty for none.
    pub tenant: String,
    /// The sender's address.
    pub sender: String,
    /// The recipient.
    pub recipient: String,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the table of sent mail {}: {why}", path.display())]
pub struct OriginalsError {
    path: PathBuf,
    why: String,
}

/// The file, open.
#[derive(Debug)]
pub struct Originals {
    path: PathBuf,
    file: DatabaseFile,
    fed: Mutex<BTreeMap<[u8; 10], Vec<u8>>>,
    /// Time of the last removal of old entries.
    writing: Mutex<u64>,
}

const TABLE: TableDefinition<'_, &[u8; 10], &[u8]> = TableDefinition::new("originals");
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 5;
/// Maximum entries that wait for a flush; further ones are dropped.
const FED_MAX: usize = 100_000;
const DAY_SECS: u64 = 86_400;

impl Originals {
    /// Opens the file; the first [flush](Self::flush) makes it. Blocks.
    ///
    /// # Errors
    /// [`OriginalsError`], also if an existing file was lost.
    pub fn open(path: &Path) -> Result<Self, OriginalsError> {
        let file = DatabaseFile::open(path);
        let file = file.map_err(|error| OriginalsError { path: path.to_owned(), why: error.to_string() })?;
        Ok(Originals { path: path.to_owned(), file, fed: Mutex::default(), writing: Mutex::new(0) })
    }

    /// Notes a sent recipient. Does not block. `now` in Unix seconds, here and below.
    pub fn feed(&self, key: RecipientKey, original: &Original, now: u64) {
        let Original { tenant, sender, recipient } = original;
        let mut value = vec![VERSION];
        value.extend(u32::try_from(now / 60).unwrap_or(u32::MAX).to_le_bytes());
        value.extend([tenant.as_bytes(), sender.as_bytes(), recipient.as_bytes()].join(&0));
        let mut fed = self.fed();
        if fed.len() < FED_MAX {
            fed.insert(octets(key), value);
        }
    }

    /// True if something waits for a flush.
    pub fn is_fed(&self) -> bool {
        !self.fed().is_empty()
    }

    /// Makes fed entries durable, and once a day removes those that no report can be about any more. Blocks.
    ///
    /// # Errors
    /// [`OriginalsError`]: fed entries keep waiting.
    pub fn flush(&self, now: u64) -> Result<(), OriginalsError> {
        let mut purged = self.writing.lock().expect("the writer");
        let batch = self.fed().clone();
        let is_due = now >= *purged + DAY_SECS;
        let written = self.file.write(|file| {
            let mut writing = file.begin_write()?;
            writing.set_quick_repair(true);
            {
                let mut table = writing.open_table(TABLE)?;
                for (key, value) in &batch {
                    table.insert(key, &**value)?;
                }
                if is_due {
                    let oldest = now.saturating_sub((u64::from(AGE_DAYS) + 1) * DAY_SECS) / 60;
                    table.retain(|_, value| minutes(value).is_some_and(|sent| sent >= oldest))?;
                }
            }
            Ok(writing.commit()?)
        });
        written.map_err(|error| self.failed(error))?;
        if is_due {
            *purged = now;
        }
        self.fed().retain(|key, value| batch.get(key) != Some(value));
        Ok(())
    }

    /// The original of a recipient; `None` if it is not known. May read from the disk.
    ///
    /// # Errors
    /// [`OriginalsError`].
    pub fn find(&self, key: RecipientKey) -> Result<Option<Original>, OriginalsError> {
        let key = octets(key);
        if let Some(value) = self.fed().get(&key) {
            return Ok(decode(value));
        }
        let found = self.file.read(|file| match file.begin_read()?.open_table(TABLE) {
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            table => Ok(table?.get(&key)?.and_then(|value| decode(value.value()))),
        });
        Ok(found.map_err(|error| self.failed(error))?.flatten())
    }

    fn fed(&self) -> MutexGuard<'_, BTreeMap<[u8; 10], Vec<u8>>> {
        self.fed.lock().expect("what was fed")
    }

    fn failed(&self, why: impl std::fmt::Display) -> OriginalsError {
        OriginalsError { path: self.path.clone(), why: why.to_string() }
    }
}

fn octets(key: RecipientKey) -> [u8; 10] {
    let mut octets = [0; 10];
    octets[..8].copy_from_slice(&key.message.get().to_be_bytes());
    octets[8..].copy_from_slice(&key.number.to_be_bytes());
    octets
}

fn minutes(value: &[u8]) -> Option<u64> {
    let minutes = value.get(1..HEAD_BYTES)?;
    Some(u32::from_le_bytes(minutes.try_into().expect("four octets")).into())
}

fn decode(value: &[u8]) -> Option<Original> {
    let (head, texts) = value.split_at_checked(HEAD_BYTES)?;
    let mut texts = std::str::from_utf8(texts).ok()?.split('\0').map(str::to_owned);
    let tenant = texts.next()?;
    let sender = texts.next()?;
    let recipient = texts.next()?;
    (head[0] == VERSION && texts.next().is_none()).then_some(Original { tenant, sender, recipient })
}

#[cfg(test)]
mod tests {
    use posthaste_spool::Lsn;

    use super::*;

    fn key(message: u64, number: u16) -> RecipientKey {
        RecipientKey { message: Lsn::new(message), number }
    }

    fn original(recipient: &str) -> Original {
        Original { tenant: String::new(), sender: "ann@a.example".to_owned(), recipient: recipient.to_owned() }
    }

    #[test]
    fn what_was_sent_is_found_until_it_is_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("originals");
        let now = 1_793_000_000;
        {
            let originals = Originals::open(&path).unwrap();
            originals.feed(key(7, 1), &original("bob@b.example"), now);
            assert_eq!(originals.find(key(7, 1)).unwrap(), Some(original("bob@b.example")), "at once");
            assert_eq!(originals.find(key(7, 2)).unwrap(), None);
            assert!(originals.is_fed());
            originals.flush(now).unwrap();
            assert!(!originals.is_fed());
            originals.feed(key(8, 1), &original("lost@b.example"), now);
        }
        let originals = Originals::open(&path).unwrap();
        assert_eq!(originals.find(key(7, 1)).unwrap(), Some(original("bob@b.example")));
        assert_eq!(originals.find(key(8, 1)).unwrap(), None, "it was never flushed");
        let later = now + (u64::from(AGE_DAYS) + 2) * DAY_SECS;
        originals.feed(key(9, 1), &original("eve@b.example"), later);
        originals.flush(later).unwrap();
        let left = [key(7, 1), key(9, 1)].map(|key| originals.find(key).unwrap().is_some());
        assert_eq!(left, [false, true]);
    }

    #[test]
    fn values_that_are_none_say_nothing() {
        for value in [
            &b""[..],
            b"\x01",
            b"\x01\0\0\0\0a\0b",
            b"\x02\0\0\0\0a\0b\0c",
            b"\x01\0\0\0\0a\0b\0c\0d",
            b"\x01\0\0\0\0\xff\0b\0c",
        ] {
            assert_eq!(decode(value), None, "{value:?}");
        }
        assert_eq!(decode(b"\x01\0\0\0\0\0b\0c").unwrap().recipient, "c");
    }

    #[test]
    fn a_damaged_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("originals");
        std::fs::write(&path, "no database".repeat(1000)).unwrap();
        assert!(Originals::open(&path).unwrap_err().to_string().contains("originals"));
    }
}
