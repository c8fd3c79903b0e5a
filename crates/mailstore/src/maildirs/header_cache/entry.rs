//! One entry of the cache: fields or structure of a message, and its file.

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;
use posthaste_message::mime::{Header, is_listed_field};

use crate::store::KeptKind;

/// A [`CachedKind`], then batch and number of a body, big-endian: entries of a kind are adjacent, in the order of mail.
pub(super) type Key = [u8; 11];

/// Kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CachedKind {
    /// The listed fields of its header.
    Fields = 0,
    /// Structure of the message, encoded by the protocol.
    Structure = 1,
    /// Values of its header that searches compare, likewise.
    Keys = 2,
}

impl CachedKind {
    pub const ALL: [Self; 3] = [Self::Fields, Self::Structure, Self::Keys];

    /// The lowest key of the kind.
    pub fn first_key(self) -> Key {
        key_of((0, 0), self)
    }
}

impl From<KeptKind> for CachedKind {
    fn from(kind: KeptKind) -> Self {
        match kind {
            KeptKind::Structure => Self::Structure,
            KeptKind::Keys => Self::Keys,
        }
    }
}

pub(super) fn key_of((lsn, target): (u64, u16), kind: CachedKind) -> Key {
    let mut key = [0; 11];
    key[0] = kind as u8;
    key[1..9].copy_from_slice(&lsn.to_be_bytes());
    key[9..].copy_from_slice(&target.to_be_bytes());
    key
}

const FACTS_BYTES: usize = 24;

fn facts_of(facts: &FileFacts) -> [u8; FACTS_BYTES] {
    let mut octets = [0; FACTS_BYTES];
    octets[..8].copy_from_slice(&facts.inode.to_le_bytes());
    octets[8..16].copy_from_slice(&facts.size.to_le_bytes());
    octets[16..].copy_from_slice(&facts.mtime_ns.to_le_bytes());
    octets
}

pub(super) fn entry_of(key: &Key, facts: &FileFacts, value: &[u8]) -> Vec<u8> {
    let mut entry = [&facts_of(facts)[..], value].concat();
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &entry);
    entry.extend_from_slice(&crc.to_le_bytes());
    entry
}

/// `None` if the entry is damaged, or of another file.
pub(super) fn value_of(key: &Key, entry: &[u8], facts: &FileFacts) -> Option<Bytes> {
    let (entry, crc) = entry.split_last_chunk::<4>()?;
    let is_sound = crc32c::crc32c_append(crc32c::crc32c(key), entry) == u32::from_le_bytes(*crc);
    let (known, value) = entry.split_first_chunk::<FACTS_BYTES>()?;
    (is_sound && *known == facts_of(facts)).then(|| Bytes::copy_from_slice(value))
}

/// The listed fields unchanged, and the empty line. `None` unless the header is fields from its first octet to its
/// empty line.
pub(super) fn listed_fields(header: &Bytes) -> Option<Bytes> {
    let (mut fields, mut end) = (Vec::new(), 0);
    for field in Header::new(header).fields() {
        if field.start != end {
            return None;
        }
        end = field.end;
        if is_listed_field(field.name) {
            fields.extend_from_slice(&header[field.start..field.end]);
        }
    }
    fields.extend_from_slice(b"\r\n");
    (end > 0 && header[end..] == *b"\r\n").then(|| fields.into())
}
