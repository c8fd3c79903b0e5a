//! The outcome of an append, and who waits for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::RecordId;

/// Why an append was refused. In every case nothing of the record will be found by a later recovery, except after
/// [`AppendError::Poisoned`], when it may or may not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// No space for it now, and nothing was written. A checkpoint or the operator may make some: reply 452.
    #[error("no space in the journal: {0}")]
    Full(Arc<str>),
    /// An earlier write or sync failed; nothing is accepted until the journal is opened again.
    #[error("the journal is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
    /// Longer than a segment can hold; keep the bytes in a file of their own.
    #[error("a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Payload bytes of the record.
        bytes: usize,
        /// Payload bytes that fit.
        limit: usize,
    },
    /// More bytes wait than [`Config::max_pending_bytes`](crate::Config::max_pending_bytes): come back when some are written.
    #[error("too many bytes wait to be written")]
    Busy,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// A record that is being made durable. It is queued, whether or not anybody waits.
#[derive(Debug)]
#[must_use = "the record may not be durable yet, and may be refused"]
pub struct Append(Receiver<Outcome>);

type Outcome = Result<RecordId, AppendError>;

impl Append {
    /// One that is yet to be told what became of the record.
    pub(crate) fn pending() -> (Self, SyncSender<Outcome>) {
        let (tell, outcome) = sync_channel(1);
        (Append(outcome), tell)
    }

    /// Blocks the thread until the record is durable or refused. `Ok` carries its id, and from then on a power cut cannot lose it.
    ///
    /// # Errors
    /// See [`AppendError`]; on all of them but `Poisoned` nothing was written.
    pub fn wait(self) -> Result<RecordId, AppendError> {
        // Whoever is dropped untold was in a journal that has been closed.
        self.0.recv().unwrap_or(Err(AppendError::Closed))
    }
}
