//! A database with column families.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::calls::{self, ColumnFamily, Db, Iter, Options, ReadOptions, WriteOptions};
use crate::error::RocksError;
use crate::error::told;

/// A column family.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static CStr,
    /// Larger values are stored in blob files, apart from the keys.
    pub blob_bytes_min: Option<u64>,
}

/// An open database. Families are numbered in the order of opening.
pub struct RocksDb {
    db: NonNull<Db>,
    families: Vec<NonNull<ColumnFamily>>,
    read: NonNull<ReadOptions>,
    /// Options of a write that is not synced, and of one that is.
    write: [NonNull<WriteOptions>; 2],
}

// SAFETY: the library allows calls on one database from several threads at a time; the options are not changed after the opening.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    /// Opens or creates the database in a directory, with these families, without compression.
    ///
    /// # Errors
    /// [`RocksError::Locked`] if it is open already; [`RocksError::Corruption`] and others.
    pub fn open(dir: &Path, families: &[Family], cache_bytes: usize) -> Result<Self, RocksError> {
        let path = CString::new(dir.as_os_str().as_bytes())
            .map_err(|_| RocksError::Other("a path with a zero byte".to_owned()))?;
        let every = Family { name: c"default", blob_bytes_min: None };
        let families: Vec<Family> = std::iter::once(every).chain(families.iter().copied()).collect();
        let options: Vec<OwnedOptions> = families.iter().map(|family| OwnedOptions::new(family, cache_bytes)).collect();
        let names: Vec<*const c_char> = families.iter().map(|family| family.name.as_ptr()).collect();
        let of_families: Vec<*const Options> = options.iter().map(|options| options.0.as_ptr().cast_const()).collect();
        let mut opened = vec![std::ptr::null_mut::<ColumnFamily>(); families.len()];
        // SAFETY: names, options and places for the families have the same number, and live during the call.
        let db = told(|error| unsafe {
            calls::rocksdb_open_column_families(
                options[0].0.as_ptr(),
                path.as_ptr(),
                families.len() as c_int,
                names.as_ptr(),
                of_families.as_ptr(),
                opened.as_mut_ptr(),
                error,
            )
        })?;
        let of_library = "the library made it";
        // SAFETY: these have no preconditions, but for options that live.
        let (read, write) = unsafe {
            let write = [calls::rocksdb_writeoptions_create(), calls::rocksdb_writeoptions_create()];
            calls::rocksdb_writeoptions_set_sync(write[1], 1);
            (calls::rocksdb_readoptions_create(), write)
        };
        Ok(RocksDb {
            db: NonNull::new(db).expect(of_library),
            families: opened.into_iter().map(|family| NonNull::new(family).expect(of_library)).collect(),
            read: NonNull::new(read).expect(of_library),
            write: write.map(|options| NonNull::new(options).expect(of_library)),
        })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`RocksError`].
    ///
    /// # Panics
    /// If there is no such family.
    pub fn get(&self, family: usize, key: &[u8]) -> Result<Option<Vec<u8>>, RocksError> {
        let (family, (key, key_len)) = (self.family(family), bytes(key));
        // SAFETY: database, options and family live, and the key during the call.
        let pinned = told(|error| unsafe {
            calls::rocksdb_get_pinned_cf(self.db.as_ptr(), self.read.as_ptr(), family, key, key_len, error)
        })?;
        if pinned.is_null() {
            return Ok(None);
        }
        let mut len = 0;
        // SAFETY: it is not null, and lives until it is destroyed below, after its bytes were copied.
        unsafe {
            let value = calls::rocksdb_pinnableslice_value(pinned, &raw mut len);
            let copy = copied(value, len);
            calls::rocksdb_pinnableslice_destroy(pinned);
            Ok(Some(copy))
        }
    }

    /// Visits all keys of a family, in order.
    ///
    /// # Errors
    /// [`RocksError`].
    ///
    /// # Panics
    /// If there is no such family.
    pub fn each_key(&self, family: usize, each: &mut dyn FnMut(&[u8])) -> Result<(), RocksError> {
        let family = self.family(family);
        // SAFETY: database, options and family live longer than the iterator.
        let iter =
            OwnedIter(unsafe { calls::rocksdb_create_iterator_cf(self.db.as_ptr(), self.read.as_ptr(), family) });
        // SAFETY: the iterator lives. A key is valid until the next step, and was copied by then.
        unsafe {
            calls::rocksdb_iter_seek_to_first(iter.0);
            while calls::rocksdb_iter_valid(iter.0) != 0 {
                let mut len = 0;
                let key = calls::rocksdb_iter_key(iter.0, &raw mut len);
                each(&copied(key, len));
                calls::rocksdb_iter_next(iter.0);
            }
        }
        // SAFETY: the iterator lives.
        told(|error| unsafe { calls::rocksdb_iter_get_error(iter.0, error) })
    }

    /// Bytes of a family's files.
    ///
    /// # Panics
    /// If there is no such family.
    pub fn bytes_on_disk(&self, family: usize) -> u64 {
        let family = self.family(family);
        let of = |name: &CStr| {
            let mut value = 0;
            // SAFETY: database and family live, and the name during the call.
            let missing =
                unsafe { calls::rocksdb_property_int_cf(self.db.as_ptr(), family, name.as_ptr(), &raw mut value) };
            if missing == 0 { value } else { 0 }
        };
        of(c"rocksdb.total-sst-files-size") + of(c"rocksdb.total-blob-file-size")
    }

    pub(crate) fn raw(&self) -> *mut Db {
        self.db.as_ptr()
    }

    /// The first family is the default one of every database.
    pub(crate) fn family(&self, number: usize) -> *mut ColumnFamily {
        self.families[number + 1].as_ptr()
    }

    pub(crate) fn write_options(&self, sync: bool) -> *mut WriteOptions {
        self.write[usize::from(sync)].as_ptr()
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: it is the only owner of all of these; families go before their database.
        unsafe {
            self.families.iter().for_each(|family| calls::rocksdb_column_family_handle_destroy(family.as_ptr()));
            calls::rocksdb_close(self.db.as_ptr());
            calls::rocksdb_readoptions_destroy(self.read.as_ptr());
            self.write.iter().for_each(|options| calls::rocksdb_writeoptions_destroy(options.as_ptr()));
        }
    }
}

