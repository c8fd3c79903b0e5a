//! Undeliverable mail with a lost body: given up and reported, never silently.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_spool::MessageReader;

/// A message given up for one mailbox: its body in the spool is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LostMailboxMail {
    /// The spool's batch that had its body.
    pub id: u64,
    /// Time of reception, in seconds since 1970.
    pub received_secs: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// The error.
    pub error: Arc<str>,
    /// The file with the rest of the body, if there is any.
    pub kept: Option<PathBuf>,
    /// The mailbox still has a file of the message, from before a crash or a failed sync. It stays; it may or may not
    /// be whole.
    pub is_there: bool,
}

/// Receives each message given up. Called by the delivering thread, which waits for it.
#[derive(Clone)]
pub struct Losses(Arc<dyn Fn(&LostMailboxMail) + Send + Sync>);

impl Losses {
    /// Calls `tell` with each message.
    pub fn new(tell: impl Fn(&LostMailboxMail) + Send + Sync + 'static) -> Self {
        Losses(Arc::new(tell))
    }

    pub(super) fn tell(&self, lost: &LostMailboxMail) {
        (self.0)(lost);
    }
}

impl Default for Losses {
    /// Drops all reports.
    fn default() -> Self {
        Losses::new(|_| ())
    }
}

impl fmt::Debug for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Losses")
    }
}

/// The reason why every attempt will fail, and the rest of the body.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub error: Arc<str>,
    pub kept: Option<PathBuf>,
    /// True if the mailbox has a file of it.
    pub is_there: bool,
}

/// Decides if an attempt failed for good. The rest of the body is kept first.
///
/// # Errors
/// It did not, or the bytes could not be kept: retry.
pub(crate) fn given_up(reader: &MessageReader, is_there: bool, failed: io::Error) -> io::Result<Lost> {
    let lost = reader.give_up(failed)?;
    Ok(Lost { error: lost.why.into(), kept: lost.kept, is_there })
}
