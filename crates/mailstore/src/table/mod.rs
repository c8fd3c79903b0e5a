//! The table: rows of all mailboxes on the disk, as of the last commit.
//!
//! Keys are octets in their order, each value ends in a CRC-32C over key and value: the database verifies its own
//! checksums only when it repairs. [`MetaTable::commit`] is atomic and durable. It is the snapshot of the stream
//! `mailstore`: newer entries are in the spool.

mod apply;
mod changes;
mod columns;
mod error;
mod file;
mod file_note;
mod gone_rows;
mod heads;
mod lookups;
mod numbers;
mod reader;
mod row_set;
mod table_name;
mod values;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend};

use rustix::fs::{Mode, OFlags};

pub use self::file::FILE;
use self::file::{FileError, TableFile, guarded, open_database, open_file};
pub use apply::Applier;
pub(crate) use apply::ParkedApplier;
pub use changes::{RowChanges, rows_of};
pub(crate) use changes::{for_each_key, for_each_row};
pub(crate) use columns::StateColumns;
pub use columns::{FixedMessage, StateMessage, fixed_row, flag_bits, state_row};
pub use error::MetaError;
pub use file_note::FileNote;
pub(crate) use heads::stored_head;
pub use numbers::StoreNumbers;
pub use reader::{EachValue, TableReader, peek};
use reader::{PAGE_BYTES, peek_file, sealed};
pub use table_name::TableName;
pub use values::{AccountRow, GoneRow, LeavingRow, MailboxHead, NameRow, OpeningRow, PendingRow};
pub(crate) use values::{SKIPPED_UIDS, key_of, modseq_and_uid, second_of};

/// The open table, used by one process at a time: the owner of the spool.
#[derive(Debug)]
pub struct MetaTable {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after a failure, until the file was reopened or replaced.
    open: Option<OpenTable>,
    /// The error after which the file must be reopened or replaced.
    failed: Option<MetaError>,
}

#[derive(Debug)]
struct OpenTable {
    database: Database,
    error: FileError,
    /// Length of the file when it was opened.
    bytes: u64,
}

const NEW_FILE: &str = "meta.redb.new";
/// Marks a file whose sync has failed. Pages that read well may not be on the disk, nor its length, so the next opening
/// copies its rows. A power cut may lose the mark; then it has lost the unwritten pages, too.
const SUSPECT_FILE: &str = "meta.redb.suspect";
const FORMAT_KEY: &[u8] = b"format";
const FORMAT: [u8; 4] = 1u32.to_le_bytes();
/// Shorter files are not compacted: examining their pages would delay the start for little gain.
const COMPACTED_BYTES_MIN: u64 = if cfg!(test) { 4 << 20 } else { 64 << 20 };
/// A file is compacted if it has this many times the bytes of its live pages.
const SPARSE_RATIO: u64 = 3;
/// Rows at each end of a table by which its size is estimated.
const ROWS_SAMPLED: usize = 64;
/// Rows that are copied into a new file at once.
const COPIED_AT_ONCE: usize = 4096;

impl MetaTable {
    /// Opens the table in `dir`, or creates an empty one. Compacts a long file with few live pages.
    ///
    /// # Errors
    /// [`MetaError::Open`], [`MetaError::Damaged`]; another format is [`MetaError::Value`].
    pub fn open(dir: &Path) -> Result<Self, MetaError> {
        let failed = |error: io::Error| MetaError::Open(format!("{}: {error}", dir.display()));
        posthaste_fsops::make_dir(dir).map_err(failed)?;
        if !dir.join(FILE).exists() {
            create(dir, |_| Ok(()))?;
        }
        let is_suspect = dir.join(SUSPECT_FILE).exists();
        let failed = MetaError::Disk("a sync failed in an earlier run".to_owned());
        let mut state = State { open: None, failed: is_suspect.then_some(failed) };
        if is_suspect {
            state.revive(dir)?
        } else {
            let mut table = OpenTable::open(&dir.join(FILE))?;
            // The rows are as they were: whoever needs them opens the file again, as after a commit that failed.
            state.failed = table.compact_if_sparse().inspect_err(|error| suspect_after(error, dir)).err();
            state.open = Some(table);
        }
        let table = Self { dir: dir.to_owned(), state: Mutex::new(state) };
        check_format(&table.reader()?)?;
        Ok(table)
    }

