//! Values survive the next opening; errors are told apart.
#![cfg(feature = "system")]

use std::path::Path;

use posthaste_rocksdb::{Family, RocksBatch, RocksDb, RocksError};

const FAMILIES: [Family; 2] =
    [Family { name: c"small", blob_bytes_min: None }, Family { name: c"large", blob_bytes_min: Some(1024) }];

fn open(dir: &Path) -> RocksDb {
    RocksDb::open(dir, &FAMILIES, 1 << 20).unwrap()
}

fn keys(database: &RocksDb, family: usize) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    database.each_key(family, &mut |key| keys.push(key.to_vec())).unwrap();
    keys
}

#[test]
fn a_batch_is_there_in_the_next_life_and_removed_ranges_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    let mut batch = RocksBatch::new(&database);
    for key in 0..5_u8 {
        batch.put(0, &[key], b"");
        batch.put(1, &[key], &vec![key; 100_000]);
    }
    batch.write(true).unwrap();
    assert_eq!(database.get(1, &[3]).unwrap(), Some(vec![3; 100_000]));
    assert_eq!((database.get(0, &[3]).unwrap(), database.get(0, &[9]).unwrap()), (Some(Vec::new()), None));
    let mut batch = RocksBatch::new(&database);
    batch.remove(1, &[1], &[3]);
    batch.remove_one(0, &[0]);
    batch.write(false).unwrap();
    drop(database);
    let database = open(dir.path());
    assert_eq!(keys(&database, 1), [[0], [3], [4]]);
    assert_eq!(keys(&database, 0), [[1], [2], [3], [4]]);
    assert_eq!(database.get(1, &[4]).unwrap().map(|value| value.len()), Some(100_000));
    assert!(database.bytes_on_disk(1) >= 300_000, "an opening writes the log to files");
}

#[test]
fn a_batch_that_was_not_written_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    RocksBatch::new(&database).put(0, b"key", b"value");
    assert_eq!(keys(&database, 0), Vec::<Vec<u8>>::new());
}

#[test]
fn a_database_is_open_once_and_a_damaged_one_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let database = open(dir.path());
    assert!(matches!(RocksDb::open(dir.path(), &FAMILIES, 1 << 20), Err(RocksError::Locked(_))));
    drop(database);
    std::fs::write(dir.path().join("CURRENT"), "nonsense").unwrap();
    let refused = RocksDb::open(dir.path(), &FAMILIES, 1 << 20).map(drop).unwrap_err();
    assert!(!matches!(refused, RocksError::Locked(_)) && !refused.to_string().is_empty(), "{refused:?}");
}
