//! For another stream of the spool that is to know what becomes of each target, such as an event log.

use std::fmt::Debug;
use std::sync::Arc;

use posthaste_spool::{Entry, Lsn};

/// Is told the outcome of each target. Called on the threads of a mount, which wait for it: must not block.
pub trait Observer: Debug + Send + Sync {
    /// They are visible in their mailboxes. What is returned goes into the batch that notes it: where a power cut loses the one, it loses the other, and the targets
    /// are delivered, and told of, again.
    fn visible(&self, targets: Vec<TargetId>) -> Option<Entry>;

    /// That batch was refused, with an entry for so many targets.
    fn lost(&self, targets: u64);

    /// It cannot be delivered now and is tried again: told once for each target since the opening.
    fn waits(&self, target: TargetId, error: Arc<str>);

    /// The body of its message is lost: it is not tried again. Told at least once, before anything is let go.
    fn given_up(&self, target: TargetId, error: Arc<str>);
}

/// Names one target of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetId {
    /// The batch that has the message's body.
    pub message: Lsn,
    /// Its number among all targets of the message.
    pub number: u16,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
}
