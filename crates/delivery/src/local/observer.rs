//! Observers of each target's outcome, such as an event log in another stream of the spool.

use std::fmt::Debug;
use std::sync::Arc;

use posthaste_spool::{Entry, Lsn};

/// Receives the outcome of each target. Called on the threads of a mount, which wait for it: must not block.
pub trait DeliveryObserver: Debug + Send + Sync {
    /// Targets are visible in their mailboxes. The returned entry goes into the batch with the *visible* entry: a power
    /// cut loses both or none. If both, the targets are delivered and reported again.
    fn visible(&self, targets: Vec<MailboxTargetId>) -> Option<Entry>;

    /// The batch with the *visible* entry was refused; it had an entry for this many targets.
    fn lost(&self, targets: u64);

    /// A target cannot be delivered now and is retried. Called once for each target since the opening.
    fn waits(&self, target: MailboxTargetId, error: Arc<str>);

    /// The body of a target's message is lost: no retry. Called at least once, before anything is released.
    fn given_up(&self, target: MailboxTargetId, error: Arc<str>);
}

/// Identifies one target of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxTargetId {
    /// The batch with the message's body.
    pub message: Lsn,
    /// Its number among all targets of the message.
    pub number: u16,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
}
