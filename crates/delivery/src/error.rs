//! Errors of a delivery.

use std::fmt;
use std::io;
use std::sync::Arc;

use posthaste_intake::IntakeError;
use posthaste_maildir::{StoreError, UniqueName};

/// The name of a delivered message's file in `new/`. With a spool it is known before the file is written, without the
/// sizes (`,S=`, `,W=`) that follow in the directory: [`DeliveryExecutor::locate`](crate::DeliveryExecutor::locate)
/// finds the file.
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

    /// The parsed file name.
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

/// The reason why a message was not delivered. The variant decides what the caller can do; the payload explains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The mailbox cannot take mail: no permission, a file or a link in its place, a broken directory. Other mailboxes
    /// are not affected; a retry helps only after a repair.
    #[error("the mailbox cannot be written to: {0}")]
    Mailbox(#[source] io::Error),
    /// The path is not a possible mailbox: never retry (550 5.1.3).
    #[error("not a mailbox: {0}")]
    BadMailbox(Arc<str>),
    /// The message was not accepted, or could not be made durable: nobody gets it. Without a spool,
    /// [`IntakeError::Sync`] means that the sync of the message's batch failed. Then the whole batch on that file
    /// system counts as lost: deliver it again, and tell the operator.
    #[error(transparent)]
    Intake(#[from] IntakeError),
}

impl DeliveryError {
    /// Classifies an error of a mailbox by what the caller can do.
    pub(crate) fn of_mailbox(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => IntakeError::Full(e).into(),
            _ => Self::Mailbox(e),
        }
    }
}

impl From<StoreError> for DeliveryError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::Sync(e) => IntakeError::Sync(e).into(),
            StoreError::Message(e) => Self::of_mailbox(e),
            other => Self::Mailbox(io::Error::other(other)),
        }
    }
}
