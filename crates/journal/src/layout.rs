//! The byte layout of a segment; ARCHITECTURE.md shows the same as tables.
//!
//! A segment is a file of fixed size. Block 0 holds the segment header twice. From block 1 on lie commits, each
//! starting on a fresh block; a commit is a run of records, each a [`RecordHeader`] and its payload, padded to 8 bytes.
//! All integers are little-endian.

/// Commits start on a multiple of this, so that no write ever touches a block that was acknowledged.
pub const BLOCK: usize = 4096;
/// Records start on a multiple of this within a commit.
pub const ALIGN: usize = 8;
/// Bytes of an encoded [`RecordHeader`].
pub const RECORD_HEADER: usize = 48;
/// Bytes of an encoded [`SegmentHeader`].
pub const SEGMENT_HEADER: usize = 48;

const MAGIC: [u8; 8] = *b"PHJRNL\x00\x01";
/// Where the second copy of the segment header is: in another sector than the first.
const SECOND_COPY: usize = 2048;

/// The record is a note: handed back on recovery, never copied forward.
pub const FLAG_NOTE: u8 = 2;

/// Kind of a checkpoint record.
pub const KIND_CHECKPOINT: u8 = 2;
/// Kinds from here on belong to the journal's user.
pub const KIND_USER: u8 = 16;

/// What block 0 of a segment says of its present use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Place of the segment in the log; grows with every use of any segment file and is never reused.
    pub number: u64,
    /// The opening of the journal that put the segment into service.
    pub epoch: u64,
    /// Random for each use: a record belongs to this use only when it carries this tag, so neither a record left over
    /// from an earlier use nor a message that imitates one is ever taken for real.
    pub salt: u64,
}

impl SegmentHeader {
    /// Block 0 with both copies.
    pub fn encode_block(&self) -> Vec<u8> {
        let mut copy = [0u8; SEGMENT_HEADER];
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..16].copy_from_slice(&self.number.to_le_bytes());
        copy[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        copy[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&copy[..SEGMENT_HEADER - 4]);
        copy[SEGMENT_HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        let mut block = vec![0u8; BLOCK];
        block[..SEGMENT_HEADER].copy_from_slice(&copy);
        block[SECOND_COPY..SECOND_COPY + SEGMENT_HEADER].copy_from_slice(&copy);
        block
    }

    /// Reads whichever copy is whole; of two, the newer (a cut while a segment was put to new use leaves one of each).
    pub fn decode_block(block: &[u8]) -> Option<Self> {
        let one = |at: usize| {
            let copy = block.get(at..at + SEGMENT_HEADER)?;
            let crc = crc32c::crc32c(&copy[..SEGMENT_HEADER - 4]);
            (copy[..8] == MAGIC && u32_at(copy, SEGMENT_HEADER - 4) == crc).then(|| SegmentHeader {
                number: u64_at(copy, 8),
                epoch: u64_at(copy, 16),
                salt: u64_at(copy, 24),
            })
        };
        match (one(0), one(SECOND_COPY)) {
            (Some(a), Some(b)) => Some(if b.number > a.number { b } else { a }),
            (a, b) => a.or(b),
        }
    }

    /// The seed of every checksum in this use of the segment.
    pub fn seed(&self) -> u32 {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..].copy_from_slice(&self.salt.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

/// The fixed part in front of each payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Position in the log's order; never reused.
    pub seq: u64,
    /// The sequence number under which the record was first appended; a copy or replacement keeps it.
    pub id: u64,
    /// Everything up to this sequence number was durable before this record was written.
    pub durable: u64,
    /// Payload bytes.
    pub len: u32,
    /// What the payload is.
    pub kind: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Counts replacements of the same id; the highest one counts.
    pub version: u16,
    /// CRC-32C of the payload alone.
    pub payload_crc: u32,
}

impl RecordHeader {
    /// The header's bytes in a segment with this header.
    pub fn encode(&self, segment: &SegmentHeader) -> [u8; RECORD_HEADER] {
        let mut out = [0u8; RECORD_HEADER];
        out[..8].copy_from_slice(&segment.salt.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.durable.to_le_bytes());
        out[32..36].copy_from_slice(&self.len.to_le_bytes());
        out[36] = self.kind;
        out[37] = self.flags;
        out[38..40].copy_from_slice(&self.version.to_le_bytes());
        out[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(segment.seed(), &out[..44]);
        out[44..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the start of `bytes`, if it belongs to this use of the segment and is whole.
    pub fn decode(bytes: &[u8], segment: &SegmentHeader) -> Option<Self> {
        let b = bytes.get(..RECORD_HEADER)?;
        if u64_at(b, 0) != segment.salt || u32_at(b, 44) != crc32c::crc32c_append(segment.seed(), &b[..44]) {
            return None;
        }
        Some(RecordHeader {
            seq: u64_at(b, 8),
            id: u64_at(b, 16),
            durable: u64_at(b, 24),
            len: u32_at(b, 32),
            kind: b[36],
            flags: b[37],
            version: u16::from_le_bytes([b[38], b[39]]),
            payload_crc: u32_at(b, 40),
        })
    }

    /// Whether the record is a note.
    pub fn is_note(&self) -> bool {
        self.flags & FLAG_NOTE != 0
    }
}

/// Bytes that a record with this payload takes, padding included.
pub fn record_span(payload: usize) -> usize {
    (RECORD_HEADER + payload).next_multiple_of(ALIGN)
}

/// A checkpoint: every record up to `through` is finished except those in `live`, and no segment below `low_segment`
/// is needed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub through: u64,
    pub low_segment: u64,
    pub live: Vec<u64>,
}

impl Checkpoint {
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.through, self.low_segment].into_iter().chain(self.live.iter().copied());
        words.flat_map(u64::to_le_bytes).collect()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 16 || !bytes.len().is_multiple_of(8) {
            return None;
        }
        let live = bytes[16..].chunks_exact(8).map(|word| u64_at(word, 0)).collect();
        Some(Checkpoint { through: u64_at(bytes, 0), low_segment: u64_at(bytes, 8), live })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentHeader = SegmentHeader { number: 7, epoch: 3, salt: 0xfeed };
    const RECORD: RecordHeader =
        RecordHeader { seq: 9, id: 8, durable: 7, len: 6, kind: 17, flags: 1, version: 2, payload_crc: 5 };

    #[test]
    fn headers_read_back_as_written() {
        assert_eq!(SegmentHeader::decode_block(&SEGMENT.encode_block()), Some(SEGMENT));
        assert_eq!(RecordHeader::decode(&RECORD.encode(&SEGMENT), &SEGMENT), Some(RECORD));
    }

    #[test]
    fn any_flipped_byte_in_one_copy_of_the_segment_header_is_survived() {
        for at in 0..BLOCK {
            let mut block = SEGMENT.encode_block();
            block[at] ^= 0x40;
            assert_eq!(SegmentHeader::decode_block(&block), Some(SEGMENT), "byte {at}");
        }
    }

    #[test]
    fn any_flipped_byte_in_a_record_header_is_noticed() {
        for at in 0..RECORD_HEADER {
            let mut bytes = RECORD.encode(&SEGMENT);
            bytes[at] ^= 1;
            assert_eq!(RecordHeader::decode(&bytes, &SEGMENT), None, "byte {at}");
        }
    }

    #[test]
    fn a_record_of_another_epoch_is_not_taken() {
        let other = SegmentHeader { epoch: 4, ..SEGMENT };
        assert_eq!(RecordHeader::decode(&RECORD.encode(&SEGMENT), &other), None);
    }
}
