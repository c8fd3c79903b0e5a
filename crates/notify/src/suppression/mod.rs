//! The suppression list: for each tenant, addresses that get no more mail, and the reason.
//!
//! A file with a B-tree: a lookup takes a few pages at any size, and a cache bounds the memory. The file is made with
//! the first entry; without it a lookup costs nothing. Commands are durable when they return. Bounces and complaints
//! [feed](Suppressions::feed) the list: they count at once and become durable with the next
//! [flush](Suppressions::flush).
//!
//! ```
//! use posthaste_notify::suppression::{SuppressionSource, Suppressed, Suppressions};
//!
//! let dir = tempfile::tempdir().unwrap();
//! let list = Suppressions::open(&dir.path().join("suppression.redb")).unwrap();
//! let bob = Suppressed { address: "Bob@Example.ORG".into(), reason: "asked for it".into(), ..Suppressed::default() };
//! assert_eq!(list.add(&[bob], 0).unwrap(), 1);
//! let found = list.find("news", "bob@example.org", 0).unwrap().expect("an entry without a tenant is for all");
//! assert_eq!((found.source, &*found.reason), (SuppressionSource::Operator, "asked for it"));
//! ```
mod codec;
mod share;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use redb::{
    ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition, TableError,
    WriteTransaction,
};
use serde::{Deserialize, Serialize};

use crate::database::DatabaseFile;

pub use codec::{REASON_BYTES_MAX, Suppressed, SuppressionEntryError, SuppressionSource, TENANT_BYTES_MAX};

/// A filter of entries; empty matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuppressionFilter {
    /// Only of this tenant; empty: those for everybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only with this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Only from this source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SuppressionSource>,
}

impl SuppressionFilter {
    /// True of an entry that it selects.
    pub fn matches(&self, entry: &Suppressed) -> bool {
        let address = self.address.as_deref().map(codec::canonical);
        self.tenant.as_ref().is_none_or(|tenant| *tenant == entry.tenant)
            && address.is_none_or(|address| address == entry.address)
            && self.source.is_none_or(|source| source == entry.source)
    }
}

/// Error in reading or changing the list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuppressionError {
    /// The file cannot be used.
    #[error("the suppression list {}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// An entry is invalid; none was added.
    #[error(transparent)]
    Entry(#[from] SuppressionEntryError),
}

/// The open list.
#[derive(Debug)]
pub struct Suppressions {
    path: PathBuf,
    file: DatabaseFile,
    /// Number of entries, fed ones included; expired ones count until removed.
    count: AtomicU64,
    fed: Mutex<Fed>,
    /// Serialises writers; holds the time of the last removal of expired entries.
    writing: Mutex<u64>,
    /// Found by that removal, until [taken](Self::take_damaged).
    damaged: Mutex<Option<DamagedSuppressions>>,
    /// Fed entries are kept for [`share`](Suppressions::share), too.
    shares: AtomicBool,
}

/// Entries that cannot be decoded. They stay: mail to their addresses waits until an operator removes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedSuppressions {
    /// How many there are.
    pub count: u64,
    /// The first of them: its address.
    pub address: String,
    /// Its tenant; empty: everybody.
    pub tenant: String,
}

/// Fed entries that are not in the file yet.
#[derive(Debug, Default)]
struct Fed {
    entries: BTreeMap<String, Vec<u8>>,
    dropped: u64,
}

type Stored = ReadOnlyTable<&'static str, &'static [u8]>;
type Stores<'a> = Table<'a, &'static str, &'static [u8]>;

const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("suppressed");
/// Entries that may wait for a flush. Fewer in the test that reaches the bound: an unoptimised database is slow.
const FED_MAX: usize = if cfg!(test) { 1000 } else { 100_000 };
/// Entries of one page of a listing.
const PAGE: usize = 1000;
const DAY_SECS: u64 = 86_400;

impl Suppressions {
    /// Opens the list, which may not exist yet. An existing one opens on a full disk, too. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`], also if there was a list and its file is gone.
    pub fn open(path: &Path) -> Result<Self, SuppressionError> {
        let file = DatabaseFile::open(path);
        let file = file.map_err(|error| SuppressionError::File { path: path.to_owned(), why: error.to_string() })?;
        let list = Suppressions {
            path: path.to_owned(),
            file,
            count: AtomicU64::new(0),
            fed: Mutex::default(),
            writing: Mutex::default(),
            damaged: Mutex::default(),
            shares: AtomicBool::new(false),
        };
        list.recount(&list.fed())?;
        Ok(list)
    }

