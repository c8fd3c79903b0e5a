//! Writes a pack, bypassing the page cache, in pieces of 1 MiB, one at a time.

use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use posthaste_fsops::write_all_parts;
use posthaste_ring::Lsn;
use posthaste_ring::layout::{BLOCK, FIRST_RECORD, RecordHeader, SegmentHeader, record_span};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::files;
use crate::pack::{IndexEntry, IndexWriter, index_path, pack_path};

/// A pack under construction. Dropped unfinished, it leaves files that the next opening removes.
pub(crate) struct PackWriter {
    dir: PathBuf,
    header: SegmentHeader,
    output: Aligned,
    index: IndexWriter,
}

impl PackWriter {
    pub fn create(dir: &Path, id: u64) -> io::Result<Self> {
        let header = SegmentHeader { number: id, epoch: 0, salt: files::random(), bytes: 0 };
        let mut output = Aligned::create(&pack_path(dir, id))?;
        output.write(&header.encode_blocks())?;
        let index = IndexWriter::create(&index_path(dir, id), id)?;
        Ok(PackWriter { dir: dir.to_owned(), header, output, index })
    }

    /// Appends a record; its LSN must be the highest so far. `None` as body writes one that counts as damaged.
    pub fn append(&mut self, lsn: u64, head: &[u8], body: Option<&[u8]>) -> io::Result<()> {
        let body_crc = body.map_or(CRC_OF_DAMAGED, crc32c::crc32c);
        let body = body.unwrap_or_default();
        let header = RecordHeader {
            lsn: Lsn::new(lsn),
            durable: Lsn::new(lsn),
            head_len: head.len() as u32,
            body_len: body.len() as u32,
            head_crc: crc32c::crc32c(head),
            body_crc,
        };
        let offset = self.output.len;
        self.index.push(IndexEntry::of(offset, &header), head)?;
        self.output.write(&header.encode(&self.header))?;
        self.output.write(head)?;
        self.output.write(body)?;
        self.output.fill_to(offset + record_span(head.len(), body.len()) as u64)
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.output.len
    }

    /// The LSN of the first record, which must exist.
    pub fn first(&self) -> u64 {
        self.index.entries()[0].lsn
    }

    /// The LSN of the last record, which must exist.
    pub fn last(&self) -> u64 {
        let entries = self.index.entries();
        entries[entries.len() - 1].lsn
    }

    pub fn records(&self) -> u64 {
        self.index.entries().len() as u64
    }

    /// Makes the pack, its index and both names durable.
    pub fn finish(mut self) -> io::Result<()> {
        assert!(self.output.len >= FIRST_RECORD as u64, "the header was written first");
        self.output.finish()?;
        self.index.finish()?;
        files::sync_dir(&self.dir)
    }
}

/// A file written in whole blocks from aligned memory, for direct I/O.
struct Aligned {
    file: File,
    direct: Option<File>,
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes so far, including the buffer.
    len: u64,
}

/// Checksum of a damaged body without bytes; it differs from the CRC of no bytes, which is 0.
const CRC_OF_DAMAGED: u32 = 1;
/// Bytes of one write to the device.
const PIECE: usize = 1 << 20;

impl Aligned {
    fn create(path: &Path) -> io::Result<Self> {
        let file = files::create(path)?;
        // Without direct I/O the page cache works as well, only slower.
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = posthaste_fsops::open(path, flags, files::OWNER).ok().map(File::from);
        Ok(Aligned { file, direct, buffer: vec![0; PIECE + BLOCK], filled: 0, len: 0 })
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let start = self.buffer.as_ptr().align_offset(BLOCK);
            let (now, rest) = bytes.split_at(bytes.len().min(PIECE - self.filled));
            self.buffer[start + self.filled..][..now.len()].copy_from_slice(now);
            (self.filled, bytes) = (self.filled + now.len(), rest);
            if self.filled == PIECE {
                self.write_piece(self.len - bytes.len() as u64 - PIECE as u64)?;
            }
        }
        Ok(())
    }

    /// Appends zeros up to this length, less than a block away.
    fn fill_to(&mut self, len: u64) -> io::Result<()> {
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        self.write(&ZEROS[..(len - self.len) as usize])
    }

    fn finish(&mut self) -> io::Result<()> {
        self.fill_to(self.len.next_multiple_of(BLOCK as u64))?;
        if self.filled > 0 {
            self.write_piece(self.len - self.filled as u64)?;
        }
        Ok(posthaste_fsops::fsync(&self.file)?)
    }

    fn write_piece(&mut self, offset: u64) -> io::Result<()> {
        let start = self.buffer.as_ptr().align_offset(BLOCK);
        let piece = &self.buffer[start..start + std::mem::take(&mut self.filled)];
        if let Some(direct) = &self.direct {
            match write_all_parts(direct, &mut [IoSlice::new(piece)], Some(offset)) {
                // The device has larger blocks, or the file system accepts the flag but not the write.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => self.direct = None,
                written => return written,
            }
        }
        write_all_parts(&self.file, &mut [IoSlice::new(piece)], Some(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{PackError, PackReader};

    fn record(n: u64) -> (u64, Vec<u8>, Vec<u8>) {
        (10 + n * n, vec![n as u8; n as usize % 50], vec![!n as u8; (n * n * 37) as usize % 20_000])
    }

    #[test]
    fn records_read_back_as_written_and_any_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = PackWriter::create(dir.path(), 3).unwrap();
        let records: Vec<_> = (0..300).map(record).collect();
        records.iter().for_each(|(lsn, head, body)| writer.append(*lsn, head, Some(body)).unwrap());
        assert!(writer.bytes() > 2 * PIECE as u64, "several pieces");
        writer.finish().unwrap();
        let pack = PackReader::open(dir.path(), 3).unwrap();
        for (lsn, head, body) in &records {
            let entry = pack.find(*lsn).unwrap().unwrap();
            assert_eq!(pack.head(&entry).unwrap(), head);
            assert_eq!(pack.body(&entry).unwrap(), body);
        }
        let mut seen = Vec::new();
        pack.each(|entry| {
            seen.push(entry.lsn);
            Ok::<_, PackError>(())
        })
        .unwrap();
        assert_eq!(seen, records.iter().map(|(lsn, ..)| *lsn).collect::<Vec<_>>());
        // A segment's format: a scan of the ring's own headers finds the same records.
        let bytes = std::fs::read(pack_path(dir.path(), 3)).unwrap();
        let header = SegmentHeader::decode_blocks(&bytes).unwrap();
        let mut at = FIRST_RECORD as u64;
        for (lsn, head, body) in &records {
            let record = RecordHeader::decode(&bytes[at as usize..], &header).unwrap();
            assert_eq!(
                (record.lsn.get(), record.head_len as usize, record.body_len as usize),
                (*lsn, head.len(), body.len())
            );
            at += record.span();
        }
        let entry = pack.find(records[99].0).unwrap().unwrap();
        for (offset, is_head) in [(48, true), (48 + u64::from(entry.head_len), false)] {
            let mut changed = bytes.clone();
            changed[(entry.offset + offset) as usize] ^= 1;
            std::fs::write(pack_path(dir.path(), 3), &changed).unwrap();
            assert_eq!(matches!(pack.head_of_record(&entry), Err(PackError::Damaged(_))), is_head);
            assert_eq!(matches!(pack.body(&entry), Err(PackError::Damaged(_))), !is_head);
        }
    }
}
