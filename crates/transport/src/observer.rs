//! An observer of each target's outcome, such as an event log with its own stream.

use std::fmt::Debug;
use std::sync::Arc;

use posthaste_spool::{Entry, Lsn};

use crate::entry::Failure;
use crate::reason::FailureReason;

/// Receives the outcomes of targets. Called by workers: must not block.
pub trait TransportObserver: Debug + Send + Sync {
    /// Called when targets have the message. The returned entry goes into the batch that records it: a power cut
    /// loses both or neither. If it loses both, the targets are delivered and reported again.
    fn delivered(&self, targets: Vec<TargetId>) -> Option<Entry>;

    /// The batch with the entry for this many targets was refused.
    fn lost(&self, targets: u64);

    /// They cannot be delivered now, and are retried. Called once for each target since the opening, and again after a
    /// different failure.
    fn waits(&self, targets: Vec<TargetId>, failure: Failure, error: FailureReason);

    /// The body of its message is lost, or an operator has dropped it. No retry.
    fn given_up(&self, target: TargetId, error: Arc<str>);
}

/// Identifies one target of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetId {
    /// The batch that has the message's body.
    pub message: Lsn,
    /// Number of the target among the message's targets for transports.
    pub number: u16,
    /// The transport as configured.
    pub transport: Arc<str>,
    /// The address that the transport gets it for.
    pub recipient: Arc<str>,
}
