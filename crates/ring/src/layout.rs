//! The byte layout of a segment; docs/formats.md shows the same as tables.
//!
//! A segment is a file of fixed size. Blocks 0 and 1 hold one copy of the segment header each. From block 2 on lie commits,
//! each starting on a fresh block; a commit is a run of records, each a [`RecordHeader`], a head and a body, padded to 8
//! bytes. All integers are little-endian.

use std::fmt;

/// Commits start at a multiple of this, so that no write touches a block with acknowledged records.
pub const BLOCK: usize = 4096;
/// Records start on a multiple of this within a commit.
pub const ALIGN: usize = 8;
/// Bytes of an encoded [`RecordHeader`].
pub const RECORD_HEADER: usize = 48;
/// Bytes of an encoded [`SegmentHeader`].
pub const SEGMENT_HEADER: usize = 48;
/// Offset of the first record of a segment, after both copies of the segment header.
pub const FIRST_RECORD: usize = 2 * BLOCK;

const MAGIC: [u8; 8] = *b"PHRING\x00\x01";
/// In its own block: a bad sector, even of 4 KiB, destroys one copy only.
const SECOND_COPY: usize = BLOCK;

/// Log sequence number: the permanent id of a record. Increases by one with each record and is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// Less than the LSN of every record.
    pub const ZERO: Lsn = Lsn(0);

    /// The sequence number `number`.
    pub const fn new(number: u64) -> Self {
        Lsn(number)
    }

    /// The LSN as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of a segment: describes its present use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Position of the segment in the ring: one more than its predecessor's.
    pub number: u64,
    /// The opening of the ring that put the segment into service; grows with each.
    pub epoch: u64,
    /// Random for each use: a record belongs to this use only with this tag. So neither a record of an earlier use nor
    /// a message that imitates one is taken for a record.
    pub salt: u64,
    /// Bytes of the file: a shorter one was truncated. 0: unknown.
    pub bytes: u64,
}

