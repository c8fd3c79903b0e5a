//! Records in an LSM tree, for comparison: heads and bodies separately, and one synced batch for a group.
//!
//! | part | key | value |
//! | --- | --- | --- |
//! | `heads` | LSN, big-endian | the [header](StoredHeader), the head |
//! | `bodies`, values apart from keys | LSN, big-endian | the body; none if it is empty |
//!
//! After an error of its log a tree accepts nothing more, so a full disk closes such a store, too.

#[cfg(feature = "fjall")]
pub(super) mod fjall;
#[cfg(feature = "rocksdb")]
pub(super) mod rocksdb;

use std::io;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::groups::{GroupWriter, HEADER, Medium, NewRecord, OpenedMedium, StoredHeader, WriteError};
use super::kind::DATABASE;
use super::records::RecordError;
use crate::lsn_set::LsnSet;
use crate::{LsmDurability, Lsn, OpenError};

/// An LSM tree with two parts, heads and bodies.
pub(super) trait LsmTree: Send + Sync + Sized + 'static {
    /// Opens or creates the tree. All its content is durable on return.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has it open; [`OpenError::Log`] if it cannot be opened.
    fn open(dir: &Path) -> Result<Self, OpenError>;

    /// The LSNs of all heads.
    ///
    /// # Errors
    /// Errors of reading, and damage.
    fn lsns(&self) -> io::Result<LsnSet>;

    /// # Errors
    /// [`LsmError`].
    fn get(&self, part: Part, lsn: u64) -> Result<Option<Bytes>, LsmError>;

    /// Writes all records or none.
    ///
    /// # Errors
    /// An error of the log: the tree accepts nothing more.
    fn put(&self, records: Vec<LsmRecord>, durability: LsmDurability) -> io::Result<()>;

    /// Removes records if possible; not durable by itself.
    fn remove(&self, lsns: &LsnSet);

    /// Bytes of the tree on the disk.
    fn bytes(&self) -> u64;
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Heads,
    Bodies,
}

/// A record to write.
pub(super) struct LsmRecord {
    pub lsn: u64,
    /// Header and head.
    pub head: Vec<u8>,
    pub body: Bytes,
}

/// Why a value cannot be read.
pub(super) enum LsmError {
    /// The tree reported a wrong checksum.
    Damaged,
    Io(io::Error),
}

struct LsmMedium<T> {
    tree: T,
    durability: LsmDurability,
}

/// Opens or creates the tree in `dir`, and finds the records.
///
/// # Errors
/// As [`LsmTree::open`].
pub(super) fn open<T: LsmTree>(dir: &Path, durability: LsmDurability) -> Result<OpenedMedium, OpenError> {
    let tree = T::open(&dir.join(DATABASE))?;
    let held = tree.lsns()?;
    Ok((Arc::new(LsmMedium { tree, durability }), held))
}

impl<T: LsmTree> LsmMedium<T> {
    fn get(&self, part: Part, lsn: Lsn) -> Result<Option<Bytes>, RecordError> {
        self.tree.get(part, lsn.get()).map_err(|error| match (error, part) {
            (LsmError::Io(error), _) => RecordError::Io(lsn, error),
            (LsmError::Damaged, Part::Heads) => RecordError::HeadDamaged(lsn),
            (LsmError::Damaged, Part::Bodies) => RecordError::BodyDamaged(lsn),
        })
    }
}

impl<T: LsmTree> Medium for LsmMedium<T> {
    fn writer(self: Arc<Self>, _: u64) -> Box<dyn GroupWriter> {
        Box::new(LsmWriter(self))
    }

    fn header(&self, lsn: Lsn) -> Result<StoredHeader, RecordError> {
        self.head(lsn).map(|(header, _)| header)
    }

    fn head(&self, lsn: Lsn) -> Result<(StoredHeader, Bytes), RecordError> {
        let value = self.get(Part::Heads, lsn)?.ok_or(RecordError::NotFound(lsn))?;
        let header = value.get(..HEADER).and_then(|bytes| StoredHeader::decode(lsn.get(), bytes));
        let header = header.ok_or(RecordError::HeadDamaged(lsn))?;
        let head = value.slice(HEADER..);
        let is_whole = head.len() == header.head_len as usize && crc32c::crc32c(&head) == header.head_crc;
        if is_whole { Ok((header, head)) } else { Err(RecordError::HeadDamaged(lsn)) }
    }

    fn body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError> {
        let (body, is_whole) = self.body_again(lsn)?;
        if !is_whole {
            return Err(RecordError::BodyDamaged(lsn));
        }
        let end = (range.end as usize).min(body.len());
        Ok(body.slice((range.start as usize).min(end)..end))
    }

    /// Reads through the caches: a tree offers no other read.
    fn body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError> {
        let header = self.header(lsn)?;
        let body = match self.get(Part::Bodies, lsn)? {
            None if header.body_len > 0 => return Err(RecordError::BodyDamaged(lsn)),
            body => body.unwrap_or_default(),
        };
        let is_whole = crc32c::crc32c(&body) == header.body_crc;
        Ok((body, is_whole))
    }

    fn remove(&self, lsns: &LsnSet, _: &dyn Fn(RangeInclusive<u64>) -> bool) {
        self.tree.remove(lsns);
    }

    fn bytes(&self, _: &LsnSet) -> u64 {
        self.tree.bytes()
    }
}

struct LsmWriter<T>(Arc<LsmMedium<T>>);

impl<T: LsmTree> GroupWriter for LsmWriter<T> {
    fn write(&mut self, group: Vec<NewRecord>) -> io::Result<Vec<Result<(), WriteError>>> {
        let outcomes = group.iter().map(|_| Ok(())).collect();
        let records = group.into_iter().map(|NewRecord { lsn, header, mut parts }| {
            let head = [&header.encode(lsn)[..], &parts.remove(0)].concat();
            let body = if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() };
            LsmRecord { lsn, head, body }
        });
        self.0.tree.put(records.collect(), self.0.durability)?;
        Ok(outcomes)
    }
}

/// Bytes of cached blocks: a spool mostly reads recent records.
const CACHE_BYTES: usize = 32 << 20;
