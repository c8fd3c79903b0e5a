//! The values of cells. Each shard has one, which its owner writes, and the node that takes it over. Each node has one,
//! which it writes each second.
//!
//! | bytes | cell of a shard |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 8, 8 | epoch, nonce of the writer |
//! | text, 8 | owner and its incarnation; no text and 0 if the shard is free |
//! | text | the node that may open a free shard at once; none if there is no text |
//! | 2, (text, 8) each | members in sync, with the ids of their spools |
//! | 2, (text, 8) each | members that need seeding, with the ids of their spools |
//!
//! | bytes | cell of a node |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 8, 8 | incarnation, number of the write |
//! | 8, text | its clock in milliseconds since 1970, its release; for operators alone |
//! | 1 | 1 if it is off the list of nodes, else 0 |
//! | 2, 2 each | shards that it asks for |
//! | 2 | reports; of each: |
//! | 2, 8, 8, 8 | shard, spool id, log id, applied position |
//! | 1, (8, 8) | 0, or 1: position and sum of the last digest |
//!
//! All numbers are little-endian. The bytes come from an engine, so they are validated before use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, put_text};

use crate::LogPosition;

/// The name of a node: 1 to 64 letters, digits, `-` or `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// The cell of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardCell {
    /// Number of the last ownership.
    pub epoch: u64,
    /// Random for each write.
    pub nonce: u64,
    /// `None` if the shard is free.
    pub owner: Option<CellOwner>,
    /// The node that may open a free shard at once.
    pub next: Option<NodeName>,
    /// Members that may take over, and that limit cuts of the log; with the ids of their spools.
    pub in_sync: BTreeMap<NodeName, u64>,
    /// Members with a different state, with the ids of their spools.
    pub seeding: BTreeMap<NodeName, u64>,
}

/// A process that owns a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellOwner {
    /// Name of the owning node.
    pub node: NodeName,
    /// Random for each start of the process.
    pub incarnation: u64,
}

/// The cell of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCell {
    /// Random for each start of the process.
    pub incarnation: u64,
    /// Counts the writes of an incarnation.
    pub write: u64,
    /// Wall clock at the write, in milliseconds since 1970. For operators only: nothing depends on it.
    pub wall_ms: u64,
    /// Release of the node, at most 64 bytes. For operators only.
    pub version: String,
    /// True if an operator has removed the node: it may not write here any more, and the cluster does not wait for it.
    pub is_removed: bool,
    /// Shards whose home it is, and that it requests back.
    pub asks: BTreeSet<u16>,
    /// Reports of its members, by shard.
    pub reports: BTreeMap<u16, MemberReport>,
}

/// The state of a member, durable on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberReport {
    /// Random for each spool.
    pub spool: u64,
    /// Id of the applied log.
    pub log: u64,
    /// Last applied position, with no part of an unfinished upload before it.
    pub applied: LogPosition,
    /// The last digest.
    pub digest: Option<Digest>,
}

/// The sum of a member's state at a `digest` record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Position of the `digest` record.
    pub position: LogPosition,
    /// Equal on all members with equal state.
    pub sum: u64,
}

impl NodeName {
    /// `None` if the name is invalid.
    pub fn new(name: &str) -> Option<Self> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
        ((1..=64).contains(&name.len()) && name.bytes().all(is_right)).then(|| NodeName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Key of the node's cell.
    pub fn key(&self) -> String {
        format!("node.{}", self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The cell that a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellKey {
    /// A shard, by its number.
    Shard(u16),
    /// A node, by its name.
    Node(NodeName),
}

impl CellKey {
    /// `None` if the key is neither.
    pub fn of(key: &str) -> Option<Self> {
        match key.split_once('.')? {
            ("shard", number) => number.parse().ok().map(CellKey::Shard),
            ("node", name) => NodeName::new(name).map(CellKey::Node),
            _ => None,
        }
    }
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CellKey::Shard(number) => write!(f, "shard.{number}"),
            CellKey::Node(name) => f.write_str(&name.key()),
        }
    }
}

impl ShardCell {
    /// True if this process owns the shard.
    pub fn is_owned_by(&self, node: &NodeName, incarnation: u64) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.node == *node && owner.incarnation == incarnation)
    }

