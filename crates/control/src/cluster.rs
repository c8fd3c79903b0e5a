//! The state of a cluster, as one of its nodes knows it.

use serde::{Deserialize, Serialize};

/// A node and the shards that it is a member of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The name of the node that answers.
    pub node: String,
    /// The kind of the engine, such as `nats`.
    pub engine: String,
    /// True while the node gives its shards away and takes none.
    pub is_draining: bool,
    /// Its shards, by number.
    pub shards: Vec<ShardStatus>,
}

/// A shard, as one of its members knows it. What the engine knows is asked for at that moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Its number.
    pub shard: u16,
    /// The node that new mail for it comes to.
    pub home: String,
    /// The part of the node that answers.
    pub role: ShardRole,
    /// The owner by the shard's cell; `None`: it is free, or the engine does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The number of its last ownership; 0: it never had an owner, or the engine does not answer.
    pub epoch: u64,
    /// Members that may take over, by name.
    pub in_sync: Vec<String>,
    /// Members whose state differs, by name.
    pub seeding: Vec<String>,
    /// Members that have reported, by name.
    pub members: Vec<MemberStatus>,
    /// The last position of the log, if the engine answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// Bytes of the log, if the engine answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Their limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Recipients that wait for other hosts, if this node has its queue open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Why it stands still, or what the engine does not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// The part of a node in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardRole {
    /// The node receives and sends the shard's mail.
    Owner,
    /// The node applies the log.
    Standby,
    /// Stopped until an operator intervenes.
    Stopped,
}

/// A member's last report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The node.
    pub node: String,
    /// Position up to which the log is on its disk.
    pub applied: u64,
}
