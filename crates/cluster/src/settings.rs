//! The settings of a spool in a cluster, and the switches that break the rules of its writer.

use std::time::Duration;

use crate::reader::ReaderRules;
use crate::sender::{OwnerIdentity, SenderRules};

/// The settings of a [`ReplicatedSpool`](crate::ReplicatedSpool).
#[derive(Debug, Clone)]
pub struct ReplicatedConfig {
    /// The shard.
    pub shard: u16,
    /// The identity of this opening.
    pub identity: OwnerIdentity,
    /// Bytes of a segment of the local ring.
    pub segment_bytes: u64,
    /// Maximum bytes of entries and body in one record of the local ring, the smallest of all members.
    pub record_bytes_max: usize,
    /// Bytes that may wait to be sent; beyond, appends fail with
    /// [`AppendError::Busy`](posthaste_spool::AppendError::Busy).
    pub pending_bytes_max: u64,
    /// Interval between queries of the engine's room. The settings are checked at every twelfth.
    pub engine_pace: Duration,
    /// Streams that only the owner consumes: their advances are logged, too.
    pub owner_streams: Vec<String>,
    /// Rules that tests switch off.
    pub reader_rules: ReaderRules,
    /// Rules that tests switch off.
    pub sender_rules: SenderRules,
    /// Rules that tests switch off.
    pub writer_rules: WriterRules,
}

/// The rules of the owner's writer, each with a switch that breaks it, to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterRules {
    /// Acknowledges a batch when the local spool has it. Broken: when the log has it.
    pub after_local: bool,
    /// Resumes at the first part of an unfinished upload. Broken: after the last record.
    pub resume_at_parts: bool,
    /// Refuses a batch without room in the local spool before it is logged.
    pub room_first: bool,
}

impl Default for WriterRules {
    /// All rules are kept.
    fn default() -> Self {
        WriterRules { after_local: true, resume_at_parts: true, room_first: true }
    }
}
