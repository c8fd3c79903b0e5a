//! A seam for tests: what happens to a mailbox, or to a sync of the mail, before the file system is asked.

use std::io;
use std::sync::Arc;

/// Asked before each step; may fail it, or hold it up as a disk that hangs does. The real thing has none.
pub(crate) type Gate = Arc<dyn Fn(Step<'_>) -> io::Result<()> + Send + Sync>;

/// What is about to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Something with this mailbox.
    Mailbox(&'a str),
    /// A sync of all mail.
    Sync,
}
