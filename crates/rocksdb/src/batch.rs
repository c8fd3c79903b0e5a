//! Atomic changes.

use std::ptr::NonNull;

use crate::calls::{self, WriteBatch};
use crate::database::bytes;
use crate::error::told;
use crate::{RocksDb, RocksError};

/// Changes of one database, applied by [`write`](Self::write), all or none. Families are numbered in the order of
/// [opening](RocksDb::open).
pub struct RocksBatch<'a> {
    database: &'a RocksDb,
    raw: NonNull<WriteBatch>,
}

impl<'a> RocksBatch<'a> {
    /// Begins changes.
    pub fn new(database: &'a RocksDb) -> Self {
        // SAFETY: it has no precondition.
        let raw = unsafe { calls::rocksdb_writebatch_create() };
        RocksBatch { database, raw: NonNull::new(raw).expect("the library aborts without memory") }
    }

    /// Sets a value.
    ///
    /// # Panics
    /// If the family does not exist.
    pub fn put(&mut self, family: usize, key: &[u8], value: &[u8]) {
        let family = self.database.family(family);
        let ((key, key_len), (value, value_len)) = (bytes(key), bytes(value));
        // SAFETY: batch and family live; the library copies both slices.
        unsafe { calls::rocksdb_writebatch_put_cf(self.raw.as_ptr(), family, key, key_len, value, value_len) };
    }

    /// Removes the keys from `first` up to, but not including, `end`.
    ///
    /// # Panics
    /// If the family does not exist.
    pub fn remove(&mut self, family: usize, first: &[u8], end: &[u8]) {
        let family = self.database.family(family);
        let ((first, first_len), (end, end_len)) = (bytes(first), bytes(end));
        // SAFETY: batch and family live; the library copies both slices.
        unsafe {
            calls::rocksdb_writebatch_delete_range_cf(self.raw.as_ptr(), family, first, first_len, end, end_len);
        }
    }

    /// Removes one key.
    ///
    /// # Panics
    /// If the family does not exist.
    pub fn remove_one(&mut self, family: usize, key: &[u8]) {
        let family = self.database.family(family);
        let (key, key_len) = bytes(key);
        // SAFETY: batch and family live; the library copies the slice.
        unsafe { calls::rocksdb_writebatch_delete_cf(self.raw.as_ptr(), family, key, key_len) };
    }

    /// Applies the changes. With `sync` they are on stable storage on return.
    ///
    /// # Errors
    /// [`RocksError`]; then their fate is unknown, and the database accepts nothing more.
    pub fn write(self, sync: bool) -> Result<(), RocksError> {
        let db = self.database.raw();
        let options = self.database.write_options(sync);
        // SAFETY: database, options and batch live.
        told(|error| unsafe { calls::rocksdb_write(db, options, self.raw.as_ptr(), error) })
    }
}

impl Drop for RocksBatch<'_> {
    fn drop(&mut self) {
        // SAFETY: it is the only owner.
        unsafe { calls::rocksdb_writebatch_destroy(self.raw.as_ptr()) };
    }
}
