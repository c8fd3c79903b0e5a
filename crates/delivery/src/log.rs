//! What keeps promised mail until it is delivered. Whoever consumes it sees this and never segments, so that another log,
//! such as a replicated one, can take the journal's place.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_journal::{AppendError, CheckpointError, CheckpointStats, Journal, ReadError, RecordId, StatsSnapshot};

/// A log of records that live until they are settled and what they led to is durable elsewhere.
///
/// What it held when it was opened, live records and the notes since the last checkpoint, is given beside it as a
/// [`Recovery`](posthaste_journal::Recovery); that is replayed.
pub trait Log: Send + Sync + 'static {
    /// Appends a record and calls `then` with its id once it is durable, in the order of the log, whether or not anybody still waits.
    /// `then` must be quick and must not block.
    fn append(&self, kind: u8, parts: Vec<Bytes>, then: impl FnOnce(Result<RecordId, AppendError>) + Send + 'static);

    /// Appends a note, which nobody waits for and a power cut may take; a checkpoint that begins later forgets it.
    fn note(&self, kind: u8, parts: Vec<Bytes>);

    /// Appends a note that is durable when this returns, also in a log that is full. Blocks.
    ///
    /// # Errors
    /// Any: it may be on record or not.
    fn note_durably(&self, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError>;

    /// Waits until all that was appended before is durable or refused. Blocks.
    ///
    /// # Errors
    /// The log takes nothing any more.
    fn commit(&self) -> Result<(), AppendError>;

    /// Puts a new version in the place of a live record. Blocks.
    ///
    /// # Errors
    /// Any: the old version stays, or both are there and the new one counts.
    fn replace(&self, id: RecordId, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError>;

    /// Declares that records have been dealt with, visibly though perhaps not durably.
    fn settle(&self, ids: &[RecordId]);

    /// The payload of a record that no checkpoint has forgotten; `None` if there is none.
    ///
    /// # Errors
    /// It is there and cannot be read.
    fn read(&self, id: RecordId) -> io::Result<Option<Bytes>>;

    /// Forgets what was settled and noted before this call, once `make_durable` has made durable what it led to. What `make_durable`
    /// itself appends is kept. Blocks; calls take turns.
    ///
    /// # Errors
    /// Nothing was forgotten; after [`CheckpointError::MakeDurable`] the records that it names are live again.
    fn checkpoint(&self, make_durable: impl FnOnce() -> io::Result<()>) -> Result<CheckpointStats, CheckpointError>;

    /// Bytes that were used since opening; the records' own and what lies between them. Called for each message, so it is cheap.
    fn bytes_used(&self) -> u64;

    /// How many more may be used before a checkpoint should begin, so that the log does not become full; `u64::MAX` where it cannot.
    fn checkpoint_after(&self) -> u64;

    /// Why nothing is accepted any more, if so.
    fn poisoned(&self) -> Option<Arc<str>>;

    /// Counters since opening.
    fn stats(&self) -> StatsSnapshot;
}

impl Log for Journal {
    fn append(&self, kind: u8, parts: Vec<Bytes>, then: impl FnOnce(Result<RecordId, AppendError>) + Send + 'static) {
        self.append_then(kind, parts, then);
    }

    fn note(&self, kind: u8, parts: Vec<Bytes>) {
        self.append_note(kind, parts);
    }

    fn note_durably(&self, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError> {
        self.append_note_durably(kind, parts).wait().map(drop)
    }

    fn commit(&self) -> Result<(), AppendError> {
        self.flush()
    }

    fn replace(&self, id: RecordId, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError> {
        Journal::replace(self, id, kind, parts).wait().map(drop)
    }

    fn settle(&self, ids: &[RecordId]) {
        self.settle_all(ids.iter().copied());
    }

    fn read(&self, id: RecordId) -> io::Result<Option<Bytes>> {
        match Journal::read(self, id) {
            Ok((_, payload)) => Ok(Some(payload)),
            Err(ReadError::NotFound(_)) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn checkpoint(&self, make_durable: impl FnOnce() -> io::Result<()>) -> Result<CheckpointStats, CheckpointError> {
        Journal::checkpoint(self, make_durable)
    }

    fn bytes_used(&self) -> u64 {
        Journal::bytes_used(self)
    }

    fn checkpoint_after(&self) -> u64 {
        Journal::checkpoint_after(self)
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        Journal::poisoned(self)
    }

    fn stats(&self) -> StatsSnapshot {
        Journal::stats(self)
    }
}
