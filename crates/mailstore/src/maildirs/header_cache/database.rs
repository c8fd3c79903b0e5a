//! The file of the cache: a database that is never synced and may be damaged.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;
use redb::backends::FileBackend;
use redb::{
    AccessGuard, Database, Range, ReadOnlyTable, ReadableDatabase, ReadableTable, RepairSession, StorageBackend, Table,
    TableDefinition,
};

use super::entry::{CachedKind, Key, value_of};
use crate::maildirs::boot::boot_id;

/// Octets of database pages in memory.
const PAGES_BYTES: usize = 16 << 20;

/// Key: a kind, batch and number of a body (big-endian). Value: facts of the file, the cached data, CRC-32C over key
/// and value.
const HEADERS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("headers");
/// The boot in which the entries are valid, and the octets of all of them.
pub(super) const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");

/// Entries of one commit.
pub(super) type Entries = HashMap<Key, Vec<u8>>;

/// An open file. Reads see the last commit and wait for no other.
pub(super) struct CacheDatabase(Option<Database>);

/// A read transaction for many reads.
pub(super) struct CacheRead {
    /// Position of the last entry. It must be dropped before the table, and that before the database.
    cursor: Option<Cursor>,
    table: CacheTable,
    /// Outlives the table.
    database: Arc<CacheDatabase>,
}

impl CacheDatabase {
    /// Opens the file, and returns the octets of its entries.
    pub fn open(path: &Path) -> Result<(Self, u64), CacheError> {
        guarded(|| {
            let database = Self::over(File::options().read(true).write(true).open(path)?)?;
            let state = database.redb().begin_read()?.open_table(STATE)?;
            let is_current = state.get("boot")?.is_some_and(|boot| boot.value() == boot_id().as_bytes());
            let bytes = state.get("bytes")?.and_then(|bytes| Some(u64::from_le_bytes(bytes.value().try_into().ok()?)));
            match bytes {
                Some(bytes) if is_current => Ok((database, bytes)),
                _ => Err(CacheError::from("of another boot")),
            }
        })
    }

    /// Creates an empty file, replacing any other.
    pub fn create(path: &Path) -> Result<(Self, u64), CacheError> {
        guarded(|| {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            let database = Self::over(file)?;
            database.write(&Entries::new(), 0, |_| u64::MAX)?;
            Ok((database, 0))
        })
    }

    fn over(file: File) -> Result<Self, CacheError> {
        let mut builder = Database::builder();
        // A repair would read all of the file before the first session: to begin anew costs less.
        builder.set_cache_size(PAGES_BYTES).set_repair_callback(RepairSession::abort);
        Ok(Self(Some(builder.create_with_backend(Unsynced(FileBackend::new(file)?))?)))
    }

    pub fn redb(&self) -> &Database {
        self.0.as_ref().expect("it is open until it is dropped")
    }

    /// Adds entries. Returns the octets of all. The oldest mail is removed first: clients list the newest. A listing of
    /// a whole mailbox that does not fit keeps the existing entries.
    pub fn write(&self, entries: &Entries, bytes: u64, bytes_max: impl FnOnce(u64) -> u64) -> Result<u64, CacheError> {
        guarded(|| {
            let mut bytes = bytes;
            let mut transaction = self.redb().begin_write()?;
            // So that the file opens at once after a kill.
            transaction.set_quick_repair(true);
            {
                let mut table = transaction.open_table(HEADERS)?;
                for (key, entry) in entries {
                    let old = table.insert(&key[..], &entry[..])?.map_or(0, |old| old.value().len());
                    bytes = (bytes + entry.len() as u64).saturating_sub(old as u64);
                }
                let bytes_max = bytes_max(bytes);
                while bytes > bytes_max {
                    let Some(removed) = remove_oldest(&mut table)? else { break };
                    bytes = bytes.saturating_sub(removed);
                }
                let mut state = transaction.open_table(STATE)?;
                state.insert("boot", boot_id().as_bytes())?;
                state.insert("bytes", &bytes.to_le_bytes()[..])?;
            }
            transaction.commit()?;
            Ok(bytes)
        })
    }

