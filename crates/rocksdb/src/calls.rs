//! The used functions of rocksdb/c.h.

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// Opaque types of the library.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            pub struct $name {
                _hidden: [u8; 0],
            }
        )*
    };
}

opaque! { Db ColumnFamily Options TableOptions Cache ReadOptions WriteOptions WriteBatch Pinned Iter }

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub fn rocksdb_options_create() -> *mut Options;
    pub fn rocksdb_options_destroy(options: *mut Options);
    pub fn rocksdb_options_set_create_if_missing(options: *mut Options, value: c_uchar);
    pub fn rocksdb_options_set_create_missing_column_families(options: *mut Options, value: c_uchar);
    pub fn rocksdb_options_set_compression(options: *mut Options, value: c_int);
    pub fn rocksdb_options_set_enable_blob_files(options: *mut Options, value: c_uchar);
    pub fn rocksdb_options_set_min_blob_size(options: *mut Options, value: u64);
    pub fn rocksdb_options_set_enable_blob_gc(options: *mut Options, value: c_uchar);
    pub fn rocksdb_options_set_block_based_table_factory(options: *mut Options, table: *mut TableOptions);
    pub fn rocksdb_block_based_options_create() -> *mut TableOptions;
    pub fn rocksdb_block_based_options_destroy(table: *mut TableOptions);
    pub fn rocksdb_block_based_options_set_block_cache(table: *mut TableOptions, cache: *mut Cache);
    pub fn rocksdb_cache_create_lru(capacity: usize) -> *mut Cache;
    pub fn rocksdb_cache_destroy(cache: *mut Cache);

    pub fn rocksdb_open_column_families(
        options: *const Options,
        name: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const *const Options,
        families: *mut *mut ColumnFamily,
        error: *mut *mut c_char,
    ) -> *mut Db;
    pub fn rocksdb_close(db: *mut Db);
    pub fn rocksdb_column_family_handle_destroy(family: *mut ColumnFamily);
    pub fn rocksdb_property_int_cf(
        db: *mut Db,
        family: *mut ColumnFamily,
        name: *const c_char,
        value: *mut u64,
    ) -> c_int;

    pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, value: c_uchar);
    pub fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub fn rocksdb_writebatch_put_cf(
        batch: *mut WriteBatch,
        family: *mut ColumnFamily,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    pub fn rocksdb_writebatch_delete_cf(
        batch: *mut WriteBatch,
        family: *mut ColumnFamily,
        key: *const c_char,
        key_len: usize,
    );
    pub fn rocksdb_writebatch_delete_range_cf(
        batch: *mut WriteBatch,
        family: *mut ColumnFamily,
        first: *const c_char,
        first_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    pub fn rocksdb_write(db: *mut Db, options: *const WriteOptions, batch: *mut WriteBatch, error: *mut *mut c_char);

    pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub fn rocksdb_get_pinned_cf(
        db: *mut Db,
        options: *const ReadOptions,
        family: *mut ColumnFamily,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> *mut Pinned;
    pub fn rocksdb_pinnableslice_value(pinned: *const Pinned, len: *mut usize) -> *const c_char;
    pub fn rocksdb_pinnableslice_destroy(pinned: *mut Pinned);
    pub fn rocksdb_create_iterator_cf(db: *mut Db, options: *const ReadOptions, family: *mut ColumnFamily)
    -> *mut Iter;
    pub fn rocksdb_iter_seek_to_first(iter: *mut Iter);
    pub fn rocksdb_iter_valid(iter: *const Iter) -> c_uchar;
    pub fn rocksdb_iter_next(iter: *mut Iter);
    pub fn rocksdb_iter_key(iter: *const Iter, len: *mut usize) -> *const c_char;
    pub fn rocksdb_iter_get_error(iter: *const Iter, error: *mut *mut c_char);
    pub fn rocksdb_iter_destroy(iter: *mut Iter);
    pub fn rocksdb_free(memory: *mut c_void);
}
