//! Hooks for tests: the clock, and a gate before operations on mailboxes and mounts.

use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Called before each step; may make the step fail, or block it like a hanging disk.
pub(crate) type Gate = Arc<dyn Fn(Step<'_>) -> io::Result<()> + Send + Sync>;

/// Returns the time.
pub(crate) type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// An operation on this mailbox.
    Mailbox(&'a str),
    /// While writing one message to this mailbox.
    Message(&'a str),
    /// A check of the mount at this point below the mail root.
    Mount(&'a str),
    /// A sync of the mount at this point.
    SyncOf(&'a str),
}

/// Hooks for tests; unused in the program.
#[derive(Default)]
pub(crate) struct Seams {
    pub gate: Option<Gate>,
    pub clock: Option<Clock>,
}

impl Seams {
    pub fn pass(&self, step: Step<'_>) -> io::Result<()> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate(step))
    }

    pub fn now(&self) -> Instant {
        self.clock.as_ref().map_or_else(Instant::now, |clock| clock())
    }
}
