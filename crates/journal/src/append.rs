//! The outcome of an append, and who waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};

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
    /// More bytes wait than [`Config::max_pending_bytes`]: come back when some are written.
    #[error("too many bytes wait to be written")]
    Busy,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// Resolves when the record is durable: `Ok` carries its id, and from then on a power cut cannot lose it.
pub struct Append(Arc<Slot>);

impl Append {
    /// One that is yet to be filled.
    pub(crate) fn pending() -> (Self, Fill) {
        let slot = Arc::new(Slot::default());
        (Append(slot.clone()), Fill(slot))
    }

    /// One that is refused at once.
    pub(crate) fn refused(error: AppendError) -> Self {
        let (append, fill) = Self::pending();
        fill.put(Err(error));
        append
    }

    /// Blocks the thread until the record is durable or refused.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn wait(self) -> Result<RecordId, AppendError> {
        let mut state = self.0.state.lock().expect("slot lock");
        loop {
            match &state.outcome {
                Some(outcome) => return outcome.clone(),
                None => state = self.0.filled.wait(state).expect("slot lock"),
            }
        }
    }
}

impl Future for Append {
    type Output = Result<RecordId, AppendError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock().expect("slot lock");
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Where an outcome is put for whoever waits, be it a task or a thread.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    filled: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<Result<RecordId, AppendError>>,
    waker: Option<Waker>,
}

/// Fills a slot; with [`AppendError::Closed`] if it is dropped before it was told anything.
pub(crate) struct Fill(Arc<Slot>);

impl Fill {
    pub(crate) fn put(&self, outcome: Result<RecordId, AppendError>) {
        let mut state = self.0.state.lock().expect("slot lock");
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
            self.0.filled.notify_all();
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.put(Err(AppendError::Closed));
    }
}
