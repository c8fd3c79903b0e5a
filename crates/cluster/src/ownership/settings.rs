//! Settings of ownership, and the switches that break its rules.

use std::time::Duration;

use crate::cell::NodeName;

/// Settings of a [`ShardOwnership`](super::ShardOwnership).
#[derive(Debug, Clone)]
pub struct OwnershipConfig {
    /// The name of this node.
    pub node: NodeName,
    /// Random for each start of the process. Also the seed of nonces.
    pub incarnation: u64,
    /// Times and sizes.
    pub times: OwnershipTimes,
    /// Rules that tests switch off.
    pub rules: OwnershipRules,
}

/// Times and sizes of ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnershipTimes {
    /// Interval between two renewals of a lease.
    pub renew: Duration,
    /// Time for which the owner may act, from the sending of a renewal.
    pub lease: Duration,
    /// A session may begin a transaction if the engine has answered within this time.
    pub begin: Duration,
    /// Interval between two writes of the node's cell.
    pub report: Duration,
    /// Answered writes of the node's own cell without a change of a shard's cell, after which a standby takes the
    /// shard.
    pub silent_writes: u32,
    /// Like `silent_writes`, for a shard that was freed for another member.
    pub free_writes: u32,
    /// A standby waits for one more write for each such amount of lag.
    pub lag_of_write: Duration,
    /// Minimum time between two shards taken from silent owners by one node.
    pub between: Duration,
    /// Minimum time for which a shard stays before its home gets it back.
    pub stay: Duration,
    /// Time during which a node that could not act for a shard does not take it.
    pub pause: Duration,
    /// Maximum age of reports used for a cut.
    pub fresh: Duration,
    /// Time that a start waits for another process of the same name.
    pub name: Duration,
    /// Time after which a log that ends below a report counts as rolled back. Before, the answering server may lag.
    pub short: Duration,
    /// Records stay in the log for this time or for this many bytes, whichever is less.
    pub keep: (Duration, u64),
    /// Lag, as time or bytes, at which a member leaves the members in sync.
    pub behind_most: (Duration, u64),
    /// Lag in bytes below which a member is in sync again.
    pub behind_least: u64,
    /// Interval between two digests.
    pub digest: Duration,
}

impl Default for OwnershipTimes {
    fn default() -> Self {
        let secs = Duration::from_secs;
        OwnershipTimes {
            renew: secs(2),
            lease: secs(15),
            begin: secs(3),
            report: secs(1),
            silent_writes: 20,
            free_writes: 5,
            lag_of_write: secs(5),
            between: secs(5),
            stay: secs(60),
            pause: secs(60),
            fresh: secs(5),
            name: secs(3),
            short: secs(15),
            keep: (secs(600), 8 << 30),
            behind_most: (secs(3600), 32 << 30),
            behind_least: 8 << 20,
            digest: secs(600),
        }
    }
}

/// The rules of ownership, each with a switch that breaks it, to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnershipRules {
    /// The lease counts from the sending of a renewal. Broken: from its answer.
    pub lease_from_sending: bool,
    /// The owner stops acting at the end of its lease.
    pub lease_ends: bool,
    /// A standby counts answered writes. Broken: seconds.
    pub count_answered: bool,
    /// A process is identified by its incarnation. Broken: by its name.
    pub incarnation: bool,
    /// A lost answer to a swap is decided by reading. Broken: it counts as success.
    pub unknown_by_reading: bool,
    /// A log that ends below a member's report stops the shard.
    pub end_check: bool,
    /// Allows a takeover by members in sync only.
    pub in_sync_only: bool,
    /// A cut waits for two members and all that are in sync. Broken: for the owner.
    pub cut_by_two: bool,
    /// A cut uses fresh reports. Broken: of any age.
    pub fresh_reports: bool,
    /// A member whose digest differs needs seeding.
    pub digests: bool,
    /// A node takes one silent owner's shard at a time.
    pub one_at_a_time: bool,
    /// A process whose name another one uses ends.
    pub one_name: bool,
    /// A process of a removed node ends. Broken: it writes the node's cell again.
    pub removal: bool,
}

impl OwnershipRules {
    /// All rules are kept.
    pub const ALL: OwnershipRules = OwnershipRules {
        lease_from_sending: true,
        lease_ends: true,
        count_answered: true,
        incarnation: true,
        unknown_by_reading: true,
        end_check: true,
        in_sync_only: true,
        cut_by_two: true,
        fresh_reports: true,
        digests: true,
        one_at_a_time: true,
        one_name: true,
        removal: true,
    };
}
