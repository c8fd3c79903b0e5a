//! The index of a pack: the place of each record, sorted by LSN, in blocks with checksums; and copies of heads whose
//! bodies are at least eight times as long.
//!
//! Block 0 is the header. After it lie the copies, then blocks of 127 entries and, at the end, the first LSN of each
//! block (the fences). A look-up keeps the fences in memory and reads one block. A replay reads the copies
//! sequentially; damaged ones are read from the pack.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes};
use posthaste_fsops::write_all_parts;
use posthaste_ring::layout::RecordHeader;

use crate::codec::{seal, unseal};
use crate::fields::Fields;
use crate::files;
use crate::pack::PackError;
use crate::pack::pieces::Pieces;

/// Location of a record, with lengths and checksums of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub lsn: u64,
    /// Offset of the record's header in the pack.
    pub offset: u64,
    pub head_len: u32,
    pub body_len: u32,
    pub head_crc: u32,
    pub body_crc: u32,
    /// Offset of the head's copy in the index, if any.
    pub copy: Option<NonZeroU64>,
}

impl IndexEntry {
    /// The entry of a record with this header at `offset`.
    pub fn of(offset: u64, header: &RecordHeader) -> Self {
        IndexEntry {
            lsn: header.lsn.get(),
            offset,
            head_len: header.head_len,
            body_len: header.body_len,
            head_crc: header.head_crc,
            body_crc: header.body_crc,
            copy: None,
        }
    }
}

const MAGIC: [u8; 8] = *b"PHINDEX\x02";
const BLOCK: usize = 4096;
const ENTRY: usize = 32;
const ENTRIES_IN_BLOCK: usize = (BLOCK - 4) / ENTRY;
/// Minimum ratio of body to head length for which the head is copied to the index. It bounds the copies' share of a
/// pack. Heads without a copy lie close together, so a reader that skims over their bodies reads at most this factor
/// more.
const BODY_TO_HEAD_MIN: usize = 8;
/// Encoded bytes in memory until they are written.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// An index under construction. Dropped unfinished, it leaves a file that the next opening removes.
pub(crate) struct IndexWriter {
    file: File,
    pack: u64,
    entries: Vec<IndexEntry>,
    /// Unwritten bytes, and their offset.
    buffer: Vec<u8>,
    at: u64,
}

impl IndexWriter {
    pub fn create(path: &Path, pack: u64) -> io::Result<Self> {
        let file = files::create(path)?;
        Ok(IndexWriter { file, pack, entries: Vec::new(), buffer: Vec::new(), at: BLOCK as u64 })
    }

    /// Adds a record with its head; LSNs must increase.
    pub fn push(&mut self, entry: IndexEntry, head: &[u8]) -> io::Result<()> {
        let is_copied = !head.is_empty() && head.len() * BODY_TO_HEAD_MIN <= entry.body_len as usize;
        let copy = NonZeroU64::new(self.end()).filter(|_| is_copied);
        self.entries.push(IndexEntry { copy, ..entry });
        if is_copied { self.write(head) } else { Ok(()) }
    }

    /// The entries so far, in order.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Makes the bytes durable; the name is durable after [`files::sync_dir`].
    pub fn finish(mut self) -> io::Result<()> {
        let blocks_at = self.end().next_multiple_of(BLOCK as u64);
        self.buffer.resize(self.buffer.len() + (blocks_at - self.end()) as usize, 0);
        let entries = std::mem::take(&mut self.entries);
        let mut fences = Vec::new();
        for block in entries.chunks(ENTRIES_IN_BLOCK) {
            fences.put_u64_le(block[0].lsn);
            self.write(&encode_block(block))?;
        }
        self.write(&seal(fences))?;
        self.flush()?;
        let mut header = MAGIC.to_vec();
        header.put_u64_le(self.pack);
        header.put_u64_le(entries.len() as u64);
        header.put_u64_le(blocks_at);
        write_all_parts(&self.file, &mut [IoSlice::new(&sealed_block(header))], Some(0))?;
        Ok(posthaste_fsops::fsync(&self.file)?)
    }

