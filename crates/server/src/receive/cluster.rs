//! A cluster node, for reception and commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_control::{ClusterCheck, ClusterStatus, Named, ShardOpening, Suppressed, SuppressionFilter};
use tokio::time::{Instant, sleep};

use crate::receive::shards::ShardQueue;
use crate::receive::shared::{SharedChange, SharedSuspension, Spread};

/// A node of a cluster, for receiving mail and for the operator's commands.
pub(crate) trait NodeControl: Send + Sync {
    /// The node's shards, as known to it and to the engine now. Blocks.
    fn status(&self) -> ClusterStatus;

    /// The engine's settings, and the nodes by their cells. Takes some seconds. Blocks.
    fn check(&self) -> ClusterCheck;

    /// Gives all shards away and takes none until the process restarts. Returns once this node owns none; it may wait
    /// forever while no other member is in sync. The request stays in force if nobody waits any more. Blocks.
    fn drain(&self);

    /// Gives a shard to a node, or to the most advanced member in sync. Returns at once: [`status`](Self::status) shows
    /// the new owner. Does nothing if this node does not own it, or the other one cannot take it.
    fn move_shard(&self, shard: u16, to: Option<&str>);

    /// Removes a dead node. Takes some seconds. Blocks.
    ///
    /// # Errors
    /// No such node, it runs, or the engine does not answer.
    fn remove_node(&self, node: &str) -> Result<(), String>;

    /// Re-admits a removed node. Blocks.
    ///
    /// # Errors
    /// No such node, it was not removed, or the engine does not answer.
    fn add_node(&self, node: &str) -> Result<(), String>;

    /// Checks for half a minute that no node acts for a shard, and returns what may be lost if this node opens it.
    /// Blocks.
    ///
    /// # Errors
    /// Another node acts for the shard, this node's member has stopped, the log lacks records that a member has, or the
    /// engine does not answer.
    fn look_at_opening(&self, shard: u16) -> Result<ShardOpening, String>;

    /// Makes this node take over a shard, at the revision from the check. Returns at once: [`status`](Self::status)
    /// shows the owner. Blocks for the engine.
    ///
    /// # Errors
    /// As for the check; or the shard's cell was written since.
    fn open_shard(&self, shard: u16, revision: u64) -> Result<(), String>;

    /// Changes data shared by all nodes: durable in the engine on return. Waits a few seconds until all nodes have the
    /// change. Blocks.
    ///
    /// # Errors
    /// The engine does not answer: the text says if the change may have been made.
    fn share(&self, changes: &[SharedChange]) -> Result<Spread, String>;

    /// Passes matching entries of this node's suppression list to `show`, until it returns false. Blocks.
    ///
    /// # Errors
    /// The list cannot be read.
    fn suppressed(&self, wanted: &SuppressionFilter, show: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String>;

    /// Passes matching entries to `show` that bounces and complaints have put on this node's list and other nodes do
    /// not have yet. Blocks.
    ///
    /// # Errors
    /// The list cannot be read.
    fn unshared(&self, wanted: &SuppressionFilter, show: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String>;

    /// Queries to the other nodes.
    fn others(&self) -> &dyn OtherNodes;

    /// The latest suspension of a scope, made or ended for all nodes.
    fn suspension(&self, scope: &Named) -> Option<SharedSuspension>;

    /// Begins a transaction under this node's home shard, or, if permitted, under another owned one. `None`: it accepts
    /// no mail now.
    fn begin(&self, must_be_home: bool) -> Option<Begun>;

    /// True while this node owns a shard that [`begin`](Self::begin) would take once the engine answers again, and the engine has been silent for less than
    /// [`ENGINE_PATIENCE`]. In a longer outage no client waits.
    fn waits_for_engine(&self, must_be_home: bool) -> bool;

    /// True if [`begin`](Self::begin) would begin one.
    fn takes_mail(&self) -> bool {
        self.begin(false).is_some()
    }
}

/// Begins a transaction. A client waits while the engine is silent, such as while it elects a leader, but not longer than for the reply to its message.
/// `None`: it must try another node, or again.
pub(crate) async fn begin_soon(cluster: &dyn NodeControl, must_be_home: bool) -> Option<Begun> {
    let until = Instant::now() + ENGINE_PATIENCE;
    loop {
        let begun = cluster.begin(must_be_home);
        if begun.is_some() || !cluster.waits_for_engine(must_be_home) || Instant::now() >= until {
            return begun;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The other nodes of a cluster, for commands about all of them.
pub(crate) trait OtherNodes: Send + Sync {
    /// The name of this node.
    fn me(&self) -> &str;

    /// The other nodes in the configuration. Blocks for a few seconds at most.
    fn list(&self) -> Vec<OtherNode>;

    /// Asks nodes at once. The answers are in the same order; of an error, the text is the reason. Blocks, for hardly longer than `patience`, and less for silent nodes.
    fn ask_each(&self, nodes: &[OtherNode], question: &Bytes, patience: Duration) -> Vec<Result<Bytes, String>>;

    /// The node that owns a shard, by its cell. `None`: it has no owner now, or the engine does not answer. Blocks.
    fn owner_of(&self, shard: u16) -> Option<String>;

    /// Answers the questions of others from now on, until this node stops.
    fn answer(&self, answerer: PeerAnswerer);
}

/// Another node on the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherNode {
    pub name: String,
    /// It has not written to the engine lately: most likely it does not run, or its clock is wrong.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub is_silent: bool,
}

/// Answers a question of another node. Blocks.
pub(crate) type PeerAnswerer = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;

/// A transaction under a shard, which is not handed over before it is dropped.
pub(crate) struct Begun {
    shard: Arc<ShardQueue>,
    _held: Box<dyn Send + Sync>,
}

impl Begun {
    /// `held`: a guard of the shard.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn new(shard: Arc<ShardQueue>, held: Box<dyn Send + Sync>) -> Self {
        Self { shard, _held: held }
    }

    /// The shard of the message.
    pub fn shard(&self) -> &Arc<ShardQueue> {
        &self.shard
    }
}

/// Longest wait of a client for the engine: at MAIL, and again for the reply to its message. Clients wait for 5 minutes
/// at least (RFC 5321 section 4.5.3.2.2).
pub(crate) const ENGINE_PATIENCE: Duration = Duration::from_secs(60);
/// Interval between two attempts. The node's thread checks as often.
const LOOK_EVERY: Duration = Duration::from_millis(200);
