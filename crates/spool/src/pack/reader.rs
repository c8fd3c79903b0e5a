//! A pack that is open for reading.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::RECORD_HEADER;

use crate::files::read_again;
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
    path: PathBuf,
    file: File,
    index: Index,
    /// The piece that was read last for a head, and its offset: a replay shows one head after the other.
    last_piece: Mutex<(u64, Bytes)>,
}

impl PackReader {
    pub fn open(dir: &Path, id: u64) -> Result<Self, PackError> {
        let index = Index::open(&index_path(dir, id), id)?;
        let path = pack_path(dir, id);
        let file = File::open(&path).map_err(PackError::of_missing("its file is missing"))?;
        Ok(PackReader { path, file, index, last_piece: Mutex::default() })
    }

    /// A record. One that the index lacks had a damaged head when the pack was made: it is looked for in the whole pack, as it may be readable now.
    pub fn find(&self, lsn: u64) -> Result<Option<IndexEntry>, PackError> {
        if let Some(entry) = self.index.find(lsn)? {
            return Ok(Some(entry));
        }
        let mut found = None;
        let looked = SegmentReader::open(&self.path).and_then(|reader| {
            reader.scan(&mut |located| match located.header.lsn.get() {
                this if this < lsn => ControlFlow::Continue(()),
                this => {
                    found = (this == lsn).then(|| IndexEntry::of(located.offset, &located.header));
                    ControlFlow::Break(())
                }
            })
        });
        match looked.map_err(PackError::Io) {
            // Without its header or its name it cannot be looked through.
            Err(PackError::Io(error))
                if !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound) =>
            {
                Err(PackError::Io(error))
            }
            _ => Ok(found),
        }
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
        let head = match entry.body_len < LARGE_BODY {
            true => self.part_of_piece(offset, entry.head_len as usize)?,
            false => None,
        };
        match head {
            Some(head) if crc32c::crc32c(&head) == entry.head_crc => Ok(head),
            // Longer than a piece, or it looks damaged.
            _ => self.part(offset, entry.head_len, entry.head_crc, "a head is damaged"),
        }
    }

    /// Bytes from the piece that was read last, or from the one that begins with them; `None` if they are more than that.
    fn part_of_piece(&self, offset: u64, len: usize) -> Result<Option<Bytes>, PackError> {
        let within = |at: u64, piece: &Bytes| {
            let start = usize::try_from(offset.checked_sub(at)?).ok()?;
            let end = start.checked_add(len).filter(|end| *end <= piece.len())?;
            // A copy, so that a part that is kept does not keep the whole piece in memory.
            Some(Bytes::copy_from_slice(&piece[start..end]))
        };
        let mut last = self.last_piece.lock().expect("nothing panics while it is held");
        if let Some(found) = within(last.0, &last.1) {
            return Ok(Some(found));
        }
        let mut bytes = vec![0; PIECE_BYTES];
        let read = self.file.read_at(&mut bytes, offset).map_err(PackError::Io)?;
        bytes.truncate(read);
        *last = (offset, bytes.into());
        Ok(within(last.0, &last.1))
    }

    /// The body, checked.
    pub fn body(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        let offset = entry.offset + RECORD_HEADER as u64 + u64::from(entry.head_len);
        self.part(offset, entry.body_len, entry.body_crc, "a body is damaged")
    }

    /// The body as it is on the disk, not in the page cache, also damaged; and whether its checksum matches.
    pub fn body_again(&self, entry: &IndexEntry) -> io::Result<(Bytes, bool)> {
        let offset = entry.offset + RECORD_HEADER as u64 + u64::from(entry.head_len);
        let bytes = read_again(&self.file, offset, entry.body_len.into())?;
        let is_whole = bytes.len() == entry.body_len as usize && crc32c::crc32c(&bytes) == entry.body_crc;
        Ok((bytes.into(), is_whole))
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

/// Read at once for heads that lie close together.
const PIECE_BYTES: usize = 64 << 10;
/// Heads in front of bodies from this size on are read by themselves.
const LARGE_BODY: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackWriter;

    #[test]
    fn every_head_is_read_in_whatever_order_and_a_damaged_one_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = PackWriter::create(dir.path(), 1).unwrap();
        // Some heads are longer than a piece, and some bodies large.
        let len = |lsn: u64| (lsn * lsn % 300 + if lsn.is_multiple_of(17) { PIECE_BYTES as u64 } else { 0 }) as usize;
        let body = |lsn: u64| vec![9; if lsn.is_multiple_of(5) { LARGE_BODY as usize } else { 700 }];
        for lsn in 1..=200 {
            writer.append(lsn, &vec![lsn as u8; len(lsn)], Some(&body(lsn))).unwrap();
        }
        writer.finish().unwrap();
        let reader = PackReader::open(dir.path(), 1).unwrap();
        let head = |reader: &PackReader, lsn: u64| reader.head(&reader.find(lsn).unwrap().unwrap());
        for lsn in (1..=200).chain((1..=200).rev()).chain((0..200).map(|n| n * 71 % 200 + 1)) {
            assert!(head(&reader, lsn).unwrap() == vec![lsn as u8; len(lsn)], "{lsn}");
        }
        let file = File::options().write(true).open(pack_path(dir.path(), 1)).unwrap();
        let at = reader.find(104).unwrap().unwrap().offset + RECORD_HEADER as u64;
        file.write_all_at(b"x", at + 3).unwrap();
        let reader = PackReader::open(dir.path(), 1).unwrap();
        for lsn in 1..=200 {
            match head(&reader, lsn) {
                Err(PackError::Damaged(_)) if lsn == 104 => {}
                read => assert!(read.unwrap() == vec![lsn as u8; len(lsn)], "{lsn}"),
            }
        }
    }
}
