//! Seams for tests: what time it is, and what happens to a mailbox, or to a sync of the mail, before the file system is asked.

use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Asked before each step; may fail it, or hold it up as a disk that hangs does.
pub(crate) type Gate = Arc<dyn Fn(Step<'_>) -> io::Result<()> + Send + Sync>;

/// Tells the time.
pub(crate) type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The step that is about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Something with this mailbox.
    Mailbox(&'a str),
    /// Writing one message into this mailbox.
    Message(&'a str),
    /// A look at the mount at this point below the mail root.
    Mount(&'a str),
    /// A sync of the mount at this point.
    SyncOf(&'a str),
}

/// A test's substitutes for the world. The real program has none.
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
