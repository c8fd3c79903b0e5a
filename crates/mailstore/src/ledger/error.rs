//! Errors of the ledger.

use posthaste_spool::{AppendError, ReplayError, StreamError};

use crate::table::MetaError;

/// Why the mailboxes cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailLedgerError {
    /// The table cannot be read or written.
    #[error(transparent)]
    Table(#[from] MetaError),
    /// The stream could not be registered.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream could not be read.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The batch was refused. Nothing has changed, unless a write or sync of the spool failed: then the next opening
    /// decides.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The table could not be written for a long time, and the memory for further changes is used up.
    #[error("too many changes wait for the table of mailboxes")]
    TooMuchWaits,
    /// The mailbox has used all its UIDs.
    #[error("the mailbox has no UIDs left")]
    OutOfUids,
    /// The file beside the table that counts losses cannot be read or written.
    #[error("cannot use the file of skipped UIDs: {0}")]
    SkipFile(std::io::Error),
    /// The thread that commits could not be started.
    #[error("cannot start a thread for the table of mailboxes: {0}")]
    Thread(std::io::Error),
}

impl MailLedgerError {
    /// True if the batch may nevertheless be durable: a write or sync failed, or the spool was closed meanwhile. The
    /// next opening decides.
    pub(crate) fn is_in_doubt(&self) -> bool {
        match self {
            Self::Append(error) => !matches!(
                error,
                AppendError::Full(_)
                    | AppendError::Busy
                    | AppendError::Local(_)
                    | AppendError::TooLarge { .. }
                    | AppendError::NoStream(_)
                    | AppendError::Entries(_)
            ),
            _ => false,
        }
    }
}
