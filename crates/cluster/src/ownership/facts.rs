//! The facts that decisions about shards are made from: this node, the cells of others, its members and logs.

use std::time::Duration;

use super::settings::{OwnershipRules, OwnershipTimes};
use crate::LogPosition;
use crate::cell::{MemberReport, NodeCell, NodeName};

/// The state of this node's member of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnReport {
    /// Published in the node's cell.
    pub report: MemberReport,
    /// Age of the first record that it has not applied, by the engine's times.
    pub lag: Duration,
}

/// The log's state, as known to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogState {
    /// The position that this node's member had applied before the log was asked.
    pub applied: LogPosition,
    /// The lowest stored position.
    pub first: LogPosition,
    /// The highest stored position.
    pub end: LogPosition,
    /// Bytes appended since a fixed moment of this ownership.
    pub bytes: u64,
    /// Bytes stored, and the limit.
    pub room: (u64, u64),
    /// True if all of the engine's replicas have all records.
    pub is_current: bool,
}

/// This node.
#[derive(Debug)]
pub(crate) struct Me {
    pub node: NodeName,
    pub incarnation: u64,
    pub times: OwnershipTimes,
    pub rules: OwnershipRules,
    /// True if it owns nothing and takes nothing.
    pub is_draining: bool,
}

/// The cell of another node, as last seen.
#[derive(Debug)]
pub(crate) struct SeenNode {
    pub cell: NodeCell,
    pub revision: u64,
    pub at: Duration,
}