    fn end(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < WRITTEN_AT_ONCE { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        write_all_parts(&self.file, &mut [IoSlice::new(&self.buffer)], Some(self.at))?;
        self.at = self.end();
        self.buffer.clear();
        Ok(())
    }
}

fn encode_block(entries: &[IndexEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    let mut copied = 0u128;
    for (nth, entry) in entries.iter().enumerate() {
        bytes.put_u64_le(entry.lsn);
        bytes.put_u64_le(entry.offset);
        bytes.put_u32_le(entry.head_len);
        bytes.put_u32_le(entry.body_len);
        bytes.put_u32_le(entry.head_crc);
        bytes.put_u32_le(entry.body_crc);
        copied |= u128::from(entry.copy.is_some()) << nth;
    }
    bytes.resize(COPIES_AT, 0);
    bytes.put_u64_le(entries.iter().find_map(|entry| entry.copy).map_or(0, NonZeroU64::get));
    bytes.put_u128_le(copied);
    sealed_block(bytes)
}

/// Decodes `count` entries of a block whose checksum was verified.
fn decode_block(block: &[u8; BLOCK], count: usize) -> Vec<IndexEntry> {
    let u64_at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    let mut copies_at = u64_at(COPIES_AT);
    let copied = u128::from_le_bytes(block[COPIES_AT + 8..][..16].try_into().expect("sixteen bytes"));
    let entry = |nth: usize| {
        let at = nth * ENTRY;
        let head_len = u32_at(at + 16);
        let copy = NonZeroU64::new(copies_at).filter(|_| copied >> nth & 1 == 1);
        copies_at = copies_at.saturating_add(copy.map_or(0, |_| head_len.into()));
        IndexEntry {
            lsn: u64_at(at),
            offset: u64_at(at + 8),
            head_len,
            body_len: u32_at(at + 20),
            head_crc: u32_at(at + 24),
            body_crc: u32_at(at + 28),
            copy,
        }
    };
    (0..count).map(entry).collect()
}

fn sealed_block(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(BLOCK - 4, 0);
    seal(bytes)
}

/// Offset in a block of its field about copies: the offset of the first copy, and a bit for each entry with one.
const COPIES_AT: usize = ENTRIES_IN_BLOCK * ENTRY;
const _: () = assert!(COPIES_AT + 8 + 16 <= BLOCK - 4 && ENTRIES_IN_BLOCK <= 128);

/// An index that is open: its fences are in memory.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    entries: u64,
    /// Offset of the first block of entries.
    blocks_at: u64,
    fences: Vec<u64>,
    /// The last block read, and its number: a replay reads sequentially.
    last_block: Mutex<Option<(usize, Arc<[IndexEntry]>)>>,
    copies: Pieces,
}

impl Index {
    pub fn open(path: &Path, pack: u64) -> Result<Self, PackError> {
        let file = File::open(path).map_err(PackError::of_missing("its index is missing"))?;
        let mut header = [0; BLOCK];
        read_at(&file, &mut header, 0)?;
        let damaged = PackError::Damaged("the header of its index is damaged");
        let Some(mut fields) = unseal(&header).map(Fields::of) else { return Err(damaged) };
        let magic = fields.array();
        let id = fields.u64();
        let entries = fields.u64();
        let at = fields.u64();
        let (Some(entries), Some(blocks_at)) = (entries, at) else { return Err(damaged) };
        if magic != Some(MAGIC) || id != Some(pack) {
            return Err(damaged);
        }
        let blocks = (entries as usize).div_ceil(ENTRIES_IN_BLOCK);
        let mut fences = vec![0; blocks * 8 + 4];
        read_at(&file, &mut fences, blocks_at + (blocks * BLOCK) as u64)?;
        let fences = unseal(&fences).ok_or(PackError::Damaged("the fences of its index are damaged"))?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let fences = fences.chunks_exact(8).map(number).collect();
        Ok(Index { file, entries, blocks_at, fences, last_block: Mutex::default(), copies: Pieces::default() })
    }

    pub fn blocks(&self) -> usize {
        self.fences.len()
    }

    /// The entries of one block, in order.
    pub fn block(&self, number: usize) -> Result<Vec<IndexEntry>, PackError> {
        let mut bytes = [0; BLOCK];
        read_at(&self.file, &mut bytes, self.blocks_at + (number * BLOCK) as u64)?;
        unseal(&bytes).ok_or(PackError::Damaged("a block of its index is damaged"))?;
        let count = (self.entries as usize - number * ENTRIES_IN_BLOCK).min(ENTRIES_IN_BLOCK);
        Ok(decode_block(&bytes, count))
    }

    /// The entry of a record; `None` if it is not in the pack.
    pub fn find(&self, lsn: u64) -> Result<Option<IndexEntry>, PackError> {
        let Some(number) = self.fences.partition_point(|fence| *fence <= lsn).checked_sub(1) else { return Ok(None) };
        let last = self.last_block.lock().expect("nothing panics while it is held").clone();
        let entries = match last {
            Some((other, entries)) if other == number => entries,
            _ => {
                let entries: Arc<[IndexEntry]> = self.block(number)?.into();
                *self.last_block.lock().expect("nothing panics while it is held") = Some((number, entries.clone()));
                entries
            }
        };
        Ok(entries.binary_search_by_key(&lsn, |entry| entry.lsn).ok().map(|nth| entries[nth]))
    }

