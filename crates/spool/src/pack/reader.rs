//! A pack that is open for reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use posthaste_ring::layout::RECORD_HEADER;

use crate::pack::index::Index;
use crate::pack::{IndexEntry, index_path, pack_path};

/// Why a pack, or something in it, could not be read.
#[derive(Debug)]
pub(crate) enum PackError {
    /// Other bytes than were written.
    Damaged(&'static str),
    Io(io::Error),
}

impl From<PackError> for io::Error {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Damaged(what) => io::Error::new(io::ErrorKind::InvalidData, what),
            PackError::Io(error) => error,
        }
    }
}

impl PackError {
    /// A file that is not there has not been lost by a failing disk but all the same.
    pub fn of_missing(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::NotFound => PackError::Damaged(what),
            _ => PackError::Io(error),
        }
    }
}

/// A pack and its index, both open. Stays readable when the files lose their names.
#[derive(Debug)]
pub(crate) struct PackReader {
    file: File,
    index: Index,
}

impl PackReader {
    pub fn open(dir: &Path, id: u64) -> Result<Self, PackError> {
        let index = Index::open(&index_path(dir, id), id)?;
        let file = File::open(pack_path(dir, id)).map_err(PackError::of_missing("its file is missing"))?;
        Ok(PackReader { file, index })
    }

    pub fn find(&self, lsn: u64) -> Result<Option<IndexEntry>, PackError> {
        self.index.find(lsn)
    }

    /// Calls `each` for every record, in order, until it fails.
    pub fn each<E: From<PackError>>(&self, mut each: impl FnMut(IndexEntry) -> Result<(), E>) -> Result<(), E> {
        for number in 0..self.index.blocks() {
            self.index.block(number)?.into_iter().try_for_each(&mut each)?;
        }
        Ok(())
    }

    /// The head, checked.
    pub fn head(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        let offset = entry.offset + RECORD_HEADER as u64;
        self.part(offset, entry.head_len, entry.head_crc, "a head is damaged")
    }

    /// The body, checked.
    pub fn body(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        let offset = entry.offset + RECORD_HEADER as u64 + u64::from(entry.head_len);
        self.part(offset, entry.body_len, entry.body_crc, "a body is damaged")
    }

    fn part(&self, offset: u64, len: u32, crc: u32, damaged: &'static str) -> Result<Bytes, PackError> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => PackError::Damaged("its file is too short"),
            _ => PackError::Io(error),
        })?;
        if crc32c::crc32c(&bytes) != crc {
            return Err(PackError::Damaged(damaged));
        }
        Ok(bytes.into())
    }
}
