//! The shards of which this node is a member, for reception and commands.

use std::sync::Arc;

use posthaste_intake::{Destination, Intake};

use crate::receive::relay_slot::RelaySlot;

/// A shard that this node is a member of: its intake, and its queue for other hosts.
pub(crate) struct ShardQueue {
    number: u16,
    intake: Intake,
    owner: Arc<RelaySlot>,
    standby: RelaySlot,
    destinations: Vec<Arc<dyn Destination>>,
}

impl ShardQueue {
    /// `owner`: the queue while this node owns the shard. `destinations`: those of mail under the shard, including the
    /// queue.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn new(number: u16, intake: Intake, owner: Arc<RelaySlot>, destinations: Vec<Arc<dyn Destination>>) -> Self {
        Self { number, intake, owner, standby: RelaySlot::default(), destinations }
    }

    /// The number of the shard, which is part of its message ids.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Accepts mail while this node owns the shard.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Destinations of mail under the shard.
    pub fn destinations(&self) -> &[Arc<dyn Destination>] {
        &self.destinations
    }

    /// The queue, open while this node owns the shard.
    pub fn owner(&self) -> &Arc<RelaySlot> {
        &self.owner
    }

    /// The queue, open while another node owns the shard: it only follows.
    pub fn standby(&self) -> &RelaySlot {
        &self.standby
    }
}