    /// The verified copy of a head; `None` if there is none.
    pub fn head(&self, entry: &IndexEntry) -> Result<Option<Bytes>, PackError> {
        let Some(at) = entry.copy else { return Ok(None) };
        let head = self.copies.read(&self.file, at.get(), entry.head_len as usize).map_err(PackError::Io)?;
        if crc32c::crc32c(&head) == entry.head_crc {
            Ok(Some(head))
        } else {
            Err(PackError::Damaged("a copy of a head in its index is damaged"))
        }
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

    /// Every third record has a body that is long enough for a copy, every fifth no head.
    fn records(count: u64) -> Vec<(IndexEntry, Vec<u8>)> {
        let record = |n: u64| {
            let head = vec![n as u8; if n.is_multiple_of(5) { 0 } else { (n * n % 300) as usize + 1 }];
            let entry = IndexEntry {
                lsn: 100 + 3 * n,
                offset: 8192 + 64 * n,
                head_len: head.len() as u32,
                body_len: (head.len() * BODY_TO_HEAD_MIN) as u32 - u32::from(!n.is_multiple_of(3) && !head.is_empty()),
                head_crc: crc32c::crc32c(&head),
                body_crc: 9,
                copy: None,
            };
            (entry, head)
        };
        (0..count).map(record).collect()
    }

    fn write(path: &Path, records: &[(IndexEntry, Vec<u8>)]) {
        let mut writer = IndexWriter::create(path, 7).unwrap();
        records.iter().for_each(|(entry, head)| writer.push(*entry, head).unwrap());
        writer.finish().unwrap();
    }

    fn read_all(index: &Index) -> Result<Vec<IndexEntry>, PackError> {
        let mut all = Vec::new();
        for number in 0..index.blocks() {
            all.extend(index.block(number)?);
        }
        Ok(all)
    }

    #[test]
    fn the_index_finds_each_record_alone_and_heads_of_long_bodies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        for count in [0, 1, ENTRIES_IN_BLOCK as u64, ENTRIES_IN_BLOCK as u64 + 1, 1000, 20_000] {
            let records = records(count);
            write(&path, &records);
            assert!(matches!(Index::open(&path, 8), Err(PackError::Damaged(_))), "another pack's");
            let index = Index::open(&path, 7).unwrap();
            let without_copy = |entry: IndexEntry| IndexEntry { copy: None, ..entry };
            for lsn in 95..110 + 3 * count {
                let nth = lsn.checked_sub(100).filter(|nth| nth.is_multiple_of(3));
                let expected = nth.and_then(|nth| records.get(nth as usize / 3));
                let found = index.find(lsn).unwrap();
                assert_eq!(found.map(without_copy), expected.map(|(entry, _)| *entry), "{lsn} of {count}");
                if let Some((entry, head)) = found.zip(expected.map(|(_, head)| head)) {
                    let is_copied = (lsn - 100).is_multiple_of(9) && !head.is_empty();
                    assert_eq!(index.head(&entry).unwrap().as_deref(), is_copied.then_some(&**head), "{lsn}");
                }
            }
            let all = read_all(&index).unwrap();
            assert_eq!(
                all.iter().copied().map(without_copy).collect::<Vec<_>>(),
                records.iter().map(|(entry, _)| *entry).collect::<Vec<_>>()
            );
            // Backwards.
            for (entry, (_, head)) in all.iter().zip(&records).rev() {
                assert!(index.head(entry).unwrap().is_none_or(|found| found == *head));
            }
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        write(&path, &records(200));
        let whole = std::fs::read(&path).unwrap();
        let last = read_all(&Index::open(&path, 7).unwrap()).unwrap().into_iter().rfind(|entry| entry.copy.is_some());
        let (last, blocks_at) = (last.unwrap(), u64::from_le_bytes(whole[24..32].try_into().unwrap()) as usize);
        // Nobody reads what fills the last block of copies.
        let unread = last.copy.unwrap().get() as usize + last.head_len as usize..blocks_at;
        assert!(unread.len() < BLOCK && blocks_at > BLOCK);
        for at in (0..whole.len()).step_by(61).chain([whole.len() - 1]).filter(|at| !unread.contains(at)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            std::fs::write(&path, bytes).unwrap();
            let read_heads =
                |index: Index| read_all(&index)?.iter().try_for_each(|entry| index.head(entry).map(|_| ()));
            let outcome = Index::open(&path, 7).and_then(read_heads);
            assert!(matches!(outcome, Err(PackError::Damaged(_))), "byte {at}");
        }
    }
}
