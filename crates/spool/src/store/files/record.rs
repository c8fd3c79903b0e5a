//! A record as a file: path and bytes.
//!
//! The [header](StoredHeader), the head, the body.
//!
//! `files/ab/cd/LSN`, all in hex: `cd` changes each 4096 LSNs, `ab` each 2^24. Neighbours lie in one directory, so a group of commits syncs one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::OFlags;

use crate::Lsn;
use crate::files;
use crate::lsn_set::LsnSet;
use crate::store::RecordError;
use crate::store::groups::{HEADER, STEP, StoredHeader};

/// LSNs in one directory. Each opening begins in a new one.
pub(crate) const PER_DIR: u64 = STEP;
/// Directories in one parent.
const DIRS: u64 = 1 << 12;
/// Prefix of the temporary name of an unfinished record, on a file system without unnamed files.
pub(crate) const HIDDEN: &str = ".";
/// The open file of a record.
pub(crate) struct RecordFile {
    lsn: Lsn,
    file: File,
    pub header: StoredHeader,
}

impl RecordFile {
    /// # Errors
    /// See [`RecordError`].
    pub fn open(dir: &Path, lsn: Lsn) -> Result<Self, RecordError> {
        let of_io = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => RecordError::NotFound(lsn),
            _ => RecordError::Io(lsn, error),
        };
        // A pipe in its place is an error, and must not block.
        let mut options = File::options();
        let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path_of(dir, lsn.get())).map_err(of_io)?;
        let mut bytes = [0; HEADER];
        read_at(&file, lsn, &mut bytes, 0)?;
        let header = StoredHeader::decode(lsn.get(), &bytes).ok_or(RecordError::HeadDamaged(lsn))?;
        Ok(RecordFile { lsn, file, header })
    }

    /// # Errors
    /// See [`RecordError`].
    pub fn head(&self) -> Result<Bytes, RecordError> {
        let mut head = vec![0; self.header.head_len as usize];
        read_at(&self.file, self.lsn, &mut head, HEADER as u64)?;
        if crc32c::crc32c(&head) == self.header.head_crc {
            Ok(head.into())
        } else {
            Err(RecordError::HeadDamaged(self.lsn))
        }
    }

    /// A part of the body, after verifying all of it.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn body(&self, range: Range<u32>) -> Result<Bytes, RecordError> {
        let mut body = vec![0; self.header.body_len as usize];
        match self.file.read_exact_at(&mut body, self.body_at()) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(RecordError::BodyDamaged(self.lsn));
            }
            read => read.map_err(|error| RecordError::Io(self.lsn, error))?,
        }
        if crc32c::crc32c(&body) != self.header.body_crc {
            return Err(RecordError::BodyDamaged(self.lsn));
        }
        let end = range.end.min(self.header.body_len) as usize;
        Ok(Bytes::from(body).slice((range.start as usize).min(end)..end))
    }

    /// The body read from the disk, and true if it is intact.
    ///
    /// # Errors
    /// An error of reading, except for unreadable sectors, which are zeros.
    pub fn body_again(&self) -> Result<(Bytes, bool), RecordError> {
        let read = files::read_again(&self.file, self.body_at(), self.header.body_len.into());
        let body = read.map_err(|error| RecordError::Io(self.lsn, error))?;
        let is_whole = crc32c::crc32c(&body) == self.header.body_crc;
        Ok((body.into(), is_whole))
    }

    fn body_at(&self) -> u64 {
        HEADER as u64 + u64::from(self.header.head_len)
    }
}

/// Reads at an offset. A file that ends too early was truncated.
fn read_at(file: &File, lsn: Lsn, bytes: &mut [u8], offset: u64) -> Result<(), RecordError> {
    file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RecordError::HeadDamaged(lsn),
        _ => RecordError::Io(lsn, error),
    })
}

/// Number of a record's directory.
pub(crate) fn dir_number(lsn: u64) -> u64 {
    lsn / PER_DIR
}

/// Path of a directory, by its [number](dir_number).
pub(crate) fn dir_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{:02x}", number / DIRS)).join(format!("{:02x}", number % DIRS))
}

/// Name of a record's file in its directory.
pub(crate) fn name_of(lsn: u64) -> String {
    format!("{lsn:016x}")
}

pub(crate) fn path_of(dir: &Path, lsn: u64) -> PathBuf {
    dir_of(dir, dir_number(lsn)).join(name_of(lsn))
}

/// LSNs of the records with a file in the right directory, and files of unfinished writes.
///
/// # Errors
/// An error of reading a directory. A missing one is no error.
pub(crate) fn list(dir: &Path) -> io::Result<(LsnSet, Vec<PathBuf>)> {
    let mut found = LsnSet::default();
    let mut unfinished = Vec::new();
    for above in numbers(dir)? {
        let above_dir = dir.join(format!("{above:02x}"));
        for within in numbers(&above_dir)?.into_iter().filter(|within| *within < DIRS) {
            let number = above * DIRS + within;
            for name in files::list(&dir_of(dir, number))? {
                let lsn_of = |digits: &str| u64::from_str_radix(digits, 16).ok().filter(|lsn| name_of(*lsn) == digits);
                match lsn_of(&name).filter(|lsn| dir_number(*lsn) == number) {
                    Some(lsn) => drop(found.insert(lsn)),
                    None if name.strip_prefix(HIDDEN).and_then(lsn_of).is_some() => {
                        unfinished.push(dir_of(dir, number).join(name));
                    }
                    None => {}
                }
            }
        }
    }
    Ok((found, unfinished))
}

/// Names in `dir` that are hex numbers.
pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let names = match files::list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let number = |name: &String| {
        let number = u64::from_str_radix(name, 16).ok()?;
        (format!("{number:02x}") == *name && number <= u64::MAX / PER_DIR / DIRS).then_some(number)
    };
    Ok(names.iter().filter_map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_their_place_are_records() {
        let dir = tempfile::tempdir().unwrap();
        for lsn in [1, PER_DIR - 1, PER_DIR, u64::from(u32::MAX), 1 << 50] {
            std::fs::create_dir_all(path_of(dir.path(), lsn).parent().unwrap()).unwrap();
            std::fs::write(path_of(dir.path(), lsn), b"").unwrap();
        }
        let first = dir_of(dir.path(), 0);
        for other in [".0000000000000002", "2", "0000000000001000", "lost+found"] {
            std::fs::write(first.join(other), b"").unwrap();
        }
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        let (found, unfinished) = list(dir.path()).unwrap();
        let found: Vec<u64> = found.iter(0..=u64::MAX).collect();
        assert_eq!(found, [1, PER_DIR - 1, PER_DIR, u64::from(u32::MAX), 1 << 50]);
        assert_eq!(unfinished, [first.join(".0000000000000002")]);
        assert_eq!(list(&dir.path().join("none")).unwrap().0.first(), None);
    }
}
