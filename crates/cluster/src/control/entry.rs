//! Entries of the control shard. Each is an absolute value, so applying it twice is harmless.
//!
//! | bytes | entry |
//! | --- | --- |
//! | 1, 1 | version: 1; kind: 1 suppression, 2 suspension, 3 begin (with a value) or end of a restatement |
//! | 4, bytes | length of the key, key |
//! | 1 | 1 if it has a value, else 0 |
//! | 4, bytes | length of the value, value; only if it has one |
//!
//! All numbers are little-endian.

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

/// A new value of a key, or its removal. This crate does not interpret either.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlEntry {
    /// The kind of the key.
    pub kind: ControlKind,
    /// The key.
    pub key: Bytes,
    /// `None` if the key was removed.
    pub value: Option<Bytes>,
}

/// The kind of a key and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKind {
    /// An address that must get no mail.
    Suppression = 1,
    /// A scope of mail that is not tried.
    Suspension = 2,
    /// A restatement of all values: it begins with a value, and ends without one. The key is its random number.
    Restatement = 3,
}

impl ControlKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Suppression, Self::Suspension, Self::Restatement].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl ControlEntry {
    /// Encodes the entry.
    ///
    /// # Panics
    /// If the key or the value has 4 GiB or more.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION, self.kind as u8];
        put_bytes(&mut out, &self.key);
        out.put_u8(self.value.is_some().into());
        if let Some(value) = &self.value {
            put_bytes(&mut out, value);
        }
        out.into()
    }

    /// `None` if the bytes are damaged or from a newer release.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let kind = ControlKind::of(fields.u8()?)?;
        let key = bytes_of(&mut fields)?;
        let value = match fields.u8()? {
            0 => None,
            1 => Some(bytes_of(&mut fields)?),
            _ => return None,
        };
        fields.end()?;
        Some(ControlEntry { kind, key, value })
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("keys and values are short"));
    out.put_slice(bytes);
}

fn bytes_of(fields: &mut Fields<'_>) -> Option<Bytes> {
    let len = fields.u32()?;
    fields.bytes(len as usize).map(Bytes::copy_from_slice)
}

/// Maximum entries of one [`put`](crate::ControlShard::put).
pub const ENTRIES_MAX: usize = 256;
const VERSION: u8 = 1;

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn entries() -> impl Strategy<Value = ControlEntry> {
        let bytes = || prop::collection::vec(0u8..3, 0..3).prop_map(Bytes::from);
        let kind = prop::sample::select(vec![ControlKind::Suppression, ControlKind::Suspension]);
        (kind, bytes(), prop::option::of(bytes())).prop_map(|(kind, key, value)| ControlEntry { kind, key, value })
    }

    proptest! {
        #[test]
        fn a_control_entry_reads_back_and_no_part_of_it_is_one(entry in entries()) {
            let bytes = entry.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(ControlEntry::decode(&bytes[..len]), None);
            }
            prop_assert_eq!(ControlEntry::decode(&bytes), Some(entry));
        }

        #[test]
        fn any_bytes_are_no_control_entry_or_the_bytes_of_one(bytes in prop::collection::vec(0u8..3, 0..30)) {
            if let Some(entry) = ControlEntry::decode(&bytes) {
                prop_assert_eq!(&entry.encode()[..], &bytes[..]);
            }
        }
    }
}
