//! The beginning of a stored record: its lengths and checksums.
//!
//! | bytes | content (numbers little-endian) |
//! | ---: | --- |
//! | 8 | `PHRECORD` |
//! | 8 | LSN |
//! | 4 + 4 | bytes of the head and of the body |
//! | 4 + 4 | CRC-32C of the head and of the body |
//! | 4 | CRC-32C of all before |

use bytes::{BufMut, Bytes};

use crate::fields::Fields;

/// Bytes of an encoded header.
pub(crate) const HEADER: usize = 36;
const MAGIC: [u8; 8] = *b"PHRECORD";

/// Lengths and checksums of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredHeader {
    pub head_len: u32,
    pub body_len: u32,
    pub head_crc: u32,
    pub body_crc: u32,
}

impl StoredHeader {
    /// The header of a record with this head and body, each below 4 GiB.
    pub fn of(head: &[u8], body: &[Bytes]) -> Self {
        StoredHeader {
            head_len: head.len() as u32,
            body_len: body.iter().map(Bytes::len).sum::<usize>() as u32,
            head_crc: crc32c::crc32c(head),
            body_crc: body.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)),
        }
    }

    pub fn encode(&self, lsn: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER);
        out.extend(MAGIC);
        out.put_u64_le(lsn);
        [self.head_len, self.body_len, self.head_crc, self.body_crc].into_iter().for_each(|n| out.put_u32_le(n));
        crate::codec::seal(out)
    }

    /// Decodes a header; `None` unless it is intact and of record `lsn`.
    pub fn decode(lsn: u64, bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(crate::codec::unseal(bytes)?);
        if fields.array()? != MAGIC || fields.u64()? != lsn {
            return None;
        }
        let head_len = fields.u32()?;
        let body_len = fields.u32()?;
        let header = StoredHeader { head_len, body_len, head_crc: fields.u32()?, body_crc: fields.u32()? };
        fields.end()?;
        Some(header)
    }

    /// Bytes of the header, the head and the body.
    pub fn record_len(&self) -> u64 {
        HEADER as u64 + u64::from(self.head_len) + u64::from(self.body_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_no_changed_byte_is_one() {
        let header = StoredHeader { head_len: 5, body_len: 70_000, head_crc: 6, body_crc: 7 };
        let bytes = header.encode(77);
        assert_eq!((bytes.len(), StoredHeader::decode(77, &bytes)), (HEADER, Some(header)));
        assert_eq!(StoredHeader::decode(78, &bytes), None, "the header of another record");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(StoredHeader::decode(77, &damaged), None, "{at}");
        }
    }
}
