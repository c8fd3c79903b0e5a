//! Entries of the control shard's stream. Each is an absolute value: to apply one twice changes nothing.
//!
//! | bytes | entry |
//! | --- | --- |
//! | 1, 1 | version: 1; what it is: 1 node, 2 node removed, 3 value, 4 value removed |
//! | text, text, text | of a node: its name, `host:port` for other nodes, its release |
//! | 2, 2 each; 2, text each | of a node: shards that it is the home of; sources that it can send from |
//! | text | of a removed node: its name |
//! | 1, 4, bytes | of a value: its kind (1 suppression, 2 suspension), length of its key, key |
//! | 4, bytes | of a value that is not removed: its length, itself |
//!
//! All numbers are little-endian.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, put_text};

use crate::cell::NodeName;

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlEntry {
    /// A node is on the list.
    Node(NodeName, NodeEntry),
    /// A node is not on the list any more: nothing waits for it.
    NodeRemoved(NodeName),
    /// A key has this value.
    Value(ControlKind, Bytes, Bytes),
    /// A key has none.
    ValueRemoved(ControlKind, Bytes),
}

/// A node on the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeEntry {
    /// `host:port` at which other nodes reach it.
    pub address: String,
    /// The release that it runs.
    pub version: String,
    /// Shards that it is the home of.
    pub shards: BTreeSet<u16>,
    /// Names of the sources that it can send from.
    pub sources: BTreeSet<String>,
}

/// The kind of a key and its value. This crate knows neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKind {
    /// An address to which nothing is sent.
    Suppression = 1,
    /// A scope of mail that is not tried.
    Suspension = 2,
}

impl ControlKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Suppression, Self::Suspension].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl ControlEntry {
    /// Its bytes.
    ///
    /// # Panics
    /// If a text has more than 65,535 bytes, or a key or value 4 GiB.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        match self {
            ControlEntry::Node(name, node) => {
                out.put_u8(NODE);
                [name.as_str(), &node.address, &node.version].into_iter().for_each(|text| put_text(&mut out, text));
                put_len(&mut out, node.shards.len());
                node.shards.iter().for_each(|shard| out.put_u16_le(*shard));
                put_len(&mut out, node.sources.len());
                node.sources.iter().for_each(|source| put_text(&mut out, source));
            }
            ControlEntry::NodeRemoved(name) => {
                out.put_u8(NODE_REMOVED);
                put_text(&mut out, name.as_str());
            }
            ControlEntry::Value(kind, key, value) => {
                out.extend([VALUE, *kind as u8]);
                put_bytes(&mut out, key);
                put_bytes(&mut out, value);
            }
            ControlEntry::ValueRemoved(kind, key) => {
                out.extend([VALUE_REMOVED, *kind as u8]);
                put_bytes(&mut out, key);
            }
        }
        out.into()
    }

    /// `None` if the bytes are none: damaged, or of a newer release.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let entry = match fields.u8()? {
            NODE => {
                let (name, address, version) = (name(&mut fields)?, fields.text()?, fields.text()?);
                let shards = ascending(&mut fields, Fields::u16)?;
                let sources = ascending(&mut fields, Fields::text)?;
                ControlEntry::Node(name, NodeEntry { address, version, shards, sources })
            }
            NODE_REMOVED => ControlEntry::NodeRemoved(name(&mut fields)?),
            VALUE => {
                let (kind, key) = (ControlKind::of(fields.u8()?)?, bytes_of(&mut fields)?);
                ControlEntry::Value(kind, key, bytes_of(&mut fields)?)
            }
            VALUE_REMOVED => ControlEntry::ValueRemoved(ControlKind::of(fields.u8()?)?, bytes_of(&mut fields)?),
            _ => return None,
        };
        fields.end()?;
        Some(entry)
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.put_u16_le(u16::try_from(len).expect("a node has few shards and sources"));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("keys and values are short"));
    out.put_slice(bytes);
}

fn bytes_of(fields: &mut Fields<'_>) -> Option<Bytes> {
    let len = fields.u32()?;
    fields.bytes(len as usize).map(Bytes::copy_from_slice)
}

fn name(fields: &mut Fields<'_>) -> Option<NodeName> {
    NodeName::new(fields.text::<&str>()?)
}

/// A set as it is written: in order, each once.
fn ascending<'a, T: Ord>(fields: &mut Fields<'a>, read: fn(&mut Fields<'a>) -> Option<T>) -> Option<BTreeSet<T>> {
    let mut all = BTreeSet::new();
    for _ in 0..fields.u16()? {
        let one = read(fields)?;
        if all.last().is_some_and(|last| one <= *last) {
            return None;
        }
        all.insert(one);
    }
    Some(all)
}

const VERSION: u8 = 1;
const NODE: u8 = 1;
const NODE_REMOVED: u8 = 2;
const VALUE: u8 = 3;
const VALUE_REMOVED: u8 = 4;

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn entries() -> impl Strategy<Value = ControlEntry> {
        let name = || "[a-c]".prop_map(|name| NodeName::new(&name).unwrap());
        let bytes = || prop::collection::vec(0u8..3, 0..3).prop_map(Bytes::from);
        let kind = || prop::sample::select(vec![ControlKind::Suppression, ControlKind::Suspension]);
        let (shards, sources) =
            (prop::collection::btree_set(any::<u16>(), 0..3), prop::collection::btree_set("[a-c]{0,2}", 0..3));
        let node = ("[a-z:0-9]{0,9}", "[0-9.]{0,5}", shards, sources)
            .prop_map(|(address, version, shards, sources)| NodeEntry { address, version, shards, sources });
        prop_oneof![
            (name(), node).prop_map(|(name, node)| ControlEntry::Node(name, node)),
            name().prop_map(ControlEntry::NodeRemoved),
            (kind(), bytes(), bytes()).prop_map(|(kind, key, value)| ControlEntry::Value(kind, key, value)),
            (kind(), bytes()).prop_map(|(kind, key)| ControlEntry::ValueRemoved(kind, key)),
        ]
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
        fn any_bytes_are_no_control_entry_or_the_bytes_of_one(bytes in prop::collection::vec(0u8..5, 0..30)) {
            if let Some(entry) = ControlEntry::decode(&bytes) {
                prop_assert_eq!(&entry.encode()[..], &bytes[..]);
            }
        }
    }
}
