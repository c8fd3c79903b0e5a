//! The bytes of a record in the log.
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 1 | kind |
//! | 2 | shard |
//! | 8 | log id |
//! | 8 | epoch |
//! | 8 | send number |
//! | 8 | cluster number of the first batch |
//! | 4 | number of batches |
//! | 4 | bytes of the payload |
//! | 4 | CRC-32C of the last valid record before this one |
//! | 8 each | of each batch: its length and its CRC-32C |
//! | n | payload |
//! | 4 | CRC-32C of all before |
//!
//! All numbers are little-endian. Bytes of an engine are untrusted: they are checked before use, and decoding allocates
//! no more than their length.

use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, put_text};

/// Maximum length of a record. The limits of a bundle and a part are far below.
pub const RECORD_BYTES_MAX: usize = 4 << 20;

/// A record in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The record's place in the history of its shard.
    pub header: LogRecordHeader,
    /// Kind and payload of the record.
    pub content: Content,
    /// CRC-32C of the record's bytes; the next valid record contains it.
    pub crc: u32,
}

/// The position of a record in the history of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecordHeader {
    /// The shard.
    pub shard: u16,
    /// Random for each log.
    pub log: u64,
    /// Number of the ownership that sent the record.
    pub epoch: u64,
    /// Counts the appends of an epoch; a repeated append gets a new number.
    pub send: u64,
    /// Cluster number of the first batch. A record without batches makes one on each member, which has this number.
    pub first: u64,
    /// CRC of the last valid record before it; 0 for the first.
    pub previous: u32,
}

/// A kind of record, with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The first record of a log.
    Start,
    /// Batches: one or more, each as [`LoggedBatch`](crate::LoggedBatch) writes it.
    Batches(Vec<Bytes>),
    /// A part of a large batch.
    Part {
        /// Identifies the batch until it is committed; unique in this log.
        upload: u64,
        /// Bytes before this part.
        offset: u64,
        /// Bytes of the part.
        bytes: Bytes,
    },
    /// A large batch is complete.
    Commit {
        /// See [`Part`](Self::Part).
        upload: u64,
        /// Bytes of all parts.
        len: u64,
        /// CRC-32C of all parts.
        crc: u32,
    },
    /// A large batch will not be completed.
    Abort {
        /// See [`Part`](Self::Part).
        upload: u64,
    },
    /// A new owner begins. Unfinished uploads are void.
    Open {
        /// Random: distinguishes this opening from another of the same epoch.
        nonce: u64,
    },
    /// From here on, records of this epoch below a send number are void.
    Barrier {
        /// The lowest valid send number.
        valid_from: u64,
    },
    /// Gives a number to a stream, or removes it.
    Stream {
        /// The number, never reused for another name.
        number: u16,
        /// The name; `None` if the stream was forgotten.
        name: Option<String>,
    },
    /// A stream that only the owner consumes has advanced.
    Advance {
        /// The number of the stream.
        stream: u16,
        /// Its position, a cluster number.
        position: u64,
        /// Bodies below this cluster number are released.
        below: u64,
        /// Further batches by cluster number.
        also: Vec<u64>,
    },
    /// Members compare their state at this record.
    Digest,
    /// The shard ends here; its number is never reused.
    Close,
}

/// Why bytes are not a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogRecordError {
    /// The checksum does not match, or a length is impossible.
    #[error("the record is damaged")]
    Damaged,
    /// The checksum matches, and a newer release wrote it.
    #[error("the record has version {0}, which this release does not know")]
    Version(u8),
    /// The checksum matches but the content is invalid: the writer has a bug.
    #[error("the record is intact, but its content is invalid")]
    Senseless,
}

const VERSION: u8 = 1;
const CRC: usize = 4;