/// A slice of the library.
pub(crate) fn bytes(slice: &[u8]) -> (*const c_char, usize) {
    (slice.as_ptr().cast(), slice.len())
}

/// # Safety
/// `len` bytes can be read at `from`, if there are any.
unsafe fn copied(from: *const c_char, len: usize) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller promises it.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec()
}

struct OwnedOptions(NonNull<Options>);

impl OwnedOptions {
    fn new(family: &Family, cache_bytes: usize) -> Self {
        // SAFETY: each object is made here and lives during the calls; the library keeps what it shares by counting.
        unsafe {
            let options = calls::rocksdb_options_create();
            calls::rocksdb_options_set_create_if_missing(options, 1);
            calls::rocksdb_options_set_create_missing_column_families(options, 1);
            calls::rocksdb_options_set_compression(options, NO_COMPRESSION);
            if let Some(min) = family.blob_bytes_min {
                calls::rocksdb_options_set_enable_blob_files(options, 1);
                calls::rocksdb_options_set_min_blob_size(options, min);
                calls::rocksdb_options_set_enable_blob_gc(options, 1);
            }
            let (table, cache) =
                (calls::rocksdb_block_based_options_create(), calls::rocksdb_cache_create_lru(cache_bytes));
            calls::rocksdb_block_based_options_set_block_cache(table, cache);
            calls::rocksdb_options_set_block_based_table_factory(options, table);
            calls::rocksdb_cache_destroy(cache);
            calls::rocksdb_block_based_options_destroy(table);
            OwnedOptions(NonNull::new(options).expect("the library aborts without memory"))
        }
    }
}

impl Drop for OwnedOptions {
    fn drop(&mut self) {
        // SAFETY: it is the only owner; an open database has a copy.
        unsafe { calls::rocksdb_options_destroy(self.0.as_ptr()) };
    }
}

struct OwnedIter(*mut Iter);

impl Drop for OwnedIter {
    fn drop(&mut self) {
        // SAFETY: it is the only owner.
        unsafe { calls::rocksdb_iter_destroy(self.0) };
    }
}

/// `rocksdb_no_compression`
const NO_COMPRESSION: c_int = 0;
