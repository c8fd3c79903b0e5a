//! What the log tells.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_spool::Lsn;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, in microseconds since 1970.
    pub at_us: u64,
    /// What.
    pub kind: Kind,
}

impl Event {
    /// It has happened now.
    pub fn now(kind: Kind) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Event { at_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX), kind }
    }
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A message was received. In the batch that has the message, whose LSN is the message's number.
    Received(Received),
    /// Targets have got their message: it is visible in the mailbox. In the batch that notes this.
    Delivered(Delivered),
    /// A target could not get its message; it is tried again. Once for each target in each life of the server.
    Waiting(Waiting),
    /// A target will never get its message, whose body is lost.
    GivenUp(Waiting),
    /// What became of a message for programs, files and LMTP servers. What was delivered is in the batch that notes this.
    Transport(OfTransport),
    /// A client was refused, or broke off.
    Refused(Refused),
    /// Events are missing here.
    LeftOut(LeftOut),
}

/// A message that was received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// Its name in the server's log and in `Received`.
    pub id: Arc<str>,
    /// Who sent it.
    pub peer: Arc<str>,
    /// What the client called itself.
    pub helo: Arc<str>,
    /// The protocol, as in `Received`.
    pub with: Arc<str>,
    /// The reverse path, in brackets.
    pub sender: Arc<str>,
    /// The forward paths; the first [`LIST_MAX`] of [`recipient_count`](Self::recipient_count).
    pub recipients: Vec<Arc<str>>,
    /// How many there are.
    pub recipient_count: u32,
    /// Bytes of the message as it came.
    pub bytes: u64,
    /// Its `Message-ID`; empty if it has none.
    pub message_id: Arc<str>,
    /// The mailboxes; the first [`LIST_MAX`] of [`mailbox_count`](Self::mailbox_count). None: it is discarded.
    pub mailboxes: Vec<Arc<str>>,
    /// How many there are.
    pub mailbox_count: u32,
}

/// Targets that have got their message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Which.
    pub targets: Vec<Target>,
}

/// One mailbox of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The batch that has the message.
    pub message: Lsn,
    /// Its number among the message's targets.
    pub number: u16,
    /// The mailbox.
    pub mailbox: Arc<str>,
}

/// A target that could not get its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub target: Target,
    /// Why.
    pub error: Arc<str>,
}

/// What became of a message at some targets that are no mailboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfTransport {
    /// What.
    pub fate: Fate,
    /// Why, unless it was delivered.
    pub error: Arc<str>,
    /// Which; not all of one message.
    pub targets: Vec<TransportTarget>,
}

/// What becomes of a message for a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The transport has it.
    Delivered,
    /// It is tried again.
    Waiting,
    /// The transport does not want it, or has failed for too long: somebody has to look at it.
    Held,
    /// Its body is lost.
    GivenUp,
}

/// One recipient of a message at a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportTarget {
    /// The batch that has the message.
    pub message: Lsn,
    /// Its number among the message's targets for transports.
    pub number: u16,
    /// The transport.
    pub transport: Arc<str>,
    /// Whom it gets it for.
    pub recipient: Arc<str>,
}

/// A client that was refused something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Where in the session.
    pub stage: Stage,
    /// The message's name in the server's log, if it came so far.
    pub id: Arc<str>,
    /// Who it was.
    pub peer: Arc<str>,
    /// What the client called itself.
    pub helo: Arc<str>,
    /// The reverse path, in brackets, or nothing.
    pub sender: Arc<str>,
    /// The forward paths that this is about; the first [`LIST_MAX`] of [`recipient_count`](Self::recipient_count).
    pub recipients: Vec<Arc<str>>,
    /// How many there are.
    pub recipient_count: u32,
    /// What the client was told.
    pub reply: Arc<str>,
    /// What it was not told.
    pub why: Arc<str>,
}

/// What was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The connection.
    Connection,
    /// MAIL.
    Mail,
    /// RCPT.
    Recipient,
    /// The message, after its end.
    Message,
    /// Nothing: the client did not send its message to the end.
    Aborted,
}

/// Events that there was no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Refusals.
    pub refused: u64,
    /// Others.
    pub others: u64,
}

/// Names of a list that an event has.
pub const LIST_MAX: usize = 100;