    /// The cell as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        out.put_u64_le(self.epoch);
        out.put_u64_le(self.nonce);
        put_text(&mut out, self.owner.as_ref().map_or("", |owner| &*owner.node.0));
        out.put_u64_le(self.owner.as_ref().map_or(0, |owner| owner.incarnation));
        put_text(&mut out, self.next.as_ref().map_or("", |next| &*next.0));
        for members in [&self.in_sync, &self.seeding] {
            out.put_u16_le(u16::try_from(members.len()).expect("nodes are few"));
            for (name, spool) in members {
                put_text(&mut out, &name.0);
                out.put_u64_le(*spool);
            }
        }
        out.into()
    }

    /// Decodes a cell; `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let epoch = fields.u64()?;
        let nonce = fields.u64()?;
        let owner = optional_name(&mut fields)?;
        let incarnation = fields.u64()?;
        let next = optional_name(&mut fields)?;
        let in_sync = members(&mut fields)?;
        let seeding = members(&mut fields)?;
        fields.end()?;
        if owner.is_none() && incarnation != 0 {
            return None;
        }
        let owner = owner.map(|node| CellOwner { node, incarnation });
        Some(ShardCell { epoch, nonce, owner, next, in_sync, seeding })
    }
}

fn optional_name(fields: &mut Fields<'_>) -> Option<Option<NodeName>> {
    match fields.text::<&str>()? {
        "" => Some(None),
        name => NodeName::new(name).map(Some),
    }
}

fn members(fields: &mut Fields<'_>) -> Option<BTreeMap<NodeName, u64>> {
    let mut members = BTreeMap::new();
    for _ in 0..fields.u16()? {
        let name = NodeName::new(fields.text::<&str>()?)?;
        let spool = fields.u64()?;
        if members.last_key_value().is_some_and(|(last, _)| name <= *last) {
            return None;
        }
        members.insert(name, spool);
    }
    Some(members)
}

impl NodeCell {
    /// The cell as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.write);
        out.put_u64_le(self.wall_ms);
        put_text(&mut out, &self.version);
        out.put_u8(self.is_removed.into());
        out.put_u16_le(self.asks.len() as u16);
        self.asks.iter().for_each(|shard| out.put_u16_le(*shard));
        out.put_u16_le(self.reports.len() as u16);
        for (shard, report) in &self.reports {
            out.put_u16_le(*shard);
            out.put_u64_le(report.spool);
            out.put_u64_le(report.log);
            out.put_u64_le(report.applied.get());
            out.put_u8(report.digest.is_some().into());
            if let Some(digest) = report.digest {
                out.put_u64_le(digest.position.get());
                out.put_u64_le(digest.sum);
            }
        }
        out.into()
    }

    /// Decodes a cell; `None` if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let incarnation = fields.u64()?;
        let write = fields.u64()?;
        let wall_ms = fields.u64()?;
        let version: String = fields.text::<&str>().filter(|it| it.len() <= VERSION_BYTES_MAX)?.to_owned();
        let is_removed = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let mut asks = BTreeSet::new();
        for _ in 0..fields.u16()? {
            let shard = fields.u16()?;
            if asks.last().is_some_and(|last| shard <= *last) {
                return None;
            }
            asks.insert(shard);
        }
        let mut reports = BTreeMap::new();
        for _ in 0..fields.u16()? {
            let (shard, report) = report(&mut fields)?;
            if reports.last_key_value().is_some_and(|(last, _)| shard <= *last) {
                return None;
            }
            reports.insert(shard, report);
        }
        fields.end()?;
        Some(NodeCell { incarnation, write, wall_ms, version, is_removed, asks, reports })
    }
}

