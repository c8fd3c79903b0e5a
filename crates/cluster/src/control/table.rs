//! The current values of the control shard, and the last position that they include.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;

use super::entry::{ControlEntry, ControlKind};
use super::place::ControlPlace;
use crate::LogPosition;

/// The values on one node. Equal on all nodes that have applied the same entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlTable {
    /// Position of the last applied record.
    pub place: ControlPlace,
    values: BTreeMap<(ControlKind, Bytes), Bytes>,
}

impl ControlTable {
    /// An empty table at a place in the log.
    pub fn at(place: ControlPlace) -> Self {
        ControlTable { place, values: BTreeMap::new() }
    }

    /// Applies an entry.
    pub fn apply(&mut self, entry: &ControlEntry) {
        let key = (entry.kind, entry.key.clone());
        match &entry.value {
            Some(value) => self.values.insert(key, value.clone()),
            None => self.values.remove(&key),
        };
    }

    /// The value of a key.
    pub fn value(&self, kind: ControlKind, key: &[u8]) -> Option<&Bytes> {
        self.values.get(&(kind, Bytes::copy_from_slice(key)))
    }

    /// All keys of a kind, with their values.
    pub fn values(&self, kind: ControlKind) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.values.iter().filter(move |((of, _), _)| *of == kind).map(|((_, key), value)| (key, value))
    }

    /// All values of keys after one, in their order.
    pub(super) fn after(
        &self,
        after: Option<&(ControlKind, Bytes)>,
    ) -> impl Iterator<Item = (ControlKind, &Bytes, &Bytes)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.values.range((from, Bound::Unbounded)).map(|((kind, key), value)| (*kind, key, value))
    }

    /// A snapshot: log id (8 bytes), position (8), CRC of the last record (4), then each entry with its length (4),
    /// then the CRC-32C of all before.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u64_le(self.place.log);
        out.put_u64_le(self.place.position.get());
        out.put_u32_le(self.place.crc);
        for ((kind, key), value) in &self.values {
            let bytes = ControlEntry { kind: *kind, key: key.clone(), value: Some(value.clone()) }.encode();
            out.put_u32_le(u32::try_from(bytes.len()).expect("entries are short"));
            out.put_slice(&bytes);
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.into()
    }

    /// `None` if the bytes are no valid snapshot.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut fields = Fields::of(content);
        let log = fields.u64()?;
        let position = LogPosition::new(fields.u64()?);
        let crc = fields.u32()?;
        let mut table = ControlTable { place: ControlPlace { log, position, crc }, ..ControlTable::default() };
        while !fields.is_empty() {
            let len = fields.u32()?;
            table.apply(&ControlEntry::decode(fields.bytes(len as usize)?)?);
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
        /// A node that begins with a snapshot, and applies some entries again, has what all others have.
        #[test]
        fn nodes_with_the_same_entries_have_the_same_state(
            all in prop::collection::vec(entries(), 0..40),
            at in any::<prop::sample::Index>(),
            again in 0usize..5,
        ) {
            let mut whole = ControlTable::default();
            let mut begun = ControlTable::default();
            all.iter().for_each(|entry| whole.apply(entry));
            let cut = at.index(all.len() + 1);
            all[..cut].iter().for_each(|entry| begun.apply(entry));
            let mut late = ControlTable::decode(&begun.encode()).unwrap();
            all[cut.saturating_sub(again)..].iter().for_each(|entry| late.apply(entry));
            prop_assert_eq!(whole, late);
        }
    }

    #[test]
    fn a_damaged_snapshot_is_none() {
        let place = ControlPlace { log: 7, position: LogPosition::new(9), crc: 3 };
        let mut table = ControlTable { place, ..ControlTable::default() };
        let kind = ControlKind::Suspension;
        let key = Bytes::from("news");
        table.apply(&ControlEntry { kind, key: key.clone(), value: Some(Bytes::from("until")) });
        let bytes = table.encode();
        assert_eq!(ControlTable::decode(&bytes), Some(table.clone()));
        assert_eq!(table.value(kind, b"news"), Some(&Bytes::from("until")));
        assert_eq!(table.values(ControlKind::Suppression).count(), 0);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert_eq!(ControlTable::decode(&damaged), None, "byte {at}");
        }
    }
}
