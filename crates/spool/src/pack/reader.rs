//! A pack that is open for reading.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::RECORD_HEADER;

use crate::batch::Head;
use crate::files::read_again;
use crate::pack::index::Index;
use crate::pack::pieces::Pieces;
use crate::pack::{IndexEntry, PackError, index_path, pack_path};

/// A pack and its index, both open. Stays readable after the files were unlinked.
#[derive(Debug)]
pub(crate) struct PackReader {
    path: PathBuf,
    file: File,
    index: Index,
    /// Cached pieces of the pack, for heads without a copy in the index.
    pieces: Pieces,
}

impl PackReader {
    pub fn open(dir: &Path, id: u64) -> Result<Self, PackError> {
        let index = Index::open(&index_path(dir, id), id)?;
        let path = pack_path(dir, id);
        let file = File::open(&path).map_err(PackError::of_missing("its file is missing"))?;
        Ok(PackReader { path, file, index, pieces: Pieces::default() })
    }

    /// The index entry of a record. If the index lacks it, its head was damaged when the pack was made: then the whole
    /// pack is searched, as the head may be readable now.
    pub fn find(&self, lsn: u64) -> Result<Option<IndexEntry>, PackError> {
        if let Some(entry) = self.index.find(lsn)? {
            return Ok(Some(entry));
        }
        let mut found = None;
        let looked = SegmentReader::open(&self.path).and_then(|reader| {
            reader.scan(&mut |located| match located.header.lsn.get() {
                this if this < lsn => ControlFlow::Continue(()),
                this => {
                    found = (this == lsn).then(|| IndexEntry::of(located.offset.into(), &located.header));
                    ControlFlow::Break(())
                }
            })
        });
        match looked.map_err(PackError::Io) {
            // A pack without its header or its name cannot be searched.
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

    /// The verified head: the copy in the index, or the record's own without an intact copy.
    pub fn head(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        match self.index.head(entry) {
            Ok(Some(head)) => Ok(head),
            Ok(None) | Err(_) => self.head_of_record(entry),
        }
    }

    /// The index entry of a record; `None` if the index lacks it or is damaged there.
    pub fn entry(&self, lsn: u64) -> Option<IndexEntry> {
        self.index.find(lsn).ok()?
    }

    /// The head in the pack, verified.
    pub fn head_of_record(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        let offset = entry.offset + RECORD_HEADER as u64;
        if entry.body_len < LARGE_BODY {
            let head = self.pieces.read(&self.file, offset, entry.head_len as usize).map_err(PackError::Io)?;
            if crc32c::crc32c(&head) == entry.head_crc {
                return Ok(head);
            }
        }
        self.part(offset, entry.head_len, entry.head_crc, "a head is damaged")
    }

    /// The body, verified.
    pub fn body(&self, entry: &IndexEntry) -> Result<Bytes, PackError> {
        let offset = entry.offset + RECORD_HEADER as u64 + u64::from(entry.head_len);
        self.part(offset, entry.body_len, entry.body_crc, "a body is damaged")
    }

    /// The body with placeholders for its front fields, if only these are damaged.
    pub fn mended(&self, entry: &IndexEntry) -> Option<Bytes> {
        let head = Head::decode(self.head(entry).ok()?)?;
        let (raw, _) = self.body_again(entry).ok()?;
        head.front().mended(&raw, entry.body_crc)
    }

    /// The body read from the disk, bypassing the page cache, even if damaged; and true if its checksum matches.
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

/// Size of a body in bytes from which on the head before it is read separately.
const LARGE_BODY: u32 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackWriter;
    use crate::pack::pieces::PIECE_BYTES;

    #[test]
    fn heads_are_read_in_any_order_and_damage_is_reported() {
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
        // 106 has no copy; 55 and 110 have one, and of 110 that is damaged, too.
        let of = |lsn: u64| reader.find(lsn).unwrap().unwrap();
        assert!(of(106).copy.is_none() && of(55).copy.is_some());
        let change = |path: PathBuf, at: u64| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(b"x", at).unwrap();
        };
        for lsn in [106, 55, 110] {
            change(pack_path(dir.path(), 1), of(lsn).offset + RECORD_HEADER as u64 + 3);
        }
        for lsn in [110, 115] {
            change(index_path(dir.path(), 1), of(lsn).copy.unwrap().get() + 3);
        }
        let reader = PackReader::open(dir.path(), 1).unwrap();
        for lsn in 1..=200 {
            match head(&reader, lsn) {
                Err(PackError::Damaged(_)) if [106, 110].contains(&lsn) => {}
                read => assert!(read.unwrap() == vec![lsn as u8; len(lsn)], "{lsn}"),
            }
        }
    }
}
