//! A journal that nobody writes to any more, read record by record.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::recovery::{Contents, Live, Note, read_all};
use crate::segment::Damage;
use crate::storage::{Directory, LOCK, Storage, list_segments};

/// What a journal holds.
pub struct Reader {
    contents: Contents,
    // Held for its lock: nobody can open the journal meanwhile.
    _lock: Option<File>,
}

/// A live record; [`Reader::read`] has its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The sequence number under which it was first appended.
    pub id: u64,
    /// What the payload is, at least [`KIND_USER`](crate::KIND_USER).
    pub kind: u8,
    /// Payload bytes.
    pub len: u32,
}

impl Reader {
    /// Reads what is where, and keeps the journal locked. Changes nothing.
    ///
    /// # Errors
    /// `WouldBlock` while another process has it open, `NotFound` if there is no journal in `dir`; else what the file system said.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let lock = File::open(dir.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        Ok(Reader { _lock: Some(lock), ..Self::open_on(&Directory(dir.to_owned()))? })
    }

    /// Like [`Reader::open`], on any storage and without a lock.
    ///
    /// # Errors
    /// What the storage said, but for parts that cannot be read: those are damage.
    pub fn open_on(storage: &dyn Storage) -> io::Result<Self> {
        Ok(Reader { contents: read_all(storage)?, _lock: None })
    }

    /// Live records, in the order in which they were first appended.
    pub fn records(&self) -> Vec<Record> {
        let record = |(&id, live): (&u64, &Live)| Record { id, kind: live.kind, len: live.len };
        let mut records: Vec<Record> = self.contents.live.iter().map(record).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// The payload of a live record.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub fn read(&self, id: u64) -> io::Result<Vec<u8>> {
        let live = self.contents.live.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let segment = self.contents.segments.get(&live.segment).ok_or(io::ErrorKind::NotFound)?;
        live.read(&*segment.file)
    }

    /// Notes appended since the last checkpoint, in order.
    pub fn notes(&self) -> &[Note] {
        &self.contents.notes
    }

    /// Damaged places after the last checkpoint. Those that are not `promised` are what a power cut leaves of an unfinished write.
    pub fn damage(&self) -> &[Damage] {
        &self.contents.damage
    }

    /// No sequence number that was found is higher.
    pub fn last(&self) -> u64 {
        self.contents.max_seq
    }
}

/// The names of the segments in `dir`, in order.
///
/// # Errors
/// What the file system said.
pub fn segments(dir: &Path) -> io::Result<Vec<String>> {
    list_segments(dir)
}