    /// Moves live pages of the table in `dir` to the front of its file, and truncates the file. Returns its length
    /// before and after, in bytes. No other process may have the table open for writing. A kill meanwhile leaves the
    /// rows unchanged.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`MetaError::NoRoom`], [`MetaError::Disk`].
    pub fn compact(dir: &Path) -> Result<(u64, u64), MetaError> {
        let path = dir.join(FILE);
        let bytes = || path.metadata().map(|found| found.len());
        let failed = |error: io::Error| MetaError::Open(format!("{}: {error}", path.display()));
        // Before it is opened: that would make it, or compact it.
        let before = bytes().map_err(failed)?;
        let table = Self::open(dir)?;
        {
            let mut state = table.lock();
            state.revive(dir)?;
            let OpenTable { database, error, .. } = state.open.as_mut().expect("it was revived");
            let compacted = guarded(error, || Ok(database.compact()?));
            compacted.inspect_err(|error| suspect_after(error, dir))?;
        }
        drop(table);
        Ok((before, bytes().map_err(failed)?))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the last commit. A reader sees no later commit, and keeps pages of the file, so it must be dropped
    /// soon.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn reader(&self) -> Result<TableReader, MetaError> {
        let mut state = self.lock();
        // What a panic has left reads well. Where nothing can be written, what the last commit left can be read.
        let is_closed = !matches!(state.failed, None | Some(MetaError::Damaged(_)));
        if is_closed && state.revive(&self.dir).is_err() {
            return peek_file(&open_file(&self.dir)?);
        }
        let open = state.open.as_ref().ok_or_else(|| MetaError::Open("it was not opened".to_owned()))?;
        guarded(&open.error, || Ok(open.database.begin_read()?)).map(TableReader::of)
    }

    /// Makes all changes durable, or none. After an error the next call first reopens the file, or, if the disk has
    /// failed, copies the rows of the last commit into a new file. A page whose sync failed is never just written
    /// again.
    ///
    /// # Errors
    /// [`MetaError::NoRoom`], [`MetaError::Disk`], [`MetaError::Damaged`].
    pub fn commit(&self, changes: &RowChanges) -> Result<(), MetaError> {
        let mut state = self.lock();
        state.revive(&self.dir)?;
        let State { open, failed } = &mut *state;
        let open = open.as_ref().expect("it was revived");
        guarded(&open.error, || write(&open.database, changes)).inspect_err(|error| {
            suspect_after(error, &self.dir);
            *failed = Some(error.clone());
        })
    }
}

