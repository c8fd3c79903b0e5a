//! A batch and the bytes of its head.

use bytes::{BufMut, Bytes};

use crate::bodies::{BodyFile, FinishedUpload};
use crate::fields::Fields;

/// Names a stream of one spool. Never used again for another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u16);

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The spool's own stream: entries that say which batches are cancelled.
pub(crate) const OWN: u16 = 0;

/// The part of a batch for one stream. Its values are absolute ("uid 7: flags seen"), never differences: a stream may see an entry again.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The stream.
    pub stream: StreamId,
    /// Whether the stream needs the batch's body until it releases it.
    pub needs_body: bool,
    /// Content, in the stream's own format.
    pub payload: Bytes,
}

/// The body of a batch.
#[derive(Debug, Default)]
pub enum Body {
    /// No body.
    #[default]
    None,
    /// In memory; written with the batch.
    Inline(Vec<Bytes>),
    /// In a file already.
    File(FinishedUpload),
}

/// The unit of an append: all of it becomes durable, or nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// One or more; a stream may have several.
    pub entries: Vec<Entry>,
    /// The body, once for all streams.
    pub body: Body,
}

/// Where a batch's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPlace {
    None,
    /// Behind the head.
    Record {
        len: u32,
    },
    File(BodyFile),
}

/// A head that was read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub entries: Vec<HeadEntry>,
    pub body: BodyPlace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadEntry {
    pub stream: u16,
    pub needs_body: bool,
    pub payload: Bytes,
}

const FORMAT: u8 = 1;
const NEEDS_BODY: u8 = 1;
/// Entries that a head can hold.
pub(crate) const ENTRIES_MAX: usize = u16::MAX as usize;

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let payloads: usize = self.entries.iter().map(|entry| 7 + entry.payload.len()).sum();
        let mut out = Vec::with_capacity(3 + payloads + 21);
        out.put_u8(FORMAT);
        out.put_u16_le(u16::try_from(self.entries.len()).expect("the number of entries is checked when they come in"));
        for entry in &self.entries {
            out.put_u16_le(entry.stream);
            out.put_u8(if entry.needs_body { NEEDS_BODY } else { 0 });
            out.put_u32_le(
                u32::try_from(entry.payload.len()).expect("the size of a batch is checked when it comes in"),
            );
            out.extend_from_slice(&entry.payload);
        }
        match self.body {
            BodyPlace::None => out.put_u8(0),
            BodyPlace::Record { len } => {
                out.put_u8(1);
                out.put_u32_le(len);
            }
            BodyPlace::File(file) => {
                out.put_u8(2);
                out.put_u64_le(file.upload);
                out.put_u64_le(file.len);
                out.put_u32_le(file.table_crc);
            }
        }
        out
    }

    /// `None` if it is not a head. The ring checks checksums, so this is an unknown format, or a bug.
    pub fn decode(bytes: Bytes) -> Option<Self> {
        let mut fields = Fields::of(&bytes);
        if fields.u8()? != FORMAT {
            return None;
        }
        let mut entries = Vec::new();
        for _ in 0..fields.u16()? {
            let (stream, flags, len) = (fields.u16()?, fields.u8()?, fields.u32()?);
            let payload = bytes.slice_ref(fields.bytes(len as usize)?);
            entries.push(HeadEntry { stream, needs_body: flags & NEEDS_BODY != 0, payload });
        }
        let body = match fields.u8()? {
            0 => BodyPlace::None,
            1 => BodyPlace::Record { len: fields.u32()? },
            2 => BodyPlace::File(BodyFile { upload: fields.u64()?, len: fields.u64()?, table_crc: fields.u32()? }),
            _ => return None,
        };
        fields.end()?;
        Some(Head { entries, body })
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> u64 {
        match self.body {
            BodyPlace::None => 0,
            BodyPlace::Record { len } => len.into(),
            BodyPlace::File(file) => file.len,
        }
    }

    /// A batch that cancels another one.
    pub fn cancelling(lsn: u64) -> Self {
        let payload = Bytes::copy_from_slice(&lsn.to_le_bytes());
        Head { entries: vec![HeadEntry { stream: OWN, needs_body: false, payload }], body: BodyPlace::None }
    }

    /// The batches that this one cancels.
    pub fn cancels(&self) -> impl Iterator<Item = u64> + '_ {
        let own = self.entries.iter().filter(|entry| entry.stream == OWN);
        own.filter_map(|entry| Some(u64::from_le_bytes(entry.payload[..].try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heads() -> impl Strategy<Value = Head> {
        let entry = (any::<u16>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..50));
        let entries = prop::collection::vec(entry, 0..5).prop_map(|entries| {
            let entry = |(stream, needs_body, payload): (u16, bool, Vec<u8>)| HeadEntry {
                stream,
                needs_body,
                payload: payload.into(),
            };
            entries.into_iter().map(entry).collect()
        });
        let file = any::<(u64, u64, u32)>()
            .prop_map(|(upload, len, table_crc)| BodyPlace::File(BodyFile { upload, len, table_crc }));
        let body = prop_oneof![Just(BodyPlace::None), any::<u32>().prop_map(|len| BodyPlace::Record { len }), file];
        (entries, body).prop_map(|(entries, body)| Head { entries, body })
    }

    proptest! {
        #[test]
        fn a_head_reads_back_as_written_and_no_part_of_it_is_one(head in heads()) {
            let bytes = Bytes::from(head.encode());
            for len in 0..bytes.len() {
                prop_assert_eq!(Head::decode(bytes.slice(..len)), None);
            }
            prop_assert_eq!(Head::decode([&bytes[..], &[0]].concat().into()), None);
            prop_assert_eq!(Head::decode(bytes), Some(head));
        }
    }

    #[test]
    fn a_cancelling_head_names_the_batch() {
        let head = Head::cancelling(77);
        assert_eq!(Head::decode(head.encode().into()).unwrap().cancels().collect::<Vec<_>>(), [77]);
    }
}