fn report(fields: &mut Fields<'_>) -> Option<(u16, MemberReport)> {
    let shard = fields.u16()?;
    let spool = fields.u64()?;
    let log = fields.u64()?;
    let applied = LogPosition::new(fields.u64()?);
    let digest = match fields.u8()? {
        0 => None,
        1 => Some(Digest { position: LogPosition::new(fields.u64()?), sum: fields.u64()? }),
        _ => return None,
    };
    Some((shard, MemberReport { spool, log, applied, digest }))
}

const VERSION: u8 = 1;
/// Maximum bytes of a release's name.
const VERSION_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> impl Strategy<Value = NodeName> {
        "[a-z0-9.-]{1,9}".prop_map(|name| NodeName::new(&name).unwrap())
    }

    fn shard_cells() -> impl Strategy<Value = ShardCell> {
        let owner =
            prop::option::of((names(), any::<u64>()).prop_map(|(node, incarnation)| CellOwner { node, incarnation }));
        let members = || prop::collection::btree_map(names(), any::<u64>(), 0..4);
        (any::<(u64, u64)>(), owner, prop::option::of(names()), members(), members()).prop_map(
            |((epoch, nonce), owner, next, in_sync, seeding)| ShardCell { epoch, nonce, owner, next, in_sync, seeding },
        )
    }

    fn node_cells() -> impl Strategy<Value = NodeCell> {
        let digest = prop::option::of(any::<(u64, u64)>());
        let report = (any::<(u64, u64, u64)>(), digest).prop_map(|((spool, log, applied), digest)| MemberReport {
            spool,
            log,
            applied: LogPosition::new(applied),
            digest: digest.map(|(position, sum)| Digest { position: LogPosition::new(position), sum }),
        });
        let reports = prop::collection::btree_map(any::<u16>(), report, 0..4);
        let numbers = (any::<(u64, u64, u64)>(), "[0-9.]{0,9}", any::<bool>());
        (numbers, prop::collection::btree_set(any::<u16>(), 0..4), reports).prop_map(
            |(((incarnation, write, wall_ms), version, is_removed), asks, reports)| NodeCell {
                incarnation,
                write,
                wall_ms,
                version,
                is_removed,
                asks,
                reports,
            },
        )
    }

    proptest! {
        #[test]
        fn a_cell_of_a_shard_reads_back_and_no_part_of_it_is_one(cell in shard_cells()) {
            let bytes = cell.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(ShardCell::decode(&bytes[..len]), None);
            }
            prop_assert_eq!(ShardCell::decode(&bytes), Some(cell));
        }

        #[test]
        fn a_cell_of_a_node_reads_back_and_no_part_of_it_is_one(cell in node_cells()) {
            let bytes = cell.encode();
            for len in 0..bytes.len() {
                prop_assert_eq!(NodeCell::decode(&bytes[..len]), None);
            }
            prop_assert_eq!(NodeCell::decode(&bytes), Some(cell));
        }

        #[test]
        fn any_bytes_are_no_cell_or_the_bytes_of_one(bytes in prop::collection::vec(0u8..3, 0..90)) {
            if let Some(cell) = ShardCell::decode(&bytes) {
                prop_assert_eq!(&cell.encode()[..], &bytes[..]);
            }
            if let Some(cell) = NodeCell::decode(&bytes) {
                prop_assert_eq!(&cell.encode()[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn a_key_names_a_cell() {
        let node = NodeName::new("mx-1.example").unwrap();
        for key in [CellKey::Shard(7), CellKey::Node(node)] {
            assert_eq!(CellKey::of(&key.to_string()), Some(key));
        }
        for other in ["", "shard", "shard.x", "shard.70000", "node.", "node.a_b", "mail.1"] {
            assert_eq!(CellKey::of(other), None, "{other}");
        }
        assert_eq!(NodeName::new(&"a".repeat(65)), None);
    }
}
