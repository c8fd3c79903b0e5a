//! Requests to the engine and orders to shards, as they wait for the driver.

use std::collections::VecDeque;

use bytes::Bytes;
use posthaste_random::Random;

use crate::LogPosition;
use crate::cell::{CellKey, NodeName};
use crate::sender::SenderEnd;

/// A request to the engine, or an order to the shard. In order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnershipEffect {
    /// Read a cell and call [`got`](crate::ShardOwnership::got).
    Get {
        /// Key of the cell.
        key: CellKey,
        /// Returned with the answer.
        request: u64,
    },
    /// Swap a cell and call [`swapped`](crate::ShardOwnership::swapped), after a few seconds at most.
    Swap {
        /// Key of the cell.
        key: CellKey,
        /// The revision that it must have.
        revision: u64,
        /// New value of the cell.
        value: Bytes,
        /// Returned with the answer.
        request: u64,
    },
    /// Ask the log for its end and call [`log_end`](crate::ShardOwnership::log_end).
    LogEnd {
        /// The shard.
        shard: u16,
    },
    /// Append an `open` at the end of the log, apply the log up to it, and call
    /// [`opened`](crate::ShardOwnership::opened) or [`ended`](crate::ShardOwnership::ended).
    Open {
        /// The shard.
        shard: u16,
        /// The epoch.
        epoch: u64,
        /// Nonce of the `open` record.
        nonce: u64,
    },
    /// This node owns the shard: begin to act.
    Promote {
        /// The shard.
        shard: u16,
    },
    /// Take nothing new, let all work in progress end, and call [`released`](crate::ShardOwnership::released).
    Release {
        /// The shard.
        shard: u16,
    },
    /// This node no longer owns the shard: become a standby.
    Demote {
        /// The shard.
        shard: u16,
    },
    /// Cut the log.
    Cut {
        /// The shard.
        shard: u16,
        /// The first position to keep.
        below: LogPosition,
    },
    /// Append a `digest` record.
    Digest {
        /// The shard.
        shard: u16,
    },
    /// The state of a member differs from the owner's: it needs seeding.
    Differs {
        /// The shard.
        shard: u16,
        /// The member.
        node: NodeName,
    },
    /// The shard stops until an operator intervenes.
    Stopped {
        /// The shard.
        shard: u16,
        /// The cause.
        why: StopReason,
    },
    /// Another process uses this node's name: this one must exit.
    NameTaken,
    /// This node was removed: this process must exit.
    Removed,
}

/// Why a shard stops.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// Records that a member has applied are gone.
    #[error("{}, and {node} has applied position {applied}", end_of(*.end))]
    LogRolledBack {
        /// The last position of the log.
        end: LogPosition,
        /// A member that has more.
        node: NodeName,
        /// The last position that it has applied.
        applied: LogPosition,
    },
    /// The cell is older than the last one read.
    #[error("the shard's cell is older than one that was read before: the engine was restored or its data lost")]
    CellRolledBack,
    /// The cell cannot be decoded.
    #[error("the shard's cell is damaged, or a newer release wrote it")]
    CellDamaged,
    /// The log cannot be read or written any further.
    #[error("{0}")]
    Log(SenderEnd),
}

fn end_of(end: LogPosition) -> String {
    if end == LogPosition::START { "the log is gone".to_owned() } else { format!("the log ends at position {end}") }
}

/// Effects, and numbers for them.
#[derive(Debug)]
pub(crate) struct Outbox {
    effects: VecDeque<OwnershipEffect>,
    random: Random,
    requests: u64,
}

impl Outbox {
    /// For a process that has just started. `seed`: random for each start of the process.
    pub fn new(seed: u64) -> Self {
        Outbox { effects: VecDeque::new(), random: Random::of(seed, 0x0e), requests: 0 }
    }

    /// The next effect, if any.
    pub fn pop(&mut self) -> Option<OwnershipEffect> {
        self.effects.pop_front()
    }

    pub fn push(&mut self, effect: OwnershipEffect) {
        self.effects.push_back(effect);
    }

    fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    pub fn nonce(&mut self) -> u64 {
        self.random.next()
    }

    pub fn get(&mut self, key: CellKey) -> u64 {
        let request = self.request();
        self.push(OwnershipEffect::Get { key, request });
        request
    }

    pub fn swap(&mut self, key: CellKey, revision: u64, value: Bytes) -> u64 {
        let request = self.request();
        self.push(OwnershipEffect::Swap { key, revision, value, request });
        request
    }
}
