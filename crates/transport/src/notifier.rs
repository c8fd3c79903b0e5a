//! The sender of notices about refused messages.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use posthaste_spool::Entry;

/// Notifies senders of messages that transports refuse.
pub trait RefusalNotifier: Debug + Send + Sync {
    /// Makes the notice durable, with `told` in its batch. Dropping the future leaves both or none.
    fn tell(&self, refused: RefusedMail, told: Entry) -> Telling;
}

/// The future of [`RefusalNotifier::tell`]: true if a notice was sent, which is then recorded. An error is retried.
pub type Telling = Pin<Box<dyn Future<Output = Result<bool, String>> + Send>>;

/// A message that a transport has permanently refused, for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedMail {
    /// The batch of the spool that has the body.
    pub id: u64,
    /// The transport.
    pub transport: Arc<str>,
    /// The recipient.
    pub recipient: Arc<str>,
    /// The recipient given by the sender.
    pub original: Arc<str>,
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// When the message was received, in seconds since 1970.
    pub received_secs: u64,
    /// Reply of the other side.
    pub reply: Arc<str>,
}
