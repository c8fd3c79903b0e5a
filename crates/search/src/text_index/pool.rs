//! An arena for many small records and growing lists, freed all at once.
//!
//! A record is a word and the end of its list:
//!
//! | offset | octets | what |
//! | --- | --- | --- |
//! | 0 | 4 each | first block, next free octet, last document + 1, place among the words of the message |
//! | 16 | 8 | beginning of the list |
//! | 24 | 2 each | length of the word, octets left in the last block |
//! | 28 | 1 each | which block it is (0: in the record), field, 0, 0 |
//! | 32 | | the word, with zeros up to a multiple of 8, of which there is one at least |
//!
//! A block ends with the address of the next one.

use std::alloc::{Layout, handle_alloc_error};

use memmap2::MmapMut;

use posthaste_text::{Octets, eight_at};

const PAGE_BITS: u32 = 18;
const PAGE_BYTES: usize = 1 << PAGE_BITS;
const RECORD_BYTES: usize = 32;
const INLINE_BYTES: u16 = 8;
/// Octets of the blocks of one list, in order; all later ones are as large as the last.
const BLOCK_BYTES: [u16; 15] = [INLINE_BYTES, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048];
const LINK_BYTES: usize = 4;

/// No address.
pub(super) const NOWHERE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Pool {
    /// Mapped from the kernel and returned to it at the end: an allocator would keep them, while the commit that
    /// follows needs memory too.
    pages: Vec<MmapMut>,
    /// Pages in use, and octets used of the last one.
    used: usize,
    at: usize,
}

/// The frequently changed part of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    /// The last document with this word, plus one; 0 if there is none.
    document_after: u32,
    /// Index of the word among those of that document.
    pub here: u32,
}

impl List {
    #[inline]
    pub fn last_document(&self) -> Option<u32> {
        self.document_after.checked_sub(1)
    }
}

impl Pool {
    pub fn memory(&self) -> usize {
        self.used * PAGE_BYTES
    }

    /// Frees all records; keeps the pages.
    pub fn clear(&mut self) {
        (self.used, self.at) = (0, 0);
    }

    #[inline]
    fn allocate(&mut self, bytes: usize) -> u32 {
        if self.used == 0 || self.at + bytes > PAGE_BYTES {
            self.next_page();
        }
        // 16,384 pages are 4 GiB, which is more than a segment may have.
        let address = ((self.used - 1) << PAGE_BITS | self.at) as u32;
        self.at += bytes;
        address
    }

    #[cold]
    fn next_page(&mut self) {
        if self.used == self.pages.len() {
            let no_memory = |_| handle_alloc_error(Layout::new::<[u8; PAGE_BYTES]>());
            self.pages.push(MmapMut::map_anon(PAGE_BYTES).unwrap_or_else(no_memory));
        }
        (self.used, self.at) = (self.used + 1, 0);
    }

    #[inline]
    fn behind(&self, address: u32) -> &[u8] {
        &self.pages[(address >> PAGE_BITS) as usize][address as usize % PAGE_BYTES..]
    }

    #[inline]
    fn behind_mut(&mut self, address: u32) -> &mut [u8] {
        &mut self.pages[(address >> PAGE_BITS) as usize][address as usize % PAGE_BYTES..]
    }

    #[inline]
    fn record(&self, address: u32) -> &[u8; RECORD_BYTES] {
        self.behind(address).first_chunk().expect("a record is as long")
    }

    #[inline]
    fn record_mut(&mut self, address: u32) -> &mut [u8; RECORD_BYTES] {
        self.behind_mut(address).first_chunk_mut().expect("a record is as long")
    }

    /// Makes a record for a word, with an empty list. The word is shorter than 64 KiB.
    pub fn make(&mut self, field: u8, word: Octets<'_>) -> u32 {
        let address = self.allocate(RECORD_BYTES + 8 + 8 * word.rest.len());
        let record = self.behind_mut(address);
        let numbers =
            [u64::from(NOWHERE), 0, 0, is_what(field, word.length) | u64::from(INLINE_BYTES) << 16, word.first];
        for (octets, number) in record.as_chunks_mut().0.iter_mut().zip(numbers.iter().chain(word.rest)) {
            *octets = number.to_le_bytes();
        }
        address
    }