/// Marks the table as suspect for the next process, if the disk has failed. A failure is ignored: the next process meets
/// the same disk error.
fn suspect_after(error: &MetaError, dir: &Path) {
    if !matches!(error, MetaError::Disk(_)) {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let _ = posthaste_fsops::open(dir.join(SUSPECT_FILE), flags, Mode::RUSR | Mode::WUSR);
}

impl State {
    /// Reopens the file after a failure.
    fn revive(&mut self, dir: &Path) -> Result<(), MetaError> {
        match &self.failed {
            None => return Ok(()),
            // Nobody may rely on what a damaged file says after another write.
            Some(MetaError::Damaged(_)) => return Err(self.failed.clone().expect("it is damaged")),
            Some(MetaError::Disk(_)) => {
                self.open = None;
                let source = peek_file(&open_file(dir)?)?;
                create(dir, |database| {
                    TableName::ALL.into_iter().try_for_each(|table| copy(&source, database, table))
                })?;
                // If it comes back after a power cut, rows are copied once more.
                let _ = posthaste_fsops::unlink(dir.join(SUSPECT_FILE));
            }
            Some(_) => drop(self.open.take()),
        }
        self.open = Some(OpenTable::open(&dir.join(FILE))?);
        self.failed = None;
        Ok(())
    }
}

impl OpenTable {
    fn open(path: &Path) -> Result<Self, MetaError> {
        let opened = TableFile::open(path);
        let backend = opened.map_err(|error| MetaError::Open(format!("{}: {error}", path.display())))?;
        let (error, bytes) = (backend.error(), backend.len().unwrap_or(0));
        let database = guarded(&error, || open_database(backend))?;
        Ok(Self { database, error, bytes })
    }

    /// Moves live pages to the front of a sparse file, and truncates it. After a kill the rows are unchanged; the next
    /// opening then checks all pages, once.
    fn compact_if_sparse(&mut self) -> Result<(), MetaError> {
        let Self { database, error, bytes } = self;
        if *bytes < COMPACTED_BYTES_MIN {
            return Ok(());
        }
        guarded(error, || {
            let reader = database.begin_read()?;
            let live_max = *bytes / SPARSE_RATIO;
            // All pages are counted only where few should be live.
            let is_sparse = about_live_bytes(&reader)? <= live_max && live_bytes(&reader)? <= live_max;
            drop(reader);
            if is_sparse {
                database.compact()?;
            }
            Ok(())
        })
    }
}

/// Bytes of live pages. Reads all of them.
fn live_bytes(reader: &ReadTransaction) -> Result<u64, redb::Error> {
    let mut live = 0;
    for table in TableName::ALL {
        let stats = reader.open_table(table.definition())?.stats()?;
        live += (stats.leaf_pages() + stats.branch_pages()) * PAGE_BYTES;
    }
    Ok(live)
}

/// Bytes of live pages, estimated from the first and last rows of each table: pages are three quarters full. The number
/// of a table's rows is known without a look at them.
fn about_live_bytes(reader: &ReadTransaction) -> Result<u64, redb::Error> {
    let mut live = 0;
    for table in TableName::ALL {
        let table = reader.open_table(table.definition())?;
        let (mut rows, mut bytes) = (0, 0);
        for row in table.iter()?.take(ROWS_SAMPLED).chain(table.iter()?.rev().take(ROWS_SAMPLED)) {
            let (key, value) = row?;
            rows += 1;
            bytes += (key.value().len() + value.value().len()) as u64;
        }
        live += table.len()? * bytes / rows.max(1) * 4 / 3;
    }
    Ok(live)
}

/// Created under a temporary name: a half-made file could not be opened again.
fn create(dir: &Path, fill: impl FnOnce(&Database) -> Result<(), MetaError>) -> Result<(), MetaError> {
    let new = dir.join(NEW_FILE);
    let failed = |error: io::Error| MetaError::Open(format!("{}: {error}", new.display()));
    let backend = TableFile::create(&new).map_err(failed)?;
    let error = backend.error();
    let database = guarded(&error, || {
        let database = open_database(backend)?;
        let mut changes = RowChanges::default();
        changes.put(TableName::Store, FORMAT_KEY, FORMAT.to_vec());
        write(&database, &changes)?;
        Ok(database)
    })?;
    fill(&database)?;
    guarded(&error, || Ok(database.close()?))?;
    // Synced anew: the last write of the database is that it was closed.
    let file = File::open(&new).map_err(failed)?;
    posthaste_fsops::put_in_place(&file, &new, &dir.join(FILE)).map_err(|error| failed(error.into()))
}

fn write(database: &Database, changes: &RowChanges) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let mut left = changes.0.iter().peekable();
    for name in TableName::ALL {
        // Each table is made by the first commit.
        let mut table = transaction.open_table(name.definition())?;
        while let Some(((_, key), value)) = left.next_if(|((of, _), _)| *of == name) {
            match value {
                Some(value) => drop(table.insert(&key[..], &sealed(key, value)[..])?),
                None => drop(table.remove(&key[..])?),
            }
        }
    }
    Ok(transaction.commit()?)
}

fn copy(from: &TableReader, to: &Database, table: TableName) -> Result<(), MetaError> {
    let mut changes = RowChanges::default();
    let flush = |changes: &mut RowChanges| {
        let written = write(to, &std::mem::take(changes));
        written.map_err(|error| MetaError::Disk(error.to_string()))
    };
    from.for_each(table, &[], &mut |key, value| {
        // A damaged value is not made whole by a new checksum: it is left out, as a reader would.
        if let Some(value) = value {
            changes.put(table, key, value.to_vec());
        }
        if changes.0.len() >= COPIED_AT_ONCE { flush(&mut changes) } else { Ok(()) }
    })?;
    flush(&mut changes)
}

fn check_format(reader: &TableReader) -> Result<(), MetaError> {
    match reader.get(TableName::Store, FORMAT_KEY)? {
        Some(format) if format == FORMAT => Ok(()),
        format => Err(MetaError::Value(format!("format {format:?} is none of this version"))),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
