//! A node of a cluster: its shards, and what acts for them.

use posthaste_control::ClusterStatus;

/// A node of a cluster, for the operator's commands. All calls may block for the engine's answer.
pub(crate) trait ClusterDoor: Send + Sync {
    /// Its shards, as it knows them and as the engine answers now.
    fn status(&self) -> ClusterStatus;

    /// Gives all shards away and takes none any more, until the process starts again. Returns once this node holds none, which may be never while no other
    /// member is in sync: the request stays in force when nobody waits any more.
    fn drain(&self);

    /// Has a shard go to a node, or to the member in sync that has the most. Returns once that has begun: [`status`](Self::status) shows the new owner.
    ///
    /// # Errors
    /// This node does not own it, or the other node is no member.
    fn move_shard(&self, shard: u16, to: Option<&str>) -> Result<(), String>;
}
