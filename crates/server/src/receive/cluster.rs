//! A node of a cluster, as reception and commands know it.

use posthaste_control::{ClusterCheck, ClusterStatus};

/// A node of a cluster, for receiving mail and for the operator's commands.
pub(crate) trait ClusterDoor: Send + Sync {
    /// Its shards, as it knows them and as the engine answers now. Blocks.
    fn status(&self) -> ClusterStatus;

    /// The engine's settings, and the nodes by their cells. Takes some seconds. Blocks.
    fn check(&self) -> ClusterCheck;

    /// Gives all shards away and takes none any more, until the process starts again. Returns once this node holds none, which may be never while no other
    /// member is in sync: the request stays in force when nobody waits any more. Blocks.
    fn drain(&self);

    /// Has a shard go to a node, or to the member in sync that has the most. Returns at once: [`status`](Self::status) shows the new owner.
    /// Nothing happens if this node does not own it, or the other one cannot take it.
    fn move_shard(&self, shard: u16, to: Option<&str>);

    /// Begins a transaction under the shard that this node takes mail for. `None`: it takes none now.
    fn begin(&self) -> Option<Begun>;

    /// True if [`begin`](Self::begin) would begin one.
    fn takes_mail(&self) -> bool {
        self.begin().is_some()
    }
}

/// A transaction under a shard, which is not handed over before it is dropped.
pub(crate) type Begun = Box<dyn Send + Sync>;
