use std::sync::Arc;

use posthaste_smtp::Reply;
use posthaste_spool::{Entry, Lsn};

use super::ended::ReplyPlace;
use crate::queue::{Action, Imported, Key, QueueEntry, Secs};

/// Is told what happens, for a log. Its methods must not block.
pub trait Observer: Send + Sync {
    /// The outcome of recipients, told just before that is recorded. The entry goes into the batch that records it.
    fn attempts(&self, attempts: Vec<Attempt>) -> Option<Entry>;

    /// An operator's change of recipients, told just before it is recorded. The entry goes into the batch that records it.
    fn acted(&self, by: &By, action: Action, recipients: Vec<ActedOn>) -> Option<Entry>;

    /// True if [`acted`](Self::acted) has a use for its recipients; if not, it is not called, and addresses are not read.
    fn wants_acted(&self) -> bool;

    /// An operator's suspension, or the end of one, as it goes to the queue. The entry goes into its batch.
    fn suspended(&self, by: &By, entry: &QueueEntry) -> Option<Entry>;

    /// A message of another queue, told just before it is recorded. The entry goes into its batch.
    fn imported(&self, by: &By, message: &Imported, message_id: &str, bytes: u64) -> Option<Entry>;

    /// A site cannot be reached, or can be again.
    fn site(&self, state: &SiteState<'_>);

    /// TLS with a host has failed several times: under an opportunistic policy its mail goes in the clear for so many seconds.
    fn tls_avoided(&self, host: &str, error: &str, secs: u64);

    /// A source cannot be used (`error` says why), or can be again.
    fn source(&self, source: &str, error: Option<&str>);

    /// The queue, or a tenant's part of it, is full, or has room again.
    fn room(&self, state: &RoomState<'_>);

    /// Sending has stopped, as outcomes could not be recorded; or mail is sent again.
    fn recording(&self, state: &RecordingState<'_>);

    /// Something that the operator has to know of the queue, or of the message of this batch: it cannot be read, or its sender cannot be told.
    fn warn(&self, batch: Lsn, what: &str);
}

/// The outcome of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The recipient; of message [`Lsn::ZERO`] if a session was [interrupted](AttemptResult::Interrupted) while nobody waited for it.
    pub key: Key,
    /// The sender; empty for none.
    pub sender: Arc<str>,
    /// The recipient's address.
    pub recipient: Arc<str>,
    /// On whose account; empty for none.
    pub tenant: Arc<str>,
    /// The mailing; empty for none.
    pub campaign: Arc<str>,
    /// When the message was received, in Unix seconds of the queue's clock.
    pub received: Secs,
    /// When this happened, in the same.
    pub at: Secs,
    /// Attempts so far.
    pub attempts: u8,
    /// The result.
    pub result: AttemptResult,
    /// It is given up, and there is no sender to be told: it has none, or one that does not exist.
    pub is_double_bounce: bool,
    /// The host that said it; empty for none.
    pub host: Arc<str>,
    /// The stage that the reply answers: `MAIL`, `RCPT`, `DATA` or `message`; `greeting`, `EHLO` and the like if it ended the session; empty if no host has said it.
    pub stage: &'static str,
    /// The name of the source that it was sent from; empty for none.
    pub source: Arc<str>,
    /// The class of the reply; empty if it was delivered, too old or suppressed.
    pub class: Arc<str>,
    /// The reply, or what we say in its place.
    pub reply: Reply,
}

impl Attempt {
    /// An interruption while nobody waited.
    pub(super) fn of_no_message(at: Secs, place: ReplyPlace<'_>, class: Arc<str>, reply: Reply) -> Self {
        Attempt {
            key: Key { message: Lsn::ZERO, number: 0 },
            sender: Arc::default(),
            recipient: Arc::default(),
            tenant: Arc::default(),
            campaign: Arc::default(),
            received: at,
            at,
            attempts: 0,
            result: AttemptResult::Interrupted,
            is_double_bounce: false,
            host: place.host.clone(),
            stage: place.stage,
            source: Arc::default(),
            class,
            reply,
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The next hop has it.
    Delivered,
    /// It is tried again at that time of the queue's clock.
    Deferred {
        /// When.
        next: Secs,
    },
    /// The connection broke when all was written: the next hop may have it. It is tried again.
    Unknown {
        /// When.
        next: Secs,
    },
    /// A host has ended its session with a reply, before it has decided on the message: it is tried again at once, as if it had not been.
    Interrupted,
    /// It is given up: refused for good.
    Failed,
    /// It is given up: too old.
    Expired,
    /// It is given up: its address is on a suppression list.
    Suppressed,
}

/// The one who changes the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct By {
    /// The user of the system.
    pub uid: u32,
    /// The name of the token of who asks by HTTP; empty for who does not.
    pub token: String,
    /// Why.
    pub reason: String,
}

/// A recipient that an operator changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActedOn {
    /// The recipient.
    pub key: Key,
    /// Its address; empty if it cannot be read.
    pub recipient: Arc<str>,
}

/// Tells if a site can be reached.
#[derive(Debug, Clone)]
pub enum SiteState<'a> {
    /// Its sessions have failed so often in a row that it pauses.
    Unreachable {
        /// The source from which it was tried.
        source: &'a str,
        /// The site.
        site: &'a str,
        /// The last host's words or act.
        error: &'a str,
        /// Tries of all hosts, in a row, in which each session failed.
        failures: u32,
        /// Pauses in a row, with nothing accepted in between.
        pauses: u32,
        /// Seconds until it is tried again.
        pause_secs: u32,
    },
    /// It takes mail again.
    Reached {
        /// The source.
        source: &'a str,
        /// The site.
        site: &'a str,
    },
}

/// Tells if outcomes can be recorded. While they cannot, no mail is sent.
#[derive(Debug, Clone)]
pub enum RecordingState<'a> {
    /// The spool is poisoned: nothing is sent until it is opened again.
    Poisoned {
        /// Outcomes without a record: what was delivered of them is sent again then.
        unrecorded: u64,
        /// Why.
        why: &'a str,
    },
    /// New mail is not sent for now.
    Stopped {
        /// As above.
        unrecorded: u64,
        /// Why the spool refuses; `None`: it does not answer.
        why: Option<&'a str>,
    },
    /// Mail is sent again.
    GoesOn,
}

/// Tells if there is room in the queue.
#[derive(Debug, Clone)]
pub enum RoomState<'a> {
    /// The first recipient was refused.
    Full {
        /// Whose part is full; empty for all of it.
        tenant: &'a str,
        /// Recipients that wait.
        recipients: u64,
        /// Number of recipients that may wait.
        max: u64,
    },
    /// There is room again.
    Again {
        /// As above.
        tenant: &'a str,
        /// Recipients that were refused meanwhile.
        refused: u64,
    },
}

/// Counts since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Recipients that the next hop has.
    pub delivered: u64,
    /// Attempts that ended with a refusal for now, or nobody knows how.
    pub deferred: u64,
    /// Recipients that were given up.
    pub failed: u64,
    /// Recipients in the queue.
    pub recipients: u64,
    /// Recipients that are settled and whose sender is still to be told.
    pub owed_notices: u64,
    /// Connections open now.
    pub connections: usize,
    /// Connections among them that wait for messages.
    pub idle: usize,
    /// Sites that cannot be reached now.
    pub unreachable: usize,
    /// Recipients that were looked at to count or to list some.
    pub looked_at: u64,
    /// The time of the queue.
    pub now: Secs,
}
