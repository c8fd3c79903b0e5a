//! The state that the control shard's entries make.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

use super::{ControlEntry, ControlKind, NodeEntry};
use crate::cell::NodeName;

/// The state at one node. Equal on all nodes that have applied the same entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlTable {
    nodes: BTreeMap<NodeName, NodeEntry>,
    values: BTreeMap<(ControlKind, Bytes), Bytes>,
    /// The cluster number of the last batch applied.
    number: u64,
}

/// The effect of an entry on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlChange {
    /// No change: it existed already.
    Nothing,
    /// The list of nodes has changed.
    Nodes,
    /// A key has another value, or none.
    Value(ControlKind, Bytes, Option<Bytes>),
}

impl ControlTable {
    /// Applies an entry of the batch with this cluster number. Batches that a snapshot has already are skipped.
    pub fn apply(&mut self, number: u64, entry: ControlEntry) -> ControlChange {
        // A batch may have several entries.
        if number < self.number {
            return ControlChange::Nothing;
        }
        self.number = number;
        match entry {
            ControlEntry::Node(name, node) => match self.nodes.insert(name, node.clone()) {
                Some(old) if old == node => ControlChange::Nothing,
                _ => ControlChange::Nodes,
            },
            ControlEntry::NodeRemoved(name) => match self.nodes.remove(&name) {
                Some(_) => ControlChange::Nodes,
                None => ControlChange::Nothing,
            },
            ControlEntry::Value(kind, key, value) => match self.values.insert((kind, key.clone()), value.clone()) {
                Some(old) if old == value => ControlChange::Nothing,
                _ => ControlChange::Value(kind, key, Some(value)),
            },
            ControlEntry::ValueRemoved(kind, key) => match self.values.remove(&(kind, key.clone())) {
                Some(_) => ControlChange::Value(kind, key, None),
                None => ControlChange::Nothing,
            },
        }
    }

    /// The nodes on the list, alive or not.
    pub fn nodes(&self) -> &BTreeMap<NodeName, NodeEntry> {
        &self.nodes
    }

    /// All keys of a kind, with their values.
    pub fn values(&self, kind: ControlKind) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.values.iter().filter(move |((of, _), _)| *of == kind).map(|((_, key), value)| (key, value))
    }

    /// The cluster number of the last batch applied; 0: none.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A snapshot: the number (8 bytes), then each entry with its length (4 bytes).
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64_le(self.number);
        let nodes = self.nodes.iter().map(|(name, node)| ControlEntry::Node(name.clone(), node.clone()));
        let values =
            self.values.iter().map(|((kind, key), value)| ControlEntry::Value(*kind, key.clone(), value.clone()));
        for entry in nodes.chain(values) {
            let bytes = entry.encode();
            out.put_u32_le(u32::try_from(bytes.len()).expect("entries are short"));
            out.put_slice(&bytes);
        }
        out.into()
    }

    /// `None` if the bytes are no snapshot.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let mut table = ControlTable { number: fields.u64()?, ..ControlTable::default() };
        while !fields.is_empty() {
            let len = fields.u32()?;
            let entry = ControlEntry::decode(fields.bytes(len as usize)?)?;
            if table.apply(table.number, entry) == ControlChange::Nothing {
                return None;
            }
        }
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::tests::entries;
    use super::*;

    proptest! {
        /// A node that begins with a snapshot, and one that is shown each entry twice, have what all others have.
        #[test]
        fn nodes_with_the_same_entries_have_the_same_state(
            all in prop::collection::vec(entries(), 0..40),
            at in any::<prop::sample::Index>(),
        ) {
            let (mut whole, mut twice) = (ControlTable::default(), ControlTable::default());
            let (mut late, cut) = (ControlTable::default(), at.index(all.len() + 1));
            for (number, entry) in (1..).zip(&all) {
                whole.apply(number, entry.clone());
                twice.apply(number, entry.clone());
                prop_assert_eq!(twice.apply(number, entry.clone()), ControlChange::Nothing);
                if number as usize == cut {
                    late = ControlTable::decode(&whole.encode()).unwrap();
                }
            }
            for (number, entry) in (1..).zip(&all) {
                late.apply(number, entry.clone());
            }
            prop_assert_eq!(&whole, &twice);
            prop_assert_eq!(&whole, &late);
        }
    }

    #[test]
    fn a_change_is_told_once() {
        let mut table = ControlTable::default();
        let (key, value) = (Bytes::from("a@b.example"), Bytes::from("550"));
        let put = ControlEntry::Value(ControlKind::Suppression, key.clone(), value.clone());
        let told = ControlChange::Value(ControlKind::Suppression, key.clone(), Some(value.clone()));
        assert_eq!(table.apply(1, put.clone()), told);
        assert_eq!(table.apply(2, put.clone()), ControlChange::Nothing);
        assert_eq!(table.values(ControlKind::Suspension).count(), 0);
        let removed = ControlEntry::ValueRemoved(ControlKind::Suppression, key.clone());
        assert_eq!(table.apply(3, removed.clone()), ControlChange::Value(ControlKind::Suppression, key, None));
        assert_eq!((table.apply(4, removed), table.number()), (ControlChange::Nothing, 4));
        // Shown again after a restart.
        assert_eq!(table.apply(1, put), ControlChange::Nothing);
        assert_eq!(table.values(ControlKind::Suppression).count(), 0);
    }
}