    /// True if nothing is suppressed: then no lookup is needed.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Approximate number of entries: expired ones count until removed, within a day of changes.
    pub fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Finds the entry of an address for a tenant, or for everybody. `now` in Unix seconds, here and below. May read
    /// from the disk.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn find(&self, tenant: &str, address: &str, now: u64) -> Result<Option<Suppressed>, SuppressionError> {
        Ok(self.find_each(tenant, [address], now)?.pop().flatten())
    }

    /// Finds the entries of several addresses, in their order.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn find_each<'a>(
        &self,
        tenant: &str,
        addresses: impl IntoIterator<Item = &'a str>,
        now: u64,
    ) -> Result<Vec<Option<Suppressed>>, SuppressionError> {
        let tenants = if tenant.is_empty() { &[""][..] } else { &[tenant, ""] };
        // Before the file is read: entries flushed meanwhile are found there.
        let fed: Vec<(String, Option<Vec<u8>>)> = {
            let fed = self.fed();
            let keys = addresses.into_iter().flat_map(|address| tenants.iter().map(move |it| codec::key(it, address)));
            let with_value = |key: String| {
                let value = fed.entries.get(&key).cloned();
                (key, value)
            };
            keys.map(with_value).collect()
        };
        let found = self.reading(|table| {
            let value = |(key, fed): &(String, Option<Vec<u8>>)| -> Result<_, redb::Error> {
                match (fed, table) {
                    (None, Some(table)) => Ok(table.get(&**key)?.map(|value| value.value().to_vec())),
                    _ => Ok(fed.clone()),
                }
            };
            fed.iter().map(value).collect::<Result<Vec<_>, _>>()
        })?;
        let first_valid = |of_address: &[(String, Option<Vec<u8>>)]| -> Result<_, SuppressionError> {
            for (key, value) in of_address {
                let Some(value) = value else { continue };
                let found = codec::decode(key, value);
                let found =
                    found.ok_or_else(|| self.failed(format_args!("the entry of {} is damaged", shown(key).1)))?;
                if found.is_valid(now) {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        };
        let found: Vec<_> = fed.into_iter().map(|(key, _)| key).zip(found).collect();
        found.chunks(tenants.len()).map(first_valid).collect()
    }

    /// Adds or replaces entries; durable on return. Returns how many are new. Blocks.
    ///
    /// # Errors
    /// See [`SuppressionError`].
    pub fn add(&self, entries: &[Suppressed], now: u64) -> Result<u64, SuppressionError> {
        let encoded: Vec<(String, Vec<u8>)> = entries.iter().map(codec::encode).collect::<Result<_, _>>()?;
        self.flush(now)?;
        self.write(now, |_, table| {
            let mut added = 0;
            for (key, value) in &encoded {
                added += u64::from(table.insert(&**key, &**value)?.is_none());
            }
            Ok(added)
        })
    }

    /// Removes addresses of one tenant; durable on return. Returns how many there were. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn remove(&self, tenant: &str, addresses: &[String], now: u64) -> Result<u64, SuppressionError> {
        self.flush(now)?;
        if self.is_empty() {
            return Ok(0);
        }
        self.write(now, |_, table| {
            let mut removed = 0;
            for address in addresses {
                removed += u64::from(table.remove(&*codec::key(tenant, address))?.is_some());
            }
            Ok(removed)
        })
    }

    /// Adds an entry with the next [flush](Self::flush), unless an existing one lasts as long. Does not block. If too
    /// many wait, it is dropped: the address will bounce again.
    ///
    /// # Errors
    /// [`SuppressionError::Entry`].
    pub fn feed(&self, entry: &Suppressed) -> Result<(), SuppressionError> {
        let (key, value) = codec::encode(entry)?;
        let mut fed = self.fed();
        if fed.entries.len() >= FED_MAX {
            fed.dropped += 1;
            return Ok(());
        }
        if fed.entries.insert(key, value).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// True if entries wait for a flush.
    pub fn is_fed(&self) -> bool {
        !self.fed().entries.is_empty()
    }

    /// Makes fed entries durable. Returns how many were dropped since the last flush because too many waited. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`]: the entries keep waiting.
    pub fn flush(&self, now: u64) -> Result<u64, SuppressionError> {
        let batch = self.fed().entries.clone();
        if !batch.is_empty() {
            self.write(now, |writing, table| {
                let lasting = insert_lasting(table, batch.iter().map(|(key, value)| (&**key, &**value)))?;
                if self.shares.load(Ordering::Relaxed) {
                    share::note(writing, &lasting)?;
                }
                Ok(0)
            })?;
        }
        let mut fed = self.fed();
        fed.entries.retain(|key, value| batch.get(key) != Some(value));
        self.recount(&fed)?;
        Ok(std::mem::take(&mut fed.dropped))
    }

    /// Adds entries as [`feed`](Self::feed) does, from another machine: an existing one that lasts as long stays.
    /// Durable on return. Blocks.
    ///
    /// # Errors
    /// See [`SuppressionError`].
    pub fn merge(&self, entries: &[Suppressed], now: u64) -> Result<(), SuppressionError> {
        let encoded: Vec<(String, Vec<u8>)> = entries.iter().map(codec::encode).collect::<Result<_, _>>()?;
        self.flush(now)?;
        let entries = || encoded.iter().map(|(key, value)| (&**key, &**value));
        self.write(now, |_, table| Ok(insert_lasting(table, entries())?.len() as u64)).map(drop)
    }

    /// Makes the list these entries and those that wait for [`share`](Self::share). Durable on return. Blocks.
    ///
    /// # Errors
    /// See [`SuppressionError`].
    pub fn replace(&self, entries: &[Suppressed], now: u64) -> Result<(), SuppressionError> {
        let encoded: BTreeMap<String, Vec<u8>> = entries.iter().map(codec::encode).collect::<Result<_, _>>()?;
        self.flush(now)?;
        let replaced = self.write(now, |writing, table| {
            let unshared = share::all(writing)?;
            table.retain(|key, _| encoded.contains_key(key) || unshared.contains(key))?;
            for (key, value) in &encoded {
                table.insert(&**key, &**value)?;
            }
            Ok(0)
        });
        replaced.map(drop)
    }

    /// From now on entries that are fed wait for [`share`](Self::share), too.
    pub fn keep_to_share(&self) {
        self.shares.store(true, Ordering::Relaxed);
    }

    /// Passes up to `most` of the entries that were fed since [`keep_to_share`](Self::keep_to_share) to `send`, none
    /// twice unless it returns false or the process crashes. Returns how many were sent. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn share(
        &self,
        most: usize,
        now: u64,
        send: &mut dyn FnMut(&[Suppressed]) -> bool,
    ) -> Result<usize, SuppressionError> {
        let (keys, entries) = self.to_share(most, now)?;
        if keys.is_empty() || !entries.is_empty() && !send(&entries) {
            return Ok(0);
        }
        self.write(now, |writing, _| share::forget(writing, &keys).map(|()| 0))?;
        Ok(entries.len())
    }

    /// Up to `most` of the entries that wait for [`share`](Self::share). Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn unshared(&self, most: usize, now: u64) -> Result<Vec<Suppressed>, SuppressionError> {
        self.flush(now)?;
        self.to_share(most, now).map(|(_, entries)| entries)
    }

    /// Keys that wait to be shared, and those of their entries that are valid.
    fn to_share(&self, most: usize, now: u64) -> Result<(Vec<share::Unshared>, Vec<Suppressed>), SuppressionError> {
        let found = self.file.read(|file| {
            let reading = file.begin_read()?;
            let keys = share::waiting(&reading, most)?;
            let mut entries = Vec::with_capacity(keys.len());
            // The first entry made the table.
            if !keys.is_empty() {
                let table = reading.open_table(TABLE)?;
                for (key, _) in &keys {
                    // An entry that was removed since is not sent.
                    entries.extend(table.get(&**key)?.and_then(|value| codec::decode(key, value.value())));
                }
            }
            Ok((keys, entries))
        });
        let (keys, mut entries) = found.map_err(|error| self.failed(error))?.unwrap_or_default();
        entries.retain(|entry| entry.is_valid(now));
        Ok((keys, entries))
    }

    /// Passes matching entries to `show`, by tenant and address, until it returns false. Entries added meanwhile may be
    /// missing. Blocks.
    ///
    /// # Errors
    /// [`SuppressionError::File`].
    pub fn list(
        &self,
        wanted: &SuppressionFilter,
        now: u64,
        show: &mut dyn FnMut(Suppressed) -> bool,
    ) -> Result<(), SuppressionError> {
        self.flush(now)?;
        let mut from = wanted.tenant.as_deref().map_or_else(String::new, |tenant| codec::key(tenant, ""));
        let address = wanted.address.as_deref().map(codec::canonical);
        loop {
            // A transaction per page: a slow reader keeps no old pages alive.
            let (page, next) = self.reading(|table| -> Result<_, redb::Error> {
                let mut page = Vec::with_capacity(PAGE);
                let mut next = None;
                let Some(table) = table else { return Ok((page, next)) };
                let entries = table.range::<&str>((Bound::Included(&*from), Bound::Unbounded))?;
                for (number, entry) in (1..=PAGE).zip(entries) {
                    let (key, value) = entry?;
                    page.extend(codec::decode(key.value(), value.value()));
                    // A damaged entry is left out of the page, but counts: others follow it.
                    next = (number == PAGE).then(|| format!("{}\0", key.value()));
                }
                Ok((page, next))
            })?;
            for entry in page {
                if wanted.tenant.as_ref().is_some_and(|tenant| *tenant != entry.tenant) {
                    return Ok(());
                }
                let is_wanted = address.as_ref().is_none_or(|address| *address == entry.address)
                    && wanted.source.is_none_or(|source| source == entry.source)
                    && entry.is_valid(now);
                if is_wanted && !show(entry) {
                    return Ok(());
                }
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }

    /// Damaged entries that the last daily removal of expired ones has found and kept; each day's once.
    pub fn take_damaged(&self) -> Option<DamagedSuppressions> {
        self.damaged().take()
    }

    fn damaged(&self) -> MutexGuard<'_, Option<DamagedSuppressions>> {
        self.damaged.lock().expect("what is damaged")
    }

    fn fed(&self) -> MutexGuard<'_, Fed> {
        self.fed.lock().expect("what was fed")
    }

    /// Reads the table; `None` if there is none yet.
    fn reading<T>(&self, read: impl Fn(Option<&Stored>) -> Result<T, redb::Error>) -> Result<T, SuppressionError> {
        let done = self.file.read(|file| match file.begin_read()?.open_table(TABLE) {
            Err(TableError::TableDoesNotExist(_)) => read(None),
            table => read(Some(&table?)),
        });
        let done = done.map_err(|error| self.failed(error))?;
        done.map_or_else(|| read(None).map_err(|error| self.failed(error)), Ok)
    }

    fn write(
        &self,
        now: u64,
        change: impl FnOnce(&WriteTransaction, &mut Stores<'_>) -> Result<u64, redb::Error>,
    ) -> Result<u64, SuppressionError> {
        let mut purged = self.writing.lock().expect("the writer");
        let is_due = now >= *purged + DAY_SECS;
        let mut damaged = None;
        let changed = self.file.write(|file| {
            let mut writing = file.begin_write()?;
            // After a crash the file opens at once, whatever its size.
            writing.set_quick_repair(true);
            let changed = {
                let mut table = writing.open_table(TABLE)?;
                let changed = change(&writing, &mut table)?;
                if is_due {
                    damaged = remove_expired(&mut table, now)?;
                }
                changed
            };
            writing.commit()?;
            Ok(changed)
        });
        let changed = changed.map_err(|error| self.failed(error))?;
        if is_due {
            *purged = now;
            *self.damaged() = damaged;
        }
        self.recount(&self.fed())?;
        Ok(changed)
    }

    /// Updates the count of entries. The caller's lock keeps feeds out, so the count is never too low.
    fn recount(&self, fed: &Fed) -> Result<(), SuppressionError> {
        let stored = self.reading(|table| Ok(table.map(ReadableTableMetadata::len).transpose()?.unwrap_or(0)))?;
        self.count.store(stored + fed.entries.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn failed(&self, why: impl std::fmt::Display) -> SuppressionError {
        SuppressionError::File { path: self.path.clone(), why: why.to_string() }
    }
}

/// Removes entries that have expired. Damaged ones stay, and are returned: removed, they would mean "send again".
fn remove_expired(table: &mut Stores<'_>, now: u64) -> Result<Option<DamagedSuppressions>, redb::Error> {
    let mut damaged: Option<DamagedSuppressions> = None;
    table.retain(|key, value| match codec::decode(key, value) {
        Some(entry) => entry.is_valid(now),
        None => {
            let (tenant, address) = shown(key);
            let found = damaged.get_or_insert_with(|| DamagedSuppressions {
                count: 0,
                address: address.to_owned(),
                tenant: tenant.to_owned(),
            });
            found.count += 1;
            true
        }
    })?;
    Ok(damaged)
}

/// The tenant and the address of a key, which may be damaged.
fn shown(key: &str) -> (&str, &str) {
    key.split_once('\0').unwrap_or(("", key))
}

/// Inserts entries unless one is there that lasts as long; returns the inserted ones with their keys.
fn insert_lasting<'a>(
    table: &mut Stores<'_>,
    entries: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Vec<(&'a str, Suppressed)>, redb::Error> {
    let mut inserted = Vec::new();
    for (key, value) in entries {
        let Some(entry) = codec::decode(key, value) else { continue };
        let there = table.get(key)?.and_then(|there| codec::decode(key, there.value()));
        if there.is_none_or(|there| there.lasts() < entry.lasts()) {
            table.insert(key, value)?;
            inserted.push((key, entry));
        }
    }
    Ok(inserted)
}
