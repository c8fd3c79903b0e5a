//! Mail that can never be delivered, because its body is lost: given up and reported, never silently.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_spool::{Lsn, ReadError, SetAside, Spool};

/// A message that was given up for one mailbox: its body in the spool is damaged, or is not there any more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LostMail {
    /// The batch of the spool that had its body.
    pub id: u64,
    /// When it was received, in seconds since 1970.
    pub received_secs: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// The error.
    pub error: Arc<str>,
    /// The file with what is left of the body, if anything is.
    pub kept: Option<PathBuf>,
    /// The mailbox has a file of the message all the same, from before a crash or a failed sync. It stays as it is; nothing tells whether it is whole.
    pub is_there: bool,
}

/// Receives each message that is given up. Called by the delivering thread, which waits for it.
#[derive(Clone)]
pub struct Losses(Arc<dyn Fn(&LostMail) + Send + Sync>);

impl Losses {
    /// Calls `tell` with each message.
    pub fn new(tell: impl Fn(&LostMail) + Send + Sync + 'static) -> Self {
        Losses(Arc::new(tell))
    }

    pub(super) fn tell(&self, lost: &LostMail) {
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

/// Why no attempt will ever succeed, and what is left of the body.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub error: Arc<str>,
    pub kept: Option<PathBuf>,
    /// There is a file of it.
    pub is_there: bool,
}

/// A body that will never be read, as an [`io::Error`] carries it through what writes files.
#[derive(Debug, thiserror::Error)]
#[error("its body cannot be read: {0}")]
struct Unreadable(ReadError);

/// A failed read of a body, as an error of writing the message.
pub(crate) fn read_failed(error: ReadError) -> io::Error {
    match error {
        // All else may be put right: a missing file put back, an index repaired, a disk.
        ReadError::Damaged { .. } | ReadError::NotFound(_) => {
            io::Error::new(io::ErrorKind::InvalidData, Unreadable(error))
        }
        error => io::Error::other(format!("its body cannot be read: {error}")),
    }
}

/// Decides if an attempt failed for good. Before that is said, what is left of the body is kept.
///
/// # Errors
/// It did not, or the bytes could not be kept: try again.
pub(crate) fn given_up(spool: &dyn Spool, body: Lsn, is_there: bool, failed: io::Error) -> io::Result<Lost> {
    let Some(Unreadable(error)) = failed.get_ref().and_then(|error| error.downcast_ref()) else { return Err(failed) };
    let lost = |kept| Lost { error: error.to_string().into(), kept, is_there };
    if matches!(error, ReadError::NotFound(_)) {
        return Ok(lost(None));
    }
    match spool.set_aside(body) {
        Ok(SetAside::Kept(path)) => Ok(lost(Some(path))),
        Ok(SetAside::Whole) => Err(failed),
        Ok(SetAside::Gone { why }) => Err(io::Error::other(format!("{error}; {why}"))),
        Err(kept) => Err(io::Error::new(kept.kind(), format!("{error}; what is left of it cannot be kept: {kept}"))),
    }
}
