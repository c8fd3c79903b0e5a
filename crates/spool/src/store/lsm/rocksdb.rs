//! The tree of RocksDB: column families, bodies in blob files. A put is one batch, whose write calls fdatasync on the
//! log before it returns. The next opening skips an incomplete batch at the end of the log.

use std::io;
use std::path::Path;

use bytes::Bytes;
use posthaste_rocksdb::{Family, RocksBatch, RocksDb, RocksError};

use super::{CACHE_BYTES, LsmError, LsmRecord, LsmTree, Part};
use crate::lsn_set::LsnSet;
use crate::{LsmDurability, OpenError};

/// Column families, by [`Part`].
const FAMILIES: [Family; 2] =
    [Family { name: c"heads", blob_bytes_min: None }, Family { name: c"bodies", blob_bytes_min: Some(1 << 10) }];

impl LsmTree for RocksDb {
    fn open(dir: &Path) -> Result<Self, OpenError> {
        RocksDb::open(dir, &FAMILIES, CACHE_BYTES).map_err(|error| match error {
            RocksError::Locked(_) => OpenError::Locked,
            error => OpenError::Log(format!("{}: {error}", dir.display()).into()),
        })
    }

    fn lsns(&self) -> io::Result<LsnSet> {
        let mut lsns = LsnSet::default();
        let mut foreign = None;
        self.each_key(Part::Heads as usize, &mut |key| match key.try_into() {
            Ok(key) => drop(lsns.insert(u64::from_be_bytes(key))),
            Err(error) => foreign = Some(error),
        })
        .map_err(io::Error::other)?;
        foreign.map_or(Ok(lsns), |error| Err(io::Error::other(error)))
    }

    fn get(&self, part: Part, lsn: u64) -> Result<Option<Bytes>, LsmError> {
        match RocksDb::get(self, part as usize, &lsn.to_be_bytes()) {
            Ok(value) => Ok(value.map(Bytes::from)),
            Err(RocksError::Corruption(_)) => Err(LsmError::Damaged),
            Err(error) => Err(LsmError::Io(io::Error::other(error))),
        }
    }

    fn put(&self, records: Vec<LsmRecord>, durability: LsmDurability) -> io::Result<()> {
        let mut batch = RocksBatch::new(self);
        for LsmRecord { lsn, head, body } in records {
            batch.put(Part::Heads as usize, &lsn.to_be_bytes(), &head);
            if !body.is_empty() {
                batch.put(Part::Bodies as usize, &lsn.to_be_bytes(), &body);
            }
        }
        batch.write(durability == LsmDurability::Synced).map_err(io::Error::other)
    }

    /// Removes long runs of LSNs as one range, which later reads must consider.
    fn remove(&self, lsns: &LsnSet) {
        let mut batch = RocksBatch::new(self);
        let mut lsns = lsns.iter(0..=u64::MAX).peekable();
        while let Some(first) = lsns.next() {
            let mut end = first + 1;
            while lsns.next_if_eq(&end).is_some() {
                end += 1;
            }
            for part in [Part::Heads, Part::Bodies] {
                if end - first >= RANGE_MIN {
                    batch.remove(part as usize, &first.to_be_bytes(), &end.to_be_bytes());
                } else {
                    (first..end).for_each(|lsn| batch.remove_one(part as usize, &lsn.to_be_bytes()));
                }
            }
        }
        // The next opening removes what is not removed now.
        let _ = batch.write(false);
    }

    fn bytes(&self) -> u64 {
        [Part::Heads, Part::Bodies].map(|part| self.bytes_on_disk(part as usize)).iter().sum()
    }
}

/// Minimum length of a run that is removed as a range.
const RANGE_MIN: u64 = 64;