impl LogRecord {
    /// The bytes of a record and their CRC.
    ///
    /// # Panics
    /// If the record is longer than [`RECORD_BYTES_MAX`], or a bundle has no batch: callers must check.
    pub fn encode(header: &LogRecordHeader, content: &Content) -> (Bytes, u32) {
        let (count, len) = match content {
            Content::Batches(batches) => (batches.len(), batches.iter().map(Bytes::len).sum()),
            Content::Part { bytes, .. } => (0, 16 + bytes.len()),
            _ => (0, 64),
        };
        let mut out = Vec::with_capacity(HEADER + 8 * count + len + CRC);
        out.put_u8(VERSION);
        out.put_u8(content.kind());
        out.put_u16_le(header.shard);
        out.put_u64_le(header.log);
        out.put_u64_le(header.epoch);
        out.put_u64_le(header.send);
        out.put_u64_le(header.first);
        out.put_u32_le(count as u32);
        let len_at = out.len();
        out.put_u32_le(0);
        out.put_u32_le(header.previous);
        content.put(&mut out);
        let len = out.len() - HEADER - 8 * count;
        out[len_at..len_at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        assert!(out.len() <= RECORD_BYTES_MAX, "a record of {} bytes", out.len());
        (out.into(), crc)
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// See [`LogRecordError`].
    pub fn decode(bytes: &Bytes) -> Result<Self, LogRecordError> {
        let (content, crc) = bytes.split_last_chunk::<CRC>().ok_or(LogRecordError::Damaged)?;
        let crc = u32::from_le_bytes(*crc);
        if bytes.len() > RECORD_BYTES_MAX || crc32c::crc32c(content) != crc {
            return Err(LogRecordError::Damaged);
        }
        match content.first() {
            Some(&VERSION) => Self::decode_content(bytes, content, crc).ok_or(LogRecordError::Senseless),
            Some(version) => Err(LogRecordError::Version(*version)),
            None => Err(LogRecordError::Damaged),
        }
    }

    fn decode_content(bytes: &Bytes, content: &[u8], crc: u32) -> Option<Self> {
        let mut fields = Fields::of(content.get(1..)?);
        let kind = fields.u8()?;
        let shard = fields.u16()?;
        let log = fields.u64()?;
        let epoch = fields.u64()?;
        let send = fields.u64()?;
        let first = fields.u64()?;
        let count = fields.u32()?;
        let len = fields.u32()?;
        let header = LogRecordHeader { shard, log, epoch, send, first, previous: fields.u32()? };
        let sums = fields.bytes((count as usize).checked_mul(8)?)?;
        if fields.len() != len as usize || (count > 0) != (kind == BATCHES) {
            return None;
        }
        let content = match kind {
            BATCHES => batches(bytes, sums, fields)?,
            _ => Content::get(kind, bytes, fields)?,
        };
        // No number of the shard's may run over.
        first.checked_add(u64::from(count).max(1)).filter(|next| *next <= NUMBER_MAX)?;
        Some(LogRecord { header, content, crc })
    }

    /// Cluster numbers of the record: one for each batch. A record without batches makes one batch on each member.
    pub fn numbers(&self) -> u64 {
        self.content.numbers()
    }
}

impl Content {
    /// See [`LogRecord::numbers`].
    pub fn numbers(&self) -> u64 {
        match self {
            Content::Batches(batches) => batches.len() as u64,
            _ => 1,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Content::Start => 0,
            Content::Batches(_) => BATCHES,
            Content::Part { .. } => 2,
            Content::Commit { .. } => 3,
            Content::Abort { .. } => 4,
            Content::Open { .. } => 5,
            Content::Barrier { .. } => 6,
            Content::Stream { .. } => 7,
            Content::Advance { .. } => 8,
            Content::Digest => 9,
            Content::Close => 10,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Content::Start | Content::Digest | Content::Close => {}
            Content::Batches(batches) => {
                assert!(!batches.is_empty(), "a bundle without a batch");
                for batch in batches {
                    out.put_u32_le(batch.len() as u32);
                    out.put_u32_le(crc32c::crc32c(batch));
                }
                batches.iter().for_each(|batch| out.put_slice(batch));
            }
            Content::Part { upload, offset, bytes } => {
                out.put_u64_le(*upload);
                out.put_u64_le(*offset);
                out.put_slice(bytes);
            }
            Content::Commit { upload, len, crc } => {
                out.put_u64_le(*upload);
                out.put_u64_le(*len);
                out.put_u32_le(*crc);
            }
            Content::Abort { upload: number }
            | Content::Open { nonce: number }
            | Content::Barrier { valid_from: number } => {
                out.put_u64_le(*number);
            }
            Content::Stream { number, name } => {
                out.put_u16_le(*number);
                put_text(out, name.as_deref().unwrap_or_default());
            }
            Content::Advance { stream, position, below, also } => {
                out.put_u16_le(*stream);
                out.put_u64_le(*position);
                out.put_u64_le(*below);
                also.iter().for_each(|number| out.put_u64_le(*number));
            }
        }
    }

    /// Decodes a record of any kind but batches.
    fn get(kind: u8, all: &Bytes, mut fields: Fields<'_>) -> Option<Self> {
        let content = match kind {
            0 => Content::Start,
            2 => {
                let upload = fields.u64()?;
                let offset = fields.u64()?;
                let bytes = all.slice_ref(fields.bytes(fields.len())?);
                offset.checked_add(bytes.len() as u64)?;
                Content::Part { upload, offset, bytes }
            }
            3 => Content::Commit { upload: fields.u64()?, len: fields.u64()?, crc: fields.u32()? },
            4 => Content::Abort { upload: fields.u64()? },
            5 => Content::Open { nonce: fields.u64()? },
            6 => Content::Barrier { valid_from: fields.u64()? },
            7 => {
                let number = fields.u16()?;
                let name: String = fields.text()?;
                Content::Stream { number, name: Some(name).filter(|name| !name.is_empty()) }
            }
            8 => {
                let stream = fields.u16()?;
                let position = fields.u64()?;
                let below = fields.u64()?;
                let mut also = Vec::with_capacity(fields.len() / 8);
                while !fields.is_empty() {
                    also.push(fields.u64()?);
                }
                Content::Advance { stream, position, below, also }
            }
            9 => Content::Digest,
            10 => Content::Close,
            _ => return None,
        };
        fields.end()?;
        Some(content)
    }
}

/// Splits the payload into batches and verifies their checksums.
fn batches(all: &Bytes, sums: &[u8], mut fields: Fields<'_>) -> Option<Content> {
    let mut sums = Fields::of(sums);
    let mut batches = Vec::with_capacity(sums.len() / 8);
    while !sums.is_empty() {
        let len = sums.u32()?;
        let crc = sums.u32()?;
        let batch = fields.bytes(len as usize)?;
        if crc32c::crc32c(batch) != crc {
            return None;
        }
        batches.push(all.slice_ref(batch));
    }
    fields.end()?;
    Some(Content::Batches(batches))
}

const BATCHES: u8 = 1;
/// Bytes in front of the batches' checksums.
const HEADER: usize = 48;
/// Cluster numbers have 48 bits.
const NUMBER_MAX: u64 = 1 << 48;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_bytes(most: usize) -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from)
    }

    fn contents() -> impl Strategy<Value = Content> {
        let name = prop_oneof![Just(None), "[a-z]{1,9}".prop_map(Some)];
        let advance = (any::<(u16, u64, u64)>(), prop::collection::vec(any::<u64>(), 0..9));
        prop_oneof![
            Just(Content::Start),
            prop::collection::vec(some_bytes(30), 1..6).prop_map(Content::Batches),
            (any::<u64>(), 0..u64::MAX / 2, some_bytes(90)).prop_map(|(upload, offset, bytes)| Content::Part {
                upload,
                offset,
                bytes
            }),
            any::<(u64, u64, u32)>().prop_map(|(upload, len, crc)| Content::Commit { upload, len, crc }),
            any::<u64>().prop_map(|upload| Content::Abort { upload }),
            any::<u64>().prop_map(|nonce| Content::Open { nonce }),
            any::<u64>().prop_map(|valid_from| Content::Barrier { valid_from }),
            (any::<u16>(), name).prop_map(|(number, name)| Content::Stream { number, name }),
            advance.prop_map(|((stream, position, below), also)| Content::Advance { stream, position, below, also }),
            Just(Content::Digest),
            Just(Content::Close),
        ]
    }

    fn headers() -> impl Strategy<Value = LogRecordHeader> {
        (any::<(u16, u64, u64, u64, u32)>(), 0..NUMBER_MAX - 100).prop_map(|(it, first)| LogRecordHeader {
            shard: it.0,
            log: it.1,
            epoch: it.2,
            send: it.3,
            first,
            previous: it.4,
        })
    }

    proptest! {
        #[test]
        fn a_record_reads_back_and_no_part_of_it_is_one(header in headers(), content in contents()) {
            let (bytes, crc) = LogRecord::encode(&header, &content);
            for len in 0..bytes.len() {
                prop_assert_eq!(LogRecord::decode(&bytes.slice(..len)), Err(LogRecordError::Damaged));
            }
            prop_assert_eq!(LogRecord::decode(&bytes), Ok(LogRecord { header, content, crc }));
        }

        #[test]
        fn any_flipped_bit_is_noticed(header in headers(), content in contents(), at in any::<prop::sample::Index>()) {
            let (bytes, _) = LogRecord::encode(&header, &content);
            let mut damaged = bytes.to_vec();
            let bit = at.index(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(LogRecord::decode(&damaged.into()), Err(LogRecordError::Damaged));
        }

        /// A buggy or malicious writer: the checksum matches.
        #[test]
        fn bytes_with_a_fitting_checksum_are_no_record_or_its_bytes(
            header in headers(), content in contents(), changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..4),
        ) {
            let (bytes, _) = LogRecord::encode(&header, &content);
            let mut forged = bytes[..bytes.len() - CRC].to_vec();
            for (at, byte) in changes {
                let at = at.index(forged.len());
                forged[at] = byte;
            }
            let crc = crc32c::crc32c(&forged);
            forged.put_u32_le(crc);
            if let Ok(record) = LogRecord::decode(&forged.clone().into()) {
                prop_assert_eq!(&LogRecord::encode(&record.header, &record.content).0[..], &forged[..]);
            }
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let header = LogRecordHeader { shard: 1, log: 2, epoch: 3, send: 4, first: 5, previous: 6 };
        let (bytes, _) = LogRecord::encode(&header, &Content::Digest);
        let mut newer = bytes[..bytes.len() - CRC].to_vec();
        newer[0] = VERSION + 1;
        let crc = crc32c::crc32c(&newer);
        newer.put_u32_le(crc);
        assert_eq!(LogRecord::decode(&newer.into()), Err(LogRecordError::Version(VERSION + 1)));
        assert_eq!(LogRecord::decode(&Bytes::new()), Err(LogRecordError::Damaged));
        assert_eq!(LogRecord::decode(&Bytes::from_static(&[0; 4])), Err(LogRecordError::Damaged), "nothing has CRC 0");
    }

    #[test]
    fn a_batch_whose_own_checksum_differs_is_refused() {
        let header = LogRecordHeader { shard: 1, log: 2, epoch: 3, send: 4, first: 5, previous: 6 };
        let (bytes, _) = LogRecord::encode(&header, &Content::Batches(vec!["one".into(), "two".into()]));
        let mut forged = bytes[..bytes.len() - CRC].to_vec();
        *forged.last_mut().unwrap() ^= 1;
        let crc = crc32c::crc32c(&forged);
        forged.put_u32_le(crc);
        assert_eq!(LogRecord::decode(&forged.into()), Err(LogRecordError::Senseless));
    }
}
