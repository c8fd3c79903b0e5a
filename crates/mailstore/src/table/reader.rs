//! Reads the table as of one commit, even while another process has it open.

use std::fs::File;
use std::io;
use std::path::Path;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTableMetadata};

use super::error::MetaError;
use super::file::{FileError, OverlayFile, guarded, open_database, open_file};
use super::table_name::TableName;

/// A page of the database; longer ones count as several.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Takes keys and values; `None` for a value with a wrong checksum.
pub type EachValue<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), MetaError> + 'a;

/// The table as of one commit, the last when the reader was made.
#[derive(Debug)]
pub struct TableReader {
    // Before the database that it is of.
    transaction: ReadTransaction,
    _database: Option<Database>,
}

impl TableReader {
    pub(super) fn of(transaction: ReadTransaction) -> Self {
        Self { transaction, _database: None }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`MetaError::Value`] if its checksum is wrong; [`MetaError::Damaged`].
    pub fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        let found = self.call(|| {
            let value = self.transaction.open_table(table.definition())?.get(key)?;
            Ok(value.map(|value| value.value().to_vec()))
        })?;
        found.map(|value| unsealed(table, key, &value)).transpose()
    }

    /// The greatest key from `first` to `last`, inclusive, that `is_wanted` accepts.
    ///
    /// # Errors
    /// [`MetaError::Damaged`].
    pub fn last_key(
        &self,
        table: TableName,
        (first, last): (&[u8], &[u8]),
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>, MetaError> {
        self.call(|| {
            for entry in self.transaction.open_table(table.definition())?.range(first..=last)?.rev() {
                let (key, _) = entry?;
                if is_wanted(key.value()) {
                    return Ok(Some(key.value().to_vec()));
                }
            }
            Ok(None)
        })
    }

    /// Calls `each` for all keys with this prefix, in order; `None` for a value with a wrong checksum.
    ///
    /// # Errors
    /// [`MetaError::Damaged`], and those of `each`.
    pub fn for_each(&self, table: TableName, prefix: &[u8], each: &mut EachValue<'_>) -> Result<(), MetaError> {
        let mut failed = None;
        self.call(|| {
            for entry in self.transaction.open_table(table.definition())?.range(prefix..)? {
                let (key, value) = entry?;
                let (key, value) = (key.value(), value.value());
                if !key.starts_with(prefix) {
                    break;
                }
                if let Err(error) = each(key, unseal(key, value)) {
                    failed = Some(error);
                    break;
                }
            }
            Ok(())
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Bytes of a table's pages.
    ///
    /// # Errors
    /// [`MetaError::Damaged`].
    pub fn live_bytes(&self, table: TableName) -> Result<u64, MetaError> {
        self.call(|| {
            let stats = self.transaction.open_table(table.definition())?.stats()?;
            Ok((stats.leaf_pages() + stats.branch_pages()) * PAGE_BYTES)
        })
    }

    fn call<T>(&self, call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, MetaError> {
        guarded(&FileError::default(), call)
    }
}

pub(super) fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    [value, &crc(key, value).to_le_bytes()].concat()
}

fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (value, stored) = sealed.split_last_chunk::<4>()?;
    (crc(key, value) == u32::from_le_bytes(*stored)).then_some(value)
}

fn unsealed(table: TableName, key: &[u8], sealed: &[u8]) -> Result<Vec<u8>, MetaError> {
    let damaged = || MetaError::Value(format!("{table:?} {key:?}: wrong checksum"));
    unseal(key, sealed).map(<[u8]>::to_vec).ok_or_else(damaged)
}

fn crc(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

/// Reads one commit of a table that another process may have open, without a lock or a change.
///
/// # Errors
/// [`MetaError::Open`] if it does not exist; [`MetaError::Damaged`], also if commits follow each other too quickly.
pub fn peek<T>(dir: &Path, read: impl Fn(&TableReader) -> Result<T, MetaError>) -> Result<T, MetaError> {
    let failed = |error: io::Error| MetaError::Disk(error.to_string());
    let mut outcome = Err(MetaError::Damaged("it changes all the time".to_owned()));
    for _ in 0..PEEKS_MAX {
        let file = open_file(dir)?;
        // Pages of a commit stay until the next but one; the first page tells of each.
        let before = first_page(&file).map_err(failed)?;
        outcome = peek_file(&file).and_then(|reader| read(&reader));
        if first_page(&file).map_err(failed)? == before {
            break;
        }
    }
    outcome
}

const PEEKS_MAX: usize = 10;

fn first_page(file: &File) -> io::Result<Vec<u8>> {
    let mut page = vec![0; 4096];
    let read = posthaste_fsops::pread(file, &mut page[..], 0)?;
    page.truncate(read);
    Ok(page)
}

pub(super) fn peek_file(file: &File) -> Result<TableReader, MetaError> {
    let backend = file.try_clone().and_then(OverlayFile::new).map_err(|error| MetaError::Disk(error.to_string()))?;
    guarded(&FileError::default(), || {
        let database = open_database(backend)?;
        Ok(TableReader { transaction: database.begin_read()?, _database: Some(database) })
    })
}