    pub fn read(self: &Arc<Self>) -> Result<CacheRead, CacheError> {
        guarded(|| {
            let table = self.redb().begin_read()?.open_table(HEADERS)?;
            Ok(CacheRead { cursor: None, table, database: Arc::clone(self) })
        })
    }
}

/// The database writes when it is closed, and may find damage then.
impl Drop for CacheDatabase {
    fn drop(&mut self) {
        let _ = guarded(|| {
            drop(self.0.take());
            Ok(())
        });
    }
}

type CacheTable = ReadOnlyTable<&'static [u8], &'static [u8]>;
type CacheOctets = AccessGuard<'static, &'static [u8]>;

/// Entries from one on. The next message's entry is usually near, so continuing is cheaper than starting at the root.
struct Cursor {
    entries: Range<'static, &'static [u8], &'static [u8]>,
    next: Option<(CacheOctets, CacheOctets)>,
    /// No entry lies between this key and `next`.
    from: Key,
}

/// Entries skipped before the cursor is repositioned.
const PASSED_MAX: usize = 8;

impl Cursor {
    fn at(table: &CacheTable, key: &Key) -> Result<Self, CacheError> {
        let mut entries = table.range(&key[..]..)?;
        let next = entries.next().transpose()?;
        Ok(Self { entries, next, from: *key })
    }

    /// Goes on to the first entry that is not below `key`; false if it is far.
    fn go_to(&mut self, key: &Key) -> Result<bool, CacheError> {
        if *key < self.from {
            return Ok(false);
        }
        for _ in 0..PASSED_MAX {
            match &self.next {
                Some((found, _)) if found.value() < &key[..] => self.next = self.entries.next().transpose()?,
                _ => {
                    self.from = *key;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl CacheRead {
    /// Cheapest in the order of keys.
    pub fn get(&mut self, key: &Key, facts: &FileFacts) -> Result<Option<Bytes>, CacheError> {
        guarded(|| {
            let mut cursor = match self.cursor.take() {
                Some(cursor) => cursor,
                None => Cursor::at(&self.table, key)?,
            };
            if !cursor.go_to(key)? {
                cursor = Cursor::at(&self.table, key)?;
            }
            let found = cursor.next.as_ref().filter(|(found, _)| found.value() == &key[..]);
            let value = found.and_then(|(_, entry)| value_of(key, entry.value(), facts));
            self.cursor = Some(cursor);
            Ok(value)
        })
    }

    pub fn database(&self) -> &Arc<CacheDatabase> {
        &self.database
    }
}

/// Removes an entry of the oldest mail, and returns its octets; `None` if there is none.
fn remove_oldest(table: &mut Table<'_, &'static [u8], &'static [u8]>) -> Result<Option<u64>, CacheError> {
    let mut oldest: Option<Key> = None;
    for kind in CachedKind::ALL {
        let from = kind.first_key();
        let found = table.range(&from[..]..)?.next().transpose()?;
        let found = found.and_then(|(key, _)| Key::try_from(key.value()).ok()).filter(|key| key[0] == from[0]);
        if let Some(key) = found.filter(|key| oldest.is_none_or(|known| key[1..] < known[1..])) {
            oldest = Some(key);
        }
    }
    let Some(oldest) = oldest else { return Ok(None) };
    Ok(Some(table.remove(&oldest[..])?.map_or(0, |entry| entry.value().len() as u64)))
}

/// The reason why the file cannot be used, in words.
#[derive(Debug)]
pub(super) struct CacheError(pub String);

impl<E: std::fmt::Display> From<E> for CacheError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Catches panics of a damaged database: the cache ends.
fn guarded<T>(work: impl FnOnce() -> Result<T, CacheError>) -> Result<T, CacheError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(CacheError::from("the database panicked")))
}

/// A file that is never synced.
#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}
