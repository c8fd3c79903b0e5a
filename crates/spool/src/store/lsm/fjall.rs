//! The tree of the crate `fjall`. A put is one batch: `PersistMode::SyncAll` writes it to the journal and calls fsync
//! before anything sees it. The next opening skips a batch without an end, and refuses one with an end and a hole.

use std::io;
use std::path::Path;

use bytes::Bytes;
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, LsmError as TreeError, PersistMode, Slice,
};

use super::{CACHE_BYTES, LsmError, LsmRecord, LsmTree, Part};
use crate::lsn_set::LsnSet;
use crate::{LsmDurability, OpenError};

pub(crate) struct FjallTree {
    database: Database,
    heads: Keyspace,
    bodies: Keyspace,
}

impl FjallTree {
    fn try_open(dir: &Path) -> fjall::Result<Self> {
        let database = Database::builder(dir).cache_size(CACHE_BYTES as u64).open()?;
        let heads = database.keyspace("heads", KeyspaceCreateOptions::default)?;
        let apart = KvSeparationOptions::default();
        let bodies =
            database.keyspace("bodies", || KeyspaceCreateOptions::default().with_kv_separation(Some(apart)))?;
        Ok(FjallTree { database, heads, bodies })
    }

    fn remove_batch(&self, lsns: &mut dyn Iterator<Item = u64>) -> fjall::Result<()> {
        let mut batch = self.database.batch();
        for lsn in lsns {
            batch.remove(&self.heads, lsn.to_be_bytes());
            batch.remove(&self.bodies, lsn.to_be_bytes());
        }
        batch.commit()
    }
}

impl LsmTree for FjallTree {
    fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::try_open(dir).map_err(|error| match error {
            fjall::Error::Locked => OpenError::Locked,
            error => OpenError::Log(format!("{}: {error}", dir.display()).into()),
        })
    }

    fn lsns(&self) -> io::Result<LsnSet> {
        let mut lsns = LsnSet::default();
        for entry in self.heads.iter() {
            let key = entry.key().map_err(io_error)?;
            lsns.insert(u64::from_be_bytes((&*key).try_into().map_err(io::Error::other)?));
        }
        Ok(lsns)
    }

    fn get(&self, part: Part, lsn: u64) -> Result<Option<Bytes>, LsmError> {
        let keyspace = match part {
            Part::Heads => &self.heads,
            Part::Bodies => &self.bodies,
        };
        match keyspace.get(lsn.to_be_bytes()) {
            Ok(value) => Ok(value.map(Bytes::from)),
            Err(fjall::Error::Io(error) | fjall::Error::Storage(TreeError::Io(error))) => Err(LsmError::Io(error)),
            Err(_) => Err(LsmError::Damaged),
        }
    }

    fn put(&self, records: Vec<LsmRecord>, durability: LsmDurability) -> io::Result<()> {
        let mut batch = self.database.batch().durability(Some(match durability {
            LsmDurability::Synced => PersistMode::SyncAll,
            LsmDurability::None => PersistMode::Buffer,
        }));
        for LsmRecord { lsn, head, body } in records {
            batch.insert(&self.heads, lsn.to_be_bytes(), head);
            if !body.is_empty() {
                batch.insert(&self.bodies, lsn.to_be_bytes(), Slice::from(body));
            }
        }
        batch.commit().map_err(io_error)
    }

    fn remove(&self, lsns: &LsnSet) {
        let mut lsns = lsns.iter(0..=u64::MAX).peekable();
        while lsns.peek().is_some() {
            // The next opening removes what is not removed now.
            if self.remove_batch(&mut lsns.by_ref().take(REMOVED_MAX)).is_err() {
                return;
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

fn io_error(error: fjall::Error) -> io::Error {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(TreeError::Io(error)) => error,
        error => io::Error::other(error),
    }
}

/// Maximum records of one batch of removals.
const REMOVED_MAX: usize = 4096;
