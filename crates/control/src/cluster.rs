//! The state of a cluster, as known by one of its nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node and the shards that it is a member of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name of the answering node.
    pub node: String,
    /// The kind of the engine, such as `nats`.
    pub engine: String,
    /// True while the node hands over its shards and takes no new ones.
    pub is_draining: bool,
    /// Shards of this node, by number.
    pub shards: Vec<ShardStatus>,
    /// All nodes of the cluster, by name, except those that the engine did not report in time.
    #[serde(default)]
    pub nodes: Vec<NodeStatus>,
    /// Why the answering node does not receive the cluster's suppressions and suspensions; empty if it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// Status of a node, read from its cell in the engine, which it rewrites each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Node name from the configuration.
    pub node: String,
    /// Running, silent, removed or new.
    pub state: NodeState,
    /// The release that it ran at its last write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Seconds since its last write: the answering node's clock minus the time in the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_secs: Option<u64>,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It writes to the engine.
    Runs,
    /// It has not written for a while.
    Silent,
    /// An operator has removed it; it cannot start.
    Removed,
    /// It has never run.
    New,
}

/// A shard as seen by one of its members. Values of the engine are fresh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Shard number from the configuration.
    pub shard: u16,
    /// The node that receives its new mail.
    pub home: String,
    /// The role of the answering node.
    pub role: ShardRole,
    /// Owner named in the shard's cell; `None` if it is free or the engine does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Number of the latest ownership; 0 if the shard never had an owner or the engine does not answer.
    pub epoch: u64,
    /// Members that may take over, by name.
    pub in_sync: Vec<String>,
    /// Members with a different state, by name.
    pub seeding: Vec<String>,
    /// Members that have reported, by name.
    pub members: Vec<MemberStatus>,
    /// The last position of the log, if the engine answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u64>,
    /// Size of the log in bytes, if the engine answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Size limit of the log in bytes, if the engine answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Recipients queued for other hosts, if this node has the queue open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Why this node's last attempt to open the queue failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_error: Option<String>,
    /// Why the shard is stuck, or which query the engine has not answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// The role of a node in a shard.
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
    /// Name of the member.
    pub node: String,
    /// The log is durable on its disk up to this position.
    pub applied: u64,
}

/// A check of the cluster, or a command about the asked node's shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ClusterOrder {
    /// Adds a second line to the answer: a [`ClusterCheck`].
    Check,
    /// Hands over all shards and takes none until the next start. The answer comes when none is left.
    Drain,
    /// Hands over one shard of this node.
    Move {
        /// Number of the shard.
        shard: u16,
        /// Name of a member in sync; default: the most advanced one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Removes a dead node: the cluster no longer waits for it, and it cannot start. Takes some seconds.
    Remove {
        /// Name of the node to remove.
        node: String,
    },
    /// Re-admits a removed node.
    Add {
        /// Name of the node to re-admit.
        node: String,
    },
    /// Makes this node take over a shard without an owner, even if it may not be in sync. Without a revision it only
    /// checks, for half a minute, and answers with one line: a [`ShardOpening`].
    Open {
        /// Number of the shard.
        shard: u16,
        /// Revision from the check. It must still be current: then nobody has written to the cell since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
}

/// Result of the check before a shard is opened by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOpening {
    /// The revision of the shard's cell.
    pub revision: u64,
    /// Risks of lost or repeated mail, a sentence each.
    pub risks: Vec<String>,
}

/// Check of the engine's settings and the nodes' cells. Takes some seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterCheck {
    /// Settings of the engine that can lose acknowledged mail, a sentence each.
    pub wrong: Vec<String>,
    /// Reasons for which parts of the check got no answer; empty if all did.
    pub unanswered: Vec<String>,
    /// Nodes listed in the configuration.
    pub nodes: Vec<CheckedNode>,
}

/// A node as its cell describes it. The node rewrites the cell each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedNode {
    /// Node name from the configuration.
    pub node: String,
    /// Release at its last write; `None` if it has never written.
    pub version: Option<String>,
    /// Its clock minus that of the answering node, in milliseconds; `None` if it does not write.
    pub clock_ms: Option<i64>,
}

/// The nodes that answered a request to all nodes, and the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswers {
    /// Number of nodes on the list.
    pub nodes: usize,
    /// Number of nodes that have answered.
    pub answered: usize,
    /// Nodes without an answer. They may still have applied a change.
    pub unanswered: Vec<UnansweredNode>,
    /// Names of nodes whose answer was cut off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// A node that has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnansweredNode {
    /// Name of the node.
    pub node: String,
    /// Why there is no answer.
    pub why: String,
}

impl NodeAnswers {
    /// True if all nodes have answered in full.
    pub fn is_whole(&self) -> bool {
        self.unanswered.is_empty() && self.partial.is_empty()
    }
}

impl fmt::Display for NodeAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} nodes have answered", self.answered, self.nodes)?;
        self.unanswered.iter().try_for_each(|UnansweredNode { node, why }| write!(f, "; not {node}: {why}"))?;
        self.partial.iter().try_for_each(|node| write!(f, "; {node} has more than fits into an answer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    #[test]
    fn nodes_without_an_answer_are_named() {
        let why = "it has not answered in time".to_owned();
        let unanswered = vec![UnansweredNode { node: "mx2".to_owned(), why }];
        let answers = NodeAnswers { nodes: 3, answered: 2, unanswered, partial: vec!["mx3".to_owned()] };
        let text =
            "2 of 3 nodes have answered; not mx2: it has not answered in time; mx3 has more than fits into an answer";
        assert_eq!((answers.to_string().as_str(), answers.is_whole()), (text, false));
    }

    #[test]
    fn orders_are_short() {
        let of = |order| Request::Cluster { order };
        let to_b = ClusterOrder::Move { shard: 3, to: Some("b".into()) };
        let to_any = ClusterOrder::Move { shard: 3, to: None };
        let [look, open] = [None, Some(9)].map(|revision| ClusterOrder::Open { shard: 3, revision });
        for (request, text) in [
            (of(None), r#"{"ask":"cluster"}"#),
            (of(Some(ClusterOrder::Check)), r#"{"ask":"cluster","order":"check"}"#),
            (of(Some(ClusterOrder::Drain)), r#"{"ask":"cluster","order":"drain"}"#),
            (of(Some(to_b)), r#"{"ask":"cluster","order":{"move":{"shard":3,"to":"b"}}}"#),
            (of(Some(to_any)), r#"{"ask":"cluster","order":{"move":{"shard":3}}}"#),
            (
                of(Some(ClusterOrder::Remove { node: "b".into() })),
                r#"{"ask":"cluster","order":{"remove":{"node":"b"}}}"#,
            ),
            (of(Some(ClusterOrder::Add { node: "b".into() })), r#"{"ask":"cluster","order":{"add":{"node":"b"}}}"#),
            (of(Some(look)), r#"{"ask":"cluster","order":{"open":{"shard":3}}}"#),
            (of(Some(open)), r#"{"ask":"cluster","order":{"open":{"shard":3,"revision":9}}}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        for wrong in [r#"{"ask":"cluster","order":{"move":{"to":"b"}}}"#, r#"{"ask":"cluster","order":"stop"}"#] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }
}
