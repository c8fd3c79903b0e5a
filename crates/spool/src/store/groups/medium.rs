//! The medium that holds a store's records: files or a database.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;

use super::header::StoredHeader;
use crate::Lsn;
use crate::lsn_set::LsnSet;
use crate::store::RecordError;

/// A medium, and the LSNs of its records.
pub(crate) type OpenedMedium = (Arc<dyn Medium>, LsnSet);

/// Interface of a medium: reads and removes records.
pub(crate) trait Medium: Send + Sync {
    /// The only writer; its records begin at LSN `next`.
    fn writer(self: Arc<Self>, next: u64) -> Box<dyn GroupWriter>;

    /// # Errors
    /// See [`RecordError`].
    fn header(&self, lsn: Lsn) -> Result<StoredHeader, RecordError>;

    /// The head, verified.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn head(&self, lsn: Lsn) -> Result<(StoredHeader, Bytes), RecordError>;

    /// A part of the body; a range beyond its end is cut. The checksum of the whole body is verified first.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError>;

    /// The body read from the disk, bypassing caches if the medium can, and true if it is intact.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError>;

    /// Removes records, not durably: the next opening removes those that reappear. `is_held` returns true if any record
    /// of a range is still needed.
    fn remove(&self, lsns: &LsnSet, is_held: &dyn Fn(RangeInclusive<u64>) -> bool);

    /// Approximate bytes on the disk.
    fn bytes(&self, held: &LsnSet) -> u64;
}

/// Makes records durable, on one thread.
pub(crate) trait GroupWriter: Send {
    /// Called before a record of the next group gets this LSN.
    ///
    /// # Errors
    /// [`WriteError`]; the LSN stays unused.
    fn prepare(&mut self, lsn: u64) -> Result<(), WriteError> {
        let _ = lsn;
        Ok(())
    }

    /// Makes a group of ascending LSNs durable; returns the outcome of each record.
    ///
    /// # Errors
    /// The shared sync has failed: no record of the group counts, nor any later one.
    fn write(&mut self, group: Vec<NewRecord>) -> io::Result<Vec<Result<(), WriteError>>>;
}

/// A record to write.
pub(crate) struct NewRecord {
    pub lsn: u64,
    pub header: StoredHeader,
    /// The head, then the parts of the body.
    pub parts: Vec<Bytes>,
}

/// Why a record was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The write failed and left nothing behind.
    Write(io::Error),
    /// The sync failed: the device may also have dropped bytes of other records.
    Sync(io::Error),
}
