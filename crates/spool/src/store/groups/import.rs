//! Writes the records of a spool under construction.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::header::StoredHeader;
use super::medium::{GroupWriter, Medium, NewRecord, WriteError};
use super::numbers;
use super::shared::GROUP_MAX;

/// Records written to a new spool, in groups that share their syncs.
pub(crate) struct RecordImport {
    writer: Box<dyn GroupWriter>,
    group: Vec<NewRecord>,
    bytes: u64,
}

impl RecordImport {
    /// Begins in a new medium in `dir`.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn begin(dir: &Path, medium: Arc<dyn Medium>) -> io::Result<Self> {
        numbers::begin(dir)?;
        Ok(RecordImport { writer: medium.writer(0), group: Vec::new(), bytes: 0 })
    }

    /// Adds a record with the next higher number.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn put(&mut self, lsn: u64, head: Bytes, body: Bytes) -> io::Result<()> {
        let body = [body];
        let header = StoredHeader::of(&head, &body);
        let [body] = body;
        self.put_as(header, lsn, head, body)
    }

    /// Adds a record with its old checksums: damage stays visible.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn put_as(&mut self, header: StoredHeader, lsn: u64, head: Bytes, body: Bytes) -> io::Result<()> {
        self.writer.prepare(lsn).map_err(io_error)?;
        self.bytes += header.record_len();
        self.group.push(NewRecord { lsn, header, parts: vec![head, body] });
        if self.group.len() < GROUP_MAX && self.bytes < GROUP_BYTES { Ok(()) } else { self.flush() }
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let group = std::mem::take(&mut self.group);
        if group.is_empty() {
            return Ok(());
        }
        self.writer.write(group)?.into_iter().try_for_each(|outcome| outcome.map_err(io_error))
    }
}

fn io_error((WriteError::Write(error) | WriteError::Sync(error)): WriteError) -> io::Error {
    error
}

/// Maximum bytes of a group, which is held in memory.
const GROUP_BYTES: u64 = 16 << 20;