impl SegmentHeader {
    /// Encodes blocks 0 and 1, which hold one copy each.
    pub fn encode_blocks(&self) -> Vec<u8> {
        let mut copy = [0u8; SEGMENT_HEADER];
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..16].copy_from_slice(&self.number.to_le_bytes());
        copy[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        copy[24..32].copy_from_slice(&self.salt.to_le_bytes());
        copy[32..40].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32c::crc32c(&copy[..SEGMENT_HEADER - 4]);
        copy[SEGMENT_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        let mut blocks = vec![0u8; FIRST_RECORD];
        blocks[..SEGMENT_HEADER].copy_from_slice(&copy);
        blocks[SECOND_COPY..SECOND_COPY + SEGMENT_HEADER].copy_from_slice(&copy);
        blocks
    }

    /// Decodes both copies; `None` for a damaged one.
    pub fn decode_copies(blocks: &[u8]) -> [Option<Self>; 2] {
        [0, SECOND_COPY].map(|at| {
            let copy = blocks.get(at..at + SEGMENT_HEADER)?;
            let crc = crc32c::crc32c(&copy[..SEGMENT_HEADER - 4]);
            (copy[..8] == MAGIC && u32_at(copy, SEGMENT_HEADER - 4) == crc).then(|| SegmentHeader {
                number: u64_at(copy, 8),
                epoch: u64_at(copy, 16),
                salt: u64_at(copy, 24),
                bytes: u64_at(copy, 32),
            })
        })
    }

    /// Reads the intact copy; of two, the newer one. A cut during reuse of a segment leaves one of each.
    pub fn decode_blocks(blocks: &[u8]) -> Option<Self> {
        // Numbers are used again after a cut that left a segment empty, then in a later epoch.
        Self::decode_copies(blocks).into_iter().flatten().max_by_key(|header| (header.epoch, header.number))
    }

    /// The seed of the checksum of each record header in this use of the segment.
    pub fn seed(&self) -> u32 {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..].copy_from_slice(&self.salt.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

/// The fixed part before each record's head and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Names the record.
    pub lsn: Lsn,
    /// Everything up to this record was durable before this one was written.
    pub durable: Lsn,
    /// Bytes of the head.
    pub head_len: u32,
    /// Bytes of the body, which follows the head.
    pub body_len: u32,
    /// CRC-32C of the head.
    pub head_crc: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

impl RecordHeader {
    /// The header's bytes in a segment with this header.
    pub fn encode(&self, segment: &SegmentHeader) -> [u8; RECORD_HEADER] {
        let mut out = [0u8; RECORD_HEADER];
        out[..8].copy_from_slice(&segment.salt.to_le_bytes());
        out[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.durable.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.head_len.to_le_bytes());
        out[28..32].copy_from_slice(&self.body_len.to_le_bytes());
        out[32..36].copy_from_slice(&self.head_crc.to_le_bytes());
        out[36..40].copy_from_slice(&self.body_crc.to_le_bytes());
        // 40-43: flags, none defined.
        let crc = crc32c::crc32c_append(segment.seed(), &out[..44]);
        out[44..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`, if it belongs to this use of the segment and is whole.
    pub fn decode(bytes: &[u8], segment: &SegmentHeader) -> Option<Self> {
        let b = bytes.get(..RECORD_HEADER)?;
        (u64_at(b, 0) == segment.salt).then(|| Self::decode_untagged(b, segment)).flatten()
    }

    /// Like [`decode`](Self::decode), but ignores the tag.
    pub(crate) fn decode_untagged(bytes: &[u8], segment: &SegmentHeader) -> Option<Self> {
        let b = bytes.get(..RECORD_HEADER)?;
        let crc = crc32c::crc32c_append(segment.seed(), &segment.salt.to_le_bytes());
        // Flags that this version does not know would change what the record means.
        if u32_at(b, 44) != crc32c::crc32c_append(crc, &b[8..44]) || u32_at(b, 40) != 0 {
            return None;
        }
        Some(RecordHeader {
            lsn: Lsn(u64_at(b, 8)),
            durable: Lsn(u64_at(b, 16)),
            head_len: u32_at(b, 24),
            body_len: u32_at(b, 28),
            head_crc: u32_at(b, 32),
            body_crc: u32_at(b, 36),
        })
    }

    /// Bytes from the start of this record to the next one of the same commit.
    pub fn span(&self) -> u64 {
        record_span(self.head_len as usize, self.body_len as usize) as u64
    }
}

/// Bytes of a record, including padding.
pub fn record_span(head: usize, body: usize) -> usize {
    (RECORD_HEADER + head + body).next_multiple_of(ALIGN)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

const _: () = assert!(RECORD_HEADER.is_multiple_of(ALIGN));

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentHeader = SegmentHeader { number: 7, epoch: 3, salt: 0xfeed, bytes: 1 << 20 };
    const RECORD: RecordHeader =
        RecordHeader { lsn: Lsn(9), durable: Lsn(7), head_len: 6, body_len: 5, head_crc: 4, body_crc: 3 };

    #[test]
    fn headers_read_back_as_written() {
        assert_eq!(SegmentHeader::decode_blocks(&SEGMENT.encode_blocks()), Some(SEGMENT));
        assert_eq!(RecordHeader::decode(&RECORD.encode(&SEGMENT), &SEGMENT), Some(RECORD));
        assert_eq!(RECORD.span(), 48 + 16);
    }

    #[test]
    fn either_block_of_the_segment_header_may_be_lost_whole() {
        for block in [0, 1] {
            for garbage in [0, 0xdb] {
                let mut blocks = SEGMENT.encode_blocks();
                blocks[block * BLOCK..(block + 1) * BLOCK].fill(garbage);
                assert_eq!(SegmentHeader::decode_blocks(&blocks), Some(SEGMENT), "block {block}");
            }
        }
    }

    #[test]
    fn of_two_copies_the_newer_one_counts() {
        for newer in [SegmentHeader { number: 8, ..SEGMENT }, SegmentHeader { number: 6, epoch: 4, ..SEGMENT }] {
            let mut blocks = SEGMENT.encode_blocks();
            blocks[SECOND_COPY..].copy_from_slice(&newer.encode_blocks()[SECOND_COPY..]);
            assert_eq!(SegmentHeader::decode_blocks(&blocks), Some(newer));
        }
    }

    #[test]
    fn any_flipped_byte_in_a_record_header_is_noticed() {
        for at in 0..RECORD_HEADER {
            let mut bytes = RECORD.encode(&SEGMENT);
            bytes[at] ^= 1;
            assert_eq!(RecordHeader::decode(&bytes, &SEGMENT), None, "byte {at}");
            // A damaged tag alone leaves enough to tell that a record lay there.
            assert_eq!(RecordHeader::decode_untagged(&bytes, &SEGMENT), (at < 8).then_some(RECORD), "byte {at}");
        }
    }

    #[test]
    fn a_record_of_another_epoch_is_not_taken() {
        let other = SegmentHeader { epoch: 4, ..SEGMENT };
        assert_eq!(RecordHeader::decode(&RECORD.encode(&SEGMENT), &other), None);
    }
}
