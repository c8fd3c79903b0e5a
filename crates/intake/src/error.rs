//! Errors of acceptance.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use posthaste_spool::AppendError;

/// Why a message is not accepted, for all recipients. The variant decides the reply to the sender; the payload
/// explains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntakeError {
    /// A destination refuses it.
    #[error("{}", .0.why)]
    NotTaken(NotTaken),
    /// Space, inodes or another resource are exhausted: try again later (452 4.3.1).
    #[error("no space left for the message: {0}")]
    Full(#[source] io::Error),
    /// A write or a sync of the spool failed. Tell the operator: the device is failing or the file system has gone read-only.
    #[error("the message could not be made durable: {0}")]
    Sync(#[source] io::Error),
    /// Message and recipients together exceed the size of a record of the spool: never try it again (552 5.3.4).
    #[error("a message of {bytes} bytes with its recipients is over the limit of {limit}")]
    TooLarge {
        /// Bytes of its record.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// Too much mail waits to be written: try again soon (451 4.3.2).
    #[error("too much mail waits to be written")]
    Busy,
    /// Its sender cancelled it before it was durable.
    #[error("the message was cancelled before it was durable")]
    Cancelled,
    /// The intake was closed.
    #[error("no more mail is accepted")]
    Closed,
}

/// The reason why a destination refuses a message, for now or for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTaken {
    /// The kind of reason.
    pub cause: NotTakenCause,
    /// The reply's code (RFC 5321 section 4.2), which tells the sender whether to try again.
    pub code: u16,
    /// Enhanced code (RFC 3463) of the reply.
    pub status: &'static str,
    /// Text of the reply.
    pub text: Cow<'static, str>,
    /// The mailbox, server or limit concerned, if it is a single one. For the operator.
    pub about: Option<Arc<str>>,
    /// The reason, for the operator.
    pub why: String,
}

/// The kind of reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTakenCause {
    /// Too much mail waits for its place.
    PlaceFull,
    /// Too much mail waits in a queue.
    QueueFull,
    /// The destination is not open.
    NotOpen,
    /// The place cannot exist.
    Unusable,
}

impl IntakeError {
    /// Classifies an error of an operation on the file of a large body.
    pub(crate) fn of_file(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(error),
            _ => Self::Sync(error),
        }
    }
}

impl From<AppendError> for IntakeError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full(_) => Self::Full(io::Error::new(io::ErrorKind::StorageFull, error)),
            AppendError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            AppendError::Busy => Self::Busy,
            AppendError::Closed => Self::Closed,
            AppendError::Local(_) => Self::Full(io::Error::other(error)),
            other => Self::Sync(io::Error::other(other)),
        }
    }
}
