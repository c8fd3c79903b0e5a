//! Encoding of a batch in the log: streams by the numbers of `stream` records, the body at the end.
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | length of the head |
//! | 2 | number of entries |
//! | 2, 1, 4, n | of each: stream, flags (1: needs the body), length, payload |
//! | 1 | body: 0 none, 1 in the record, 2 in a file of its own |
//! | 4, n | length of the front fields, their octets |
//! | 8 | length of the body |
//! | n | the body |
//!
//! All numbers are little-endian. The head ends with the length of the body.

use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, FrontFields};

/// A batch in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedBatch {
    /// Entries, in order.
    pub entries: Vec<LoggedEntry>,
    /// Front fields; empty without a body.
    pub front: FrontFields,
    /// The kind of the body.
    pub body: LoggedBody,
    /// Length of the body in bytes.
    pub body_len: u64,
}

/// The part of a batch for one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEntry {
    /// Stream number, assigned by a `stream` record.
    pub stream: u16,
    /// True if the stream needs the body.
    pub needs_body: bool,
    /// The payload.
    pub payload: Bytes,
}

/// Location of a body on the members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoggedBody {
    /// The batch has no body.
    #[default]
    None,
    /// In the record of the batch.
    Inline,
    /// In a file of its own.
    File,
}

impl LoggedBatch {
    /// The head with its length in front. The octets of the body follow it.
    pub fn encode_head(&self) -> Vec<u8> {
        let payloads: usize = self.entries.iter().map(|entry| 7 + entry.payload.len()).sum();
        let len = 2 + payloads + 1 + 4 + self.front.len() + 8;
        let mut out = Vec::with_capacity(4 + len);
        out.put_u32_le(u32::try_from(len).expect("the size of a batch is checked when it comes in"));
        out.put_u16_le(u16::try_from(self.entries.len()).expect("the number of entries is checked when they come in"));
        for entry in &self.entries {
            out.put_u16_le(entry.stream);
            out.put_u8(entry.needs_body.into());
            out.put_u32_le(u32::try_from(entry.payload.len()).expect("it is shorter than the head"));
            out.put_slice(&entry.payload);
        }
        out.put_u8(match self.body {
            LoggedBody::None => 0,
            LoggedBody::Inline => 1,
            LoggedBody::File => 2,
        });
        out.put_u32_le(self.front.len() as u32);
        out.put_slice(self.front.bytes());
        out.put_u64_le(self.body_len);
        out
    }

    /// Length of the head, known once the first four bytes of a batch are there.
    pub fn head_len(start: &[u8]) -> Option<usize> {
        Some(Fields::of(start).u32()? as usize + 4)
    }

    /// Decodes the head at the start of `bytes`, and returns the rest. `None` if it is malformed.
    pub fn decode_head(bytes: &Bytes) -> Option<(Self, Bytes)> {
        let len = Self::head_len(bytes)?;
        let head = bytes.get(4..len)?;
        let rest = bytes.slice(len..);
        let mut fields = Fields::of(head);
        let mut entries = Vec::new();
        for _ in 0..fields.u16()? {
            let stream = fields.u16()?;
            let flags = fields.u8()?;
            let len = fields.u32()?;
            let payload = bytes.slice_ref(fields.bytes(len as usize)?);
            entries.push(LoggedEntry { stream, needs_body: flag(flags)?, payload });
        }
        let body = match fields.u8()? {
            0 => LoggedBody::None,
            1 => LoggedBody::Inline,
            2 => LoggedBody::File,
            _ => return None,
        };
        let front_len = fields.u32()?;
        let front = FrontFields::new(bytes.slice_ref(fields.bytes(front_len as usize)?)).ok()?;
        let body_len = fields.u64()?;
        fields.end()?;
        let is_empty = front.is_empty() && body_len == 0;
        (body != LoggedBody::None || is_empty).then_some((LoggedBatch { entries, front, body, body_len }, rest))
    }

    /// Decodes a batch with its body. `None` if the bytes are not exactly one batch.
    pub fn decode(bytes: &Bytes) -> Option<(Self, Bytes)> {
        Self::decode_head(bytes).filter(|(batch, body)| body.len() as u64 == batch.body_len)
    }
}

/// A flag of exactly 0 or 1, so that each batch has one encoding.
fn flag(byte: u8) -> Option<bool> {
    (byte <= 1).then_some(byte == 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn batches() -> impl Strategy<Value = (LoggedBatch, Bytes)> {
        let entry = (any::<u16>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(stream, needs_body, payload)| LoggedEntry { stream, needs_body, payload: payload.into() });
        let body = prop_oneof![
            Just((LoggedBody::None, Vec::new())),
            prop::collection::vec(any::<u8>(), 0..90).prop_map(|bytes| (LoggedBody::Inline, bytes)),
            prop::collection::vec(any::<u8>(), 0..90).prop_map(|bytes| (LoggedBody::File, bytes)),
        ];
        (prop::collection::vec(entry, 0..5), body, any::<bool>()).prop_map(|(entries, (body, bytes), has_front)| {
            let front = if has_front && body != LoggedBody::None { "A: b\r\n" } else { "" };
            let front = FrontFields::new(front).unwrap();
            (LoggedBatch { entries, front, body, body_len: bytes.len() as u64 }, bytes.into())
        })
    }

    proptest! {
        #[test]
        fn a_batch_reads_back_and_no_part_of_it_is_one((batch, body) in batches()) {
            let bytes = Bytes::from([&batch.encode_head()[..], &body].concat());
            for len in 0..bytes.len() {
                prop_assert_eq!(LoggedBatch::decode(&bytes.slice(..len)), None);
            }
            prop_assert_eq!(LoggedBatch::decode(&[&bytes[..], &[0]].concat().into()), None);
            prop_assert_eq!(LoggedBatch::decode(&bytes), Some((batch, body)));
        }

        #[test]
        fn any_bytes_are_no_batch_or_the_bytes_of_one(bytes in prop::collection::vec(0u8..40, 0..60)) {
            if let Some((batch, body)) = LoggedBatch::decode(&bytes.clone().into()) {
                prop_assert_eq!([&batch.encode_head()[..], &body].concat(), bytes);
            }
        }
    }
}
