//! The index of a pack: where each record is, sorted by LSN, in blocks with a checksum each.
//!
//! Block 0 is the header; after it lie blocks of 127 entries and, at the end, the first LSN of each block (the fences). A look-up keeps the fences in memory and
//! reads one block.

use std::cmp::Ordering;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use posthaste_ring::layout::RecordHeader;

use bytes::BufMut;

use crate::codec::{seal, unseal};
use crate::fields::Fields;
use crate::pack::PackError;

/// Where one record is, and what its parts must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub lsn: u64,
    /// Of the record's header in the pack.
    pub offset: u64,
    pub head_len: u32,
    pub body_len: u32,
    pub head_crc: u32,
    pub body_crc: u32,
}

impl IndexEntry {
    /// That number of a block whose checksum was right.
    fn decode(block: &[u8; BLOCK], nth: usize) -> Self {
        let at = nth * ENTRY;
        let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
        IndexEntry {
            lsn: u64_at(at),
            offset: u64_at(at + 8),
            head_len: u32_at(at + 16),
            body_len: u32_at(at + 20),
            head_crc: u32_at(at + 24),
            body_crc: u32_at(at + 28),
        }
    }

    /// Of a record whose header is there.
    pub fn of(offset: u32, header: &RecordHeader) -> Self {
        IndexEntry {
            lsn: header.lsn.get(),
            offset: offset.into(),
            head_len: header.head_len,
            body_len: header.body_len,
            head_crc: header.head_crc,
            body_crc: header.body_crc,
        }
    }
}

const MAGIC: [u8; 8] = *b"PHINDEX\x01";
const BLOCK: usize = 4096;
const ENTRY: usize = 32;
const ENTRIES_IN_BLOCK: usize = (BLOCK - 4) / ENTRY;

/// The bytes of an index of these entries, which are sorted.
pub(crate) fn encode(pack: u64, entries: &[IndexEntry]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.put_u64_le(pack);
    header.put_u64_le(entries.len() as u64);
    let mut out = sealed_block(header);
    let mut fences = Vec::new();
    for block in entries.chunks(ENTRIES_IN_BLOCK) {
        fences.put_u64_le(block[0].lsn);
        let mut bytes = Vec::with_capacity(BLOCK);
        for entry in block {
            bytes.put_u64_le(entry.lsn);
            bytes.put_u64_le(entry.offset);
            bytes.put_u32_le(entry.head_len);
            bytes.put_u32_le(entry.body_len);
            bytes.put_u32_le(entry.head_crc);
            bytes.put_u32_le(entry.body_crc);
        }
        out.extend(sealed_block(bytes));
    }
    out.extend(seal(fences));
    out
}

fn sealed_block(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(BLOCK - 4, 0);
    seal(bytes)
}

/// An index that is open: its fences are in memory.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    entries: u64,
    fences: Vec<u64>,
    /// The block that was read last, and its number: a replay reads one after the other.
    last_block: Mutex<Option<(usize, Arc<[u8; BLOCK]>)>>,
}

impl Index {
    pub fn open(path: &Path, pack: u64) -> Result<Self, PackError> {
        let file = File::open(path).map_err(PackError::of_missing("its index is missing"))?;
        let mut header = [0; BLOCK];
        read_at(&file, &mut header, 0)?;
        let damaged = PackError::Damaged("the header of its index is damaged");
        let Some(mut fields) = unseal(&header).map(Fields::of) else { return Err(damaged) };
        let (magic, id, entries) = (fields.array(), fields.u64(), fields.u64());
        let (Some(magic), Some(entries)) = (magic, entries) else { return Err(damaged) };
        if magic != MAGIC || id != Some(pack) {
            return Err(damaged);
        }
        let blocks = (entries as usize).div_ceil(ENTRIES_IN_BLOCK);
        let mut fences = vec![0; blocks * 8 + 4];
        read_at(&file, &mut fences, ((1 + blocks) * BLOCK) as u64)?;
        let fences = unseal(&fences).ok_or(PackError::Damaged("the fences of its index are damaged"))?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Ok(Index { file, entries, fences: fences.chunks_exact(8).map(number).collect(), last_block: Mutex::default() })
    }

    pub fn blocks(&self) -> usize {
        self.fences.len()
    }

    /// The entries of one block, in order.
    pub fn block(&self, number: usize) -> Result<Vec<IndexEntry>, PackError> {
        let bytes = self.read_block(number)?;
        Ok((0..self.entries_in(number)).map(|nth| IndexEntry::decode(&bytes, nth)).collect())
    }

    /// Where the record is; `None` if the pack has none of that LSN.
    pub fn find(&self, lsn: u64) -> Result<Option<IndexEntry>, PackError> {
        let Some(number) = self.fences.partition_point(|fence| *fence <= lsn).checked_sub(1) else { return Ok(None) };
        let last = self.last_block.lock().expect("nothing panics while it is held").clone();
        let bytes = match last {
            Some((other, bytes)) if other == number => bytes,
            _ => {
                let bytes = self.read_block(number)?;
                *self.last_block.lock().expect("nothing panics while it is held") = Some((number, bytes.clone()));
                bytes
            }
        };
        let (mut low, mut high) = (0, self.entries_in(number));
        while low < high {
            let middle = low.midpoint(high);
            let entry = IndexEntry::decode(&bytes, middle);
            match entry.lsn.cmp(&lsn) {
                Ordering::Equal => return Ok(Some(entry)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    fn entries_in(&self, block: usize) -> usize {
        (self.entries as usize - block * ENTRIES_IN_BLOCK).min(ENTRIES_IN_BLOCK)
    }

    fn read_block(&self, number: usize) -> Result<Arc<[u8; BLOCK]>, PackError> {
        let mut bytes = [0; BLOCK];
        read_at(&self.file, &mut bytes, ((1 + number) * BLOCK) as u64)?;
        unseal(&bytes).ok_or(PackError::Damaged("a block of its index is damaged"))?;
        Ok(Arc::new(bytes))
    }
}

fn read_at(file: &File, into: &mut [u8], offset: u64) -> Result<(), PackError> {
    file.read_exact_at(into, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => PackError::Damaged("its index is too short"),
        _ => PackError::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: u64) -> Vec<IndexEntry> {
        let entry = |n: u64| IndexEntry {
            lsn: 100 + 3 * n,
            offset: 8192 + 64 * n,
            head_len: n as u32,
            body_len: 7,
            head_crc: 8,
            body_crc: 9,
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn every_record_is_found_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        for count in [0, 1, ENTRIES_IN_BLOCK as u64, ENTRIES_IN_BLOCK as u64 + 1, 1000] {
            let entries = entries(count);
            std::fs::write(&path, encode(7, &entries)).unwrap();
            assert!(matches!(Index::open(&path, 8), Err(PackError::Damaged(_))), "another pack's");
            let index = Index::open(&path, 7).unwrap();
            for lsn in 95..110 + 3 * count {
                let expected = entries.iter().find(|entry| entry.lsn == lsn).copied();
                assert_eq!(index.find(lsn).unwrap(), expected, "{lsn} of {count}");
            }
            let all: Vec<_> = (0..index.blocks()).flat_map(|number| index.block(number).unwrap()).collect();
            assert_eq!(all, entries);
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let whole = encode(7, &entries(200));
        for at in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            std::fs::write(&path, bytes).unwrap();
            let read_all = |index: Index| (0..index.blocks()).try_for_each(|number| index.block(number).map(|_| ()));
            let outcome = Index::open(&path, 7).and_then(read_all);
            assert!(matches!(outcome, Err(PackError::Damaged(_))), "byte {at}");
        }
    }
}
