//! A batch and the bytes of its head.

use bytes::{BufMut, Bytes};

use crate::bodies::{BodyFile, FinishedUpload};
use crate::fields::Fields;
use crate::front::{FrontFields, FrontRegion};

/// Identifies a stream of one spool. Never reused for another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u16);

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The spool's own stream: its entries name cancelled batches.
pub(crate) const OWN: u16 = 0;

/// The part of a batch for one stream. Payloads must state absolute values ("uid 7: flags seen"), never differences: a
/// stream may see an entry again.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The stream that gets the entry.
    pub stream: StreamId,
    /// True if the stream needs the batch's body until it releases it.
    pub needs_body: bool,
    /// Content, in the stream's own format.
    pub payload: Bytes,
}

/// The body of a batch, after its front fields, which are written with the batch.
#[derive(Debug, Default)]
pub enum Body {
    /// No body.
    #[default]
    None,
    /// In memory; written into the batch's record.
    Inline(FrontFields, Vec<Bytes>),
    /// In its own file, which is already durable.
    File(FrontFields, FinishedUpload),
}

impl Body {
    /// A body in memory without front fields.
    pub fn inline(parts: Vec<Bytes>) -> Self {
        Body::Inline(FrontFields::default(), parts)
    }

    /// A body in a file without front fields.
    pub fn file(upload: FinishedUpload) -> Self {
        Body::File(FrontFields::default(), upload)
    }

    /// Bytes of the front fields and the body.
    pub fn len(&self) -> u64 {
        match self {
            Body::None => 0,
            Body::Inline(front, parts) => front.len() as u64 + parts.iter().map(|part| part.len() as u64).sum::<u64>(),
            Body::File(front, upload) => front.len() as u64 + upload.len(),
        }
    }

    /// True if empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The unit of an append: all of it becomes durable, or nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// At least one; a stream may have several.
    pub entries: Vec<Entry>,
    /// The body, once for all streams.
    pub body: Body,
}

/// Location of a batch's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPlace {
    None,
    /// In the record, after the head and the front fields.
    Record {
        len: u32,
        front: FrontRegion,
    },
    /// In its own file; the record has only its front fields.
    File(BodyFile),
}

/// A decoded head.
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
/// Maximum entries of a head.
pub(crate) const ENTRIES_MAX: usize = u16::MAX as usize;

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let payloads: usize = self.entries.iter().map(|entry| 7 + entry.payload.len()).sum();
        let mut out = Vec::with_capacity(3 + payloads + 31);
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
            BodyPlace::Record { len, front } => {
                out.put_u8(1);
                out.put_u32_le(len);
                front.encode(&mut out);
            }
            BodyPlace::File(file) => {
                out.put_u8(2);
                file.encode(&mut out);
            }
        }
        out
    }

    /// `None` if it is malformed. The ring verifies checksums, so this is an unknown format, or a bug.
    pub fn decode(bytes: Bytes) -> Option<Self> {
        let mut fields = Fields::of(&bytes);
        if fields.u8()? != FORMAT {
            return None;
        }
        let mut entries = Vec::new();
        for _ in 0..fields.u16()? {
            let stream = fields.u16()?;
            let flags = fields.u8()?;
            let len = fields.u32()?;
            let payload = bytes.slice_ref(fields.bytes(len as usize)?);
            entries.push(HeadEntry { stream, needs_body: flags & NEEDS_BODY != 0, payload });
        }
        let body = match fields.u8()? {
            0 => BodyPlace::None,
            1 => BodyPlace::Record { len: fields.u32()?, front: FrontRegion::decode(&mut fields)? },
            2 => BodyPlace::File(BodyFile::decode(&mut fields)?),
            _ => return None,
        };
        fields.end()?;
        Some(Head { entries, body })
    }

    /// Bytes of the front fields and the body.
    pub fn body_len(&self) -> u64 {
        match self.body {
            BodyPlace::None => 0,
            BodyPlace::Record { len, front } => u64::from(front.len) + u64::from(len),
            BodyPlace::File(file) => file.whole_len(),
        }
    }

    /// The front fields, at the start of the record's body region.
    pub fn front(&self) -> FrontRegion {
        match self.body {
            BodyPlace::None => FrontRegion::default(),
            BodyPlace::Record { front, .. } => front,
            BodyPlace::File(file) => file.front,
        }
    }

    /// This batch with other front fields.
    pub fn with_front(self, front: FrontRegion) -> Self {
        let body = match self.body {
            BodyPlace::None => BodyPlace::None,
            BodyPlace::Record { len, .. } => BodyPlace::Record { len, front },
            BodyPlace::File(file) => BodyPlace::File(BodyFile { front, ..file }),
        };
        Head { body, ..self }
    }

    /// The batch without body and front fields, which are no longer needed.
    pub fn without_body(self) -> Self {
        match self.body {
            BodyPlace::Record { .. } => Head { body: BodyPlace::None, ..self },
            BodyPlace::File(_) | BodyPlace::None => self.with_front(FrontRegion::default()),
        }
    }

    /// A batch that cancels another one.
    pub fn cancelling(lsn: u64) -> Self {
        let payload = Bytes::copy_from_slice(&lsn.to_le_bytes());
        Head { entries: vec![HeadEntry { stream: OWN, needs_body: false, payload }], body: BodyPlace::None }
    }

    /// The batches cancelled by this one.
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
        let front = || {
            let lines = prop::collection::vec(1..20usize, 0..5);
            lines.prop_map(|lines| lines.iter().map(|len| format!("A:{}\r\n", "x".repeat(*len))).collect::<String>())
        };
        let front = || front().prop_map(|fields| FrontRegion::of(&FrontFields::new(fields).unwrap()));
        let file = (any::<(u64, u64, u32)>(), front())
            .prop_map(|((upload, len, table_crc), front)| BodyPlace::File(BodyFile { upload, len, table_crc, front }));
        let record = (any::<u32>(), front()).prop_map(|(len, front)| BodyPlace::Record { len, front });
        let body = prop_oneof![Just(BodyPlace::None), record, file];
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
