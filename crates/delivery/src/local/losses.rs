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
    /// LSN of the batch that had the body.
    pub id: u64,
    /// Time of reception, in seconds since 1970.
    pub received_secs: u64,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Text of the read error.
    pub error: Arc<str>,
    /// File with the readable rest of the body; `None` if nothing was kept.
    pub kept: Option<PathBuf>,
    /// True if the mailbox still has a file of the message, from before a crash or a failed sync. The file stays; it
    /// may be incomplete.
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

/// Why every attempt will fail, and the file with the rest of the body.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub error: Arc<str>,
    pub kept: Option<PathBuf>,
    /// True if the mailbox has a file of the message.
    pub is_there: bool,
}

/// Decides if an attempt failed for good. First copies the readable rest of the body into a file.
///
/// # Errors
/// The failure may be temporary, or the bytes could not be copied: retry.
pub(crate) fn given_up(reader: &MessageReader, is_there: bool, failed: io::Error) -> io::Result<Lost> {
    let lost = reader.give_up(failed)?;
    Ok(Lost { error: lost.why.into(), kept: lost.kept, is_there })
}