    /// True if the record is for this word.
    #[inline]
    pub fn is(&self, record: u32, field: u8, word: Octets<'_>) -> bool {
        let octets = self.behind(record);
        let Some((record, rest)) = octets.split_first_chunk::<{ RECORD_BYTES + 8 }>() else { return false };
        u64_at(record, 24) & IS_WHAT == is_what(field, word.length)
            && u64_at(record, 32) == word.first
            && word.rest.iter().zip(rest.as_chunks().0).all(|(eight, octets)| *eight == u64::from_le_bytes(*octets))
    }

    /// Reads from a record's beginning and end, to bring them into the cache.
    #[inline]
    pub fn touch(&self, record: u32) -> u8 {
        let octets = self.behind(record);
        octets[0] ^ octets[RECORD_BYTES + 7]
    }

    /// Reads from the tail of a list, to bring it into the cache.
    #[inline]
    pub fn touch_tail(&self, record: u32) -> u8 {
        let header = self.record(record);
        // One at the end of a page is that of a full block.
        if header[28] == 0 { 0 } else { self.behind(u32_at(header, 4)).first().copied().unwrap_or(0) }
    }

    pub fn word(&self, record: u32) -> &[u8] {
        let record = self.behind(record);
        &record[RECORD_BYTES..][..usize::from(u16_at(record, 24))]
    }

    pub fn field(&self, record: u32) -> u8 {
        self.record(record)[29]
    }

    #[inline]
    pub fn list(&self, record: u32) -> List {
        let both = u64_at(self.record(record), 8);
        List { document_after: both as u32, here: (both >> 32) as u32 }
    }

    /// Notes that the word occurs in a document, with its index among that document's words.
    #[inline]
    pub fn see(&mut self, record: u32, document: u32, here: u32) {
        let both = u64::from(document + 1) | u64::from(here) << 32;
        self.record_mut(record)[8..16].copy_from_slice(&both.to_le_bytes());
    }

    /// Appends octets to a record's list.
    #[inline]
    pub fn append(&mut self, record: u32, octets: &[u8]) {
        if octets.len() <= 8 {
            return self.append_few(record, eight_at(octets, 0), octets.len());
        }
        let header = self.record_mut(record);
        match usize::from(u16_at(header, 26)).checked_sub(octets.len()) {
            Some(left) => {
                // More than there is in the record.
                let tail = u32_at(header, 4);
                header[4..8].copy_from_slice(&(tail + octets.len() as u32).to_le_bytes());
                header[26..28].copy_from_slice(&(left as u16).to_le_bytes());
                self.behind_mut(tail)[..octets.len()].copy_from_slice(octets);
            }
            None => self.append_across(record, octets),
        }
    }

    /// Appends at most eight octets, given as a number: the first octet lowest, zeros above the last.
    #[inline]
    pub fn append_few(&mut self, record: u32, octets: u64, count: usize) {
        let header = self.record_mut(record);
        let room = usize::from(u16_at(header, 26));
        if count > room {
            return self.append_across(record, &octets.to_le_bytes()[..count]);
        }
        header[26..28].copy_from_slice(&((room - count) as u16).to_le_bytes());
        if header[28] == 0 {
            // With nothing to append and no room the shift would be by all 64 bits.
            let all = u64_at(header, 16) | octets.checked_shl(8 * (8 - room as u32)).unwrap_or(0);
            header[16..24].copy_from_slice(&all.to_le_bytes());
            return;
        }
        let tail = u32_at(header, 4);
        header[4..8].copy_from_slice(&(tail + count as u32).to_le_bytes());
        let tail = self.behind_mut(tail);
        match tail.first_chunk_mut() {
            // All eight octets fit into the block; surplus ones are overwritten later.
            Some(eight) if room >= 8 => *eight = octets.to_le_bytes(),
            _ => tail[..count].copy_from_slice(&octets.to_le_bytes()[..count]),
        }
    }

