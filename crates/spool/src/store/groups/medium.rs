//! The medium of a store's records: files, or a database.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;

use super::header::StoredHeader;
use crate::Lsn;
use crate::lsn_set::LsnSet;
use crate::store::RecordError;

/// A medium, and the records that it has.
pub(crate) type OpenedMedium = (Arc<dyn Medium>, LsnSet);

/// Reads and removes records.
pub(crate) trait Medium: Send + Sync {
    /// The writer; its records begin at `next`. There is one at a time.
    fn writer(self: Arc<Self>, next: u64) -> Box<dyn GroupWriter>;

    /// # Errors
    /// See [`RecordError`].
    fn header(&self, lsn: Lsn) -> Result<StoredHeader, RecordError>;

    /// The head, after its checksum was compared.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn head(&self, lsn: Lsn) -> Result<(StoredHeader, Bytes), RecordError>;

    /// A part of the body, cut at its end. The checksum of the whole body is verified first.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError>;

    /// The body on the disk, if the medium can bypass caches, and true if it is intact.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError>;

    /// Removes records, not durably: an opening forgets returned ones again. `is_held` tells if any record of a range
    /// is left.
    fn remove(&self, lsns: &LsnSet, is_held: &dyn Fn(RangeInclusive<u64>) -> bool);

    /// Bytes on the disk, about.
    fn bytes(&self, held: &LsnSet) -> u64;
}

/// Makes records durable, on one thread.
pub(crate) trait GroupWriter: Send {
    /// Called before a record of the next group gets this number.
    ///
    /// # Errors
    /// [`WriteError`]; the number stays free.
    fn prepare(&mut self, lsn: u64) -> Result<(), WriteError> {
        let _ = lsn;
        Ok(())
    }

    /// Makes a group of ascending numbers durable; returns the outcome of each.
    ///
    /// # Errors
    /// The shared sync has failed: no record of the group counts, nor any later one.
    fn write(&mut self, group: Vec<NewRecord>) -> io::Result<Vec<Result<(), WriteError>>>;
}

/// A record to write.
pub(crate) struct NewRecord {
    pub lsn: u64,
    pub header: StoredHeader,
    /// The head, then the body.
    pub parts: Vec<Bytes>,
}

/// Why a record was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The write failed, and left nothing.
    Write(io::Error),
    /// The device may also have dropped bytes of others.
    Sync(io::Error),
}
