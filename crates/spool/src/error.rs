//! Errors: one variant for each reaction of a caller.

use std::io;
use std::sync::Arc;

use crate::Lsn;

use crate::{StoreKind, StreamId};

/// Why a batch was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// No space now, in the ring or on the disk: refuse for now (452). The keeper was asked to make some.
    #[error("the spool is full: {0}")]
    Full(Arc<str>),
    /// Too many bytes wait to be written: retry soon.
    #[error("too many bytes wait to be written")]
    Busy,
    /// A local resource is missing, such as file descriptors: refuse for now, tell the operator.
    #[error("a local resource is missing: {0}")]
    Local(Arc<io::Error>),
    /// A write or a sync failed: nothing is accepted until the spool is reopened. It is unknown if this batch is
    /// durable.
    #[error("the spool is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
    /// Larger than a record can be: put the body into a file of its own.
    #[error("a batch of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of all entries and the body.
        bytes: usize,
        /// Maximum bytes of a record.
        limit: usize,
    },
    /// The batch names a stream that is not registered.
    #[error("there is no stream {0}")]
    NoStream(StreamId),
    /// The batch has no entry, or more than 65,535.
    #[error("a batch cannot have {0} entries")]
    Entries(usize),
    /// The spool was closed.
    #[error("the spool is closed")]
    Closed,
    /// Another node owns this spool now, and the batch is not stored: refuse temporarily (451).
    #[error("another node owns the spool now")]
    NotOwner,
}

/// Why a spool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the spool open.
    #[error("the spool is in use: stop the process that has it open, or use another directory")]
    Locked,
    /// Both checkpoints are damaged, missing or unreadable, and there are data to lose.
    #[error(
        "both files checkpoint.0 and checkpoint.1 of the spool are damaged, missing or unreadable; keep its directory: `posthaste spool repair --rebuild` makes a new spool from the remaining data"
    )]
    NoCheckpoint,
    /// Segments of the ring with batches are missing. Nothing was changed.
    #[error(
        "{0}; put the files back into ring/, or stop waiting for them with `posthaste spool repair --give-up-damaged`, which says what is lost"
    )]
    Missing(Box<dyn std::error::Error + Send + Sync>),
    /// The directory of records is missing or empty, although there were records. Nothing was changed.
    #[error(
        "{} holds no records, and the spool has had some: mount its disk, or put the directory back; or stop waiting for them with `posthaste spool repair --give-up-damaged`, which says what is lost",
        dir.display()
    )]
    NoRecords {
        /// The empty or missing directory.
        dir: std::path::PathBuf,
    },
    /// An earlier import into the directory was not finished.
    #[error("the import into the spool has not ended: repeat `posthaste spool import`")]
    Importing,
    /// The spool's kind differs from the configured one. Nothing was changed.
    #[error(
        "the spool is of the kind \"{found}\" and `storage.kind` says \"{wanted}\"; set it to \"{found}\", or move the mail: `posthaste spool export DIR --to EXPORT`, then `posthaste spool import NEW --from EXPORT --kind {wanted}`"
    )]
    OtherKind {
        /// The kind of the existing spool.
        found: StoreKind,
        /// The configured kind.
        wanted: StoreKind,
    },
    /// This program was built without support for the spool's kind.
    #[error("this program was built without spools of the kind \"{kind}\": build it with the feature of that name")]
    NotBuilt {
        /// The kind of the existing spool.
        kind: StoreKind,
    },
    /// The file system failed.
    #[error("cannot open the spool: {0}")]
    Io(#[from] io::Error),
    /// The log or database of the store could not be opened.
    #[error("{0}")]
    Log(Box<dyn std::error::Error + Send + Sync>),
}

/// Why a body, or the entries of its batch, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No stream needs any part of a batch with this LSN, or it has no body.
    #[error("no stream needs batch {0}")]
    NotFound(Lsn),
    /// The body is shorter than the range.
    #[error("the body of batch {lsn} has {len} bytes")]
    OutOfRange {
        /// LSN of the batch.
        lsn: Lsn,
        /// Length of its body in bytes.
        len: u64,
    },
    /// The body's checksum does not match. [`Spool::set_aside`](crate::Spool::set_aside) keeps a copy.
    #[error("the body of batch {lsn} is damaged: {what}")]
    Damaged {
        /// LSN of the batch.
        lsn: Lsn,
        /// Name of the part with a wrong checksum.
        what: String,
    },
    /// The body's file, its index or the batch's head is missing or damaged. An operator may restore or repair it.
    #[error("batch {lsn} cannot be reached: {what}")]
    Unreachable {
        /// LSN of the batch.
        lsn: Lsn,
        /// The missing or damaged part.
        what: String,
    },
    /// The disk failed.
    #[error("cannot read the body of batch {lsn}: {error}")]
    Io {
        /// LSN of the batch.
        lsn: Lsn,
        /// The read error.
        error: io::Error,
    },
}

/// A stream's snapshot could not be opened: the disk failed, so its content is unknown.
#[derive(Debug, thiserror::Error)]
#[error("snapshots/{name} cannot be read: {error}; `posthaste spool repair` goes on without it")]
pub struct RestoreError {
    /// Name of the snapshot.
    pub name: String,
    /// The read error.
    pub error: io::Error,
}

/// Why a stream could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The name is empty, longer than 200 bytes or has control characters.
    #[error("{0:?} is not a valid stream name")]
    Name(String),
    /// All 65,535 stream ids have been used; ids are never reused.
    #[error("no more streams can be registered")]
    TooMany,
    /// No stream has this name.
    #[error("there is no stream {0:?}")]
    Unknown(String),
    /// A consumer is attached to it.
    #[error("stream {0:?} has a consumer")]
    Attached(String),
    /// The change could not be made durable: the checkpoint failed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Why a checkpoint, or work that ends with one, failed. Then nothing was freed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system failed.
    #[error("{what}: {error}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The error of the file system.
        error: io::Error,
    },
    /// A write or a sync failed earlier, so the device is not trusted.
    #[error("the spool is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
}

impl CheckpointError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| CheckpointError::Io { what, error }
    }
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The stream does not exist.
    #[error("there is no stream {0}")]
    NoStream(StreamId),
    /// The stream already has a consumer.
    #[error("stream {0} has a consumer")]
    Attached(StreamId),
    /// The disk failed; the data may be intact.
    #[error("cannot read batch {lsn}: {error}")]
    Io {
        /// LSN of the batch.
        lsn: Lsn,
        /// The read error.
        error: io::Error,
    },
}

impl From<ReplayError> for io::Error {
    fn from(error: ReplayError) -> Self {
        io::Error::other(error)
    }
}

impl From<posthaste_ring::RingAppendError> for AppendError {
    fn from(error: posthaste_ring::RingAppendError) -> Self {
        use posthaste_ring::RingAppendError as Ring;
        match error {
            Ring::Full(why) => AppendError::Full(why),
            Ring::Local(error) => AppendError::Local(error),
            Ring::Poisoned(why) => AppendError::Poisoned(why),
            Ring::TooLarge { bytes, limit } => AppendError::TooLarge { bytes, limit },
            Ring::Busy => AppendError::Busy,
            Ring::Closed => AppendError::Closed,
            other => AppendError::Local(Arc::new(io::Error::other(other.to_string()))),
        }
    }
}