    #[cold]
    fn append_across(&mut self, record: u32, mut octets: &[u8]) {
        let header = *self.record(record);
        let mut head = u32_at(&header, 0);
        let mut tail = u32_at(&header, 4);
        let mut block = header[28];
        let mut room = usize::from(u16_at(&header, 26));
        loop {
            let count = octets.len().min(room);
            let at = if block == 0 { record + 24 - room as u32 } else { tail };
            self.behind_mut(at)[..count].copy_from_slice(&octets[..count]);
            octets = &octets[count..];
            room -= count;
            tail = at + count as u32;
            if octets.is_empty() {
                break;
            }
            let next = usize::from(block + 1).min(BLOCK_BYTES.len() - 1);
            let bytes = usize::from(BLOCK_BYTES[next]);
            let address = self.allocate(bytes + LINK_BYTES);
            match block {
                0 => head = address,
                // The tail is at the end of the block, where the link is.
                _ => self.behind_mut(tail)[..LINK_BYTES].copy_from_slice(&address.to_le_bytes()),
            }
            (block, room, tail) = (next as u8, bytes, address);
        }
        let header = self.record_mut(record);
        header[..4].copy_from_slice(&head.to_le_bytes());
        header[4..8].copy_from_slice(&tail.to_le_bytes());
        header[26..28].copy_from_slice(&(room as u16).to_le_bytes());
        header[28] = block;
    }

    /// Puts a record's whole list into `out`.
    pub fn read(&self, record: u32, out: &mut Vec<u8>) {
        out.clear();
        let header = self.record(record);
        let room = usize::from(u16_at(header, 26));
        out.extend_from_slice(&header[16..24]);
        if header[28] == 0 {
            out.truncate(8 - room);
            return;
        }
        let mut address = u32_at(header, 0);
        let tail = u32_at(header, 4);
        let mut block = 1;
        loop {
            let bytes = usize::from(BLOCK_BYTES[block]);
            // The tail is in this block or at its end; no other block begins there.
            if (address..=address + bytes as u32).contains(&tail) {
                out.extend_from_slice(&self.behind(address)[..(tail - address) as usize]);
                return;
            }
            let octets = self.behind(address);
            out.extend_from_slice(&octets[..bytes]);
            address = u32_at(octets, bytes);
            block = (block + 1).min(BLOCK_BYTES.len() - 1);
        }
    }
}

#[inline]
fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([octets[at], octets[at + 1]])
}

#[inline]
fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

#[inline]
fn u64_at(octets: &[u8], at: usize) -> u64 {
    octets[at..].first_chunk().map_or(0, |octets| u64::from_le_bytes(*octets))
}

/// Key of field and length as a record holds it at offset 24, under the mask [`IS_WHAT`].
#[inline]
fn is_what(field: u8, length: usize) -> u64 {
    length as u64 & 0xffff | u64::from(field) << 40
}

const IS_WHAT: u64 = 0xff00_0000_ffff;

#[cfg(test)]
mod tests {
    use posthaste_random::Random;

    use super::*;

    fn word(n: usize) -> String {
        if n == 0 { String::new() } else { "word".repeat(n % 7) + &n.to_string() }
    }

    #[test]
    fn lists_grow_beside_each_other() {
        let mut pool = Pool::default();
        // Used twice: the second time over what the first has left.
        for _ in 0..2 {
            let mut random = random_numbers(7);
            let mut rest = Vec::new();
            let records: Vec<u32> =
                (0..500).map(|n| pool.make(n as u8 % 3, Octets::of(word(n).as_bytes(), &mut rest))).collect();
            let mut expected = vec![Vec::new(); records.len()];
            for round in 0..20_000 {
                let at = random() % if round % 2 == 0 { 500 } else { 5 };
                let octets: Vec<u8> = (0..random() % 12).map(|n| (n + round) as u8).collect();
                pool.append(records[at], &octets);
                expected[at].extend(octets);
            }
            let mut list = Vec::new();
            for (n, record) in records.iter().enumerate() {
                pool.read(*record, &mut list);
                assert_eq!(list, expected[n], "{n}");
                assert_eq!(pool.word(*record), word(n).as_bytes());
                let mut is = |field: u8, word: &str| pool.is(*record, field, Octets::of(word.as_bytes(), &mut rest));
                assert!(is(n as u8 % 3, &word(n)) && !is(n as u8 % 3 + 1, &word(n)));
                assert!(!is(n as u8 % 3, &word(n + 1)) && !is(n as u8 % 3, &(word(n) + "x")));
            }
            assert!(expected[0].len() > 5000);
            pool.clear();
        }
    }

    fn random_numbers(seed: u64) -> impl FnMut() -> usize {
        let mut random = Random::new(seed);
        move || random.next() as usize
    }
}
