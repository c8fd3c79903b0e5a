//! For another stream of the spool that is to know what becomes of each target, such as an event log.

use std::fmt::Debug;
use std::sync::Arc;

use posthaste_spool::{Entry, Lsn};

use crate::entry::Failure;
use crate::reason::FailureReason;

/// Hears what becomes of targets. Called by workers: must not block.
pub trait Observer: Debug + Send + Sync {
    /// They have got it. What is returned goes into the batch that notes it: where a power cut loses the one, it loses the other, and the targets are delivered,
    /// and told of, again.
    fn delivered(&self, targets: Vec<TargetId>) -> Option<Entry>;

    /// That batch was refused, with an entry for so many targets.
    fn lost(&self, targets: u64);

    /// They cannot be delivered now, and are tried again: told once for each target since the opening, and again if it fails in another way.
    fn waits(&self, targets: Vec<TargetId>, failure: Failure, error: FailureReason);

    /// The body of its message is lost, or an operator has dropped it. It is not tried again.
    fn given_up(&self, target: TargetId, error: Arc<str>);
}

/// Names one target of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetId {
    /// The batch that has the message's body.
    pub message: Lsn,
    /// Its number among the message's targets for transports.
    pub number: u16,
    /// The transport as the configuration has it.
    pub transport: Arc<str>,
    /// The address that the transport gets it for.
    pub recipient: Arc<str>,
}
