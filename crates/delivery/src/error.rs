//! What a delivery ends with.

use std::fmt;
use std::io;
use std::sync::Arc;

use posthaste_intake::IntakeError;
use posthaste_maildir::{StoreError, UniqueName};

/// The name of a delivered message's file in `new/`. With a spool it is known before the file is written and stands
/// without the sizes (`,S=`, `,W=`) that follow in the directory: [`DeliveryExecutor::locate`](crate::DeliveryExecutor::locate) finds it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(UniqueName);

impl MessageId {
    pub(crate) fn new(name: UniqueName) -> Self {
        Self(name)
    }

    /// The file name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The file name, taken apart.
    pub fn name(&self) -> &UniqueName {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a message was not delivered. The variant decides what the caller can do; the payload explains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// This mailbox cannot take it: no permission, a file or a link in its place, a broken directory. Other mailboxes are not
    /// concerned; trying again helps once somebody has repaired it.
    #[error("the mailbox cannot be written to: {0}")]
    Mailbox(#[source] io::Error),
    /// No space, no inodes or no quota left for it: try again later (452 4.2.2 or 4.3.1).
    #[error("no space left for the mailbox: {0}")]
    Full(#[source] io::Error),
    /// A sync failed that was to cover it, so it counts as lost; the whole batch on that file system did. Deliver it again, and tell the operator: the
    /// device is failing or the file system has gone read-only.
    #[error("the message could not be made durable: {0}")]
    Sync(#[source] io::Error),
    /// The path names no mailbox that could be: never try it again (550 5.1.3).
    #[error("not a mailbox: {0}")]
    BadMailbox(Arc<str>),
    /// Message and recipients together are larger than a record of the spool can be: never try it again (552 5.3.4).
    #[error("a message of {bytes} bytes with its recipients is over the limit of {limit}")]
    TooLarge {
        /// Bytes of its record.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// More mail waits to be written than may; nothing was written: try again soon (451 4.3.2).
    #[error("too much mail waits to be written")]
    Busy,
    /// Its sender gave it up before it was durable: no mailbox gets it.
    #[error("the message was given up before it was durable")]
    Cancelled,
    /// The executor was shut down; nothing was written.
    #[error("the delivery executor was shut down")]
    Closed,
}

impl DeliveryError {
    /// Sorts an error of a mailbox by what can be done.
    pub(crate) fn of_mailbox(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(e),
            _ => Self::Mailbox(e),
        }
    }
}

impl From<StoreError> for DeliveryError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::Sync(e) => Self::Sync(e),
            StoreError::Message(e) => Self::of_mailbox(e),
            other => Self::Mailbox(io::Error::other(other)),
        }
    }
}

impl From<IntakeError> for DeliveryError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Full(error) => Self::Full(error),
            IntakeError::Sync(error) => Self::Sync(error),
            IntakeError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            IntakeError::Busy => Self::Busy,
            IntakeError::Cancelled => Self::Cancelled,
            IntakeError::Closed => Self::Closed,
            other => Self::Mailbox(io::Error::other(other)),
        }
    }
}
