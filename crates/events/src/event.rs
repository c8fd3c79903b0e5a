//! Events of the log.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_intake::ArrivalFacts;
use posthaste_spool::Lsn;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Time, in microseconds since 1970.
    pub at_us: u64,
    /// The kind.
    pub kind: EventKind,
}

impl Event {
    /// An event at the present time.
    pub fn now(kind: EventKind) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Event { at_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX), kind }
    }

    /// Number of its lines in the log.
    pub(crate) fn lines(&self) -> u64 {
        match &self.kind {
            EventKind::Delivered(delivered) => delivered.targets.len() as u64,
            EventKind::Transport(of) => of.targets.len() as u64,
            EventKind::Admin(admin) => admin.targets.len().max(1) as u64,
            EventKind::Received(_) | EventKind::Waiting(_) | EventKind::GivenUp(_) | EventKind::Relay(_) => 1,
            EventKind::Feedback(_)
            | EventKind::Refused(_)
            | EventKind::Login(_)
            | EventKind::TlsFailed(_)
            | EventKind::Shard(_)
            | EventKind::LeftOut(_) => 1,
        }
    }

    /// True for events that any client can cause, such as a refusal.
    pub(crate) fn is_refusal(&self) -> bool {
        match &self.kind {
            EventKind::Refused(_) | EventKind::TlsFailed(_) => true,
            EventKind::Login(login) => !login.reply.is_empty(),
            _ => false,
        }
    }
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A message was received. In the batch that has the message, unless that is in another spool.
    Received(ReceivedEvent),
    /// Targets have got their message: it is visible in the mailbox. In the batch that notes this.
    Delivered(Delivered),
    /// A target could not get its message; it is retried. Recorded once for each target and start of the server.
    Waiting(WaitingEvent),
    /// A target will never get its message: the body is lost.
    GivenUp(WaitingEvent),
    /// A message for programs, files and LMTP servers has changed. A delivery is in the batch that notes it.
    Transport(OfTransport),
    /// A recipient at another host has changed. In the batch that notes it.
    Relay(OfRelay),
    /// An operator has acted on the queue.
    Admin(Admin),
    /// Another system has reported on mail that was sent: a notification or a complaint.
    Feedback(Feedback),
    /// A client was refused, or broke off.
    Refused(RefusedEvent),
    /// A client has logged in, or was refused.
    Login(LoginEvent),
    /// TLS with another host was missing or failed.
    TlsFailed(TlsFailed),
    /// A shard of a cluster, or one of its members, needs an operator.
    Shard(ShardTrouble),
    /// Events are missing here.
    LeftOut(LeftOut),
}

/// A message that was received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedEvent {
    /// Its origin, with the first [`LIST_MAX`] of its recipients.
    pub facts: ArrivalFacts,
    /// The mailboxes; the first [`LIST_MAX`] of [`mailbox_count`](Self::mailbox_count). Empty if the message is
    /// discarded.
    pub mailboxes: Vec<Arc<str>>,
    /// The number of mailboxes.
    pub mailbox_count: u32,
    /// The account that is charged; empty for none.
    pub tenant: Arc<str>,
    /// The message's number, if its batch is in another spool. `None`: this batch.
    pub message: Option<Lsn>,
}

/// Targets that have got their message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Mailboxes that got the message.
    pub targets: Vec<MailboxRef>,
}

/// One mailbox of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxRef {
    /// The batch that has the message.
    pub message: Lsn,
    /// Its number among the message's targets.
    pub number: u16,
    /// The mailbox.
    pub mailbox: Arc<str>,
}

/// A target that could not get its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingEvent {
    /// Its target.
    pub target: MailboxRef,
    /// Text of the error.
    pub error: Arc<str>,
}

/// The outcome of a message at targets that are not mailboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfTransport {
    /// The outcome.
    pub fate: Fate,
    /// The stage of an LMTP session with the reply `error`; empty without a server's reply.
    pub stage: Arc<str>,
    /// Why, unless it was delivered.
    pub error: Arc<str>,
    /// The targets, possibly of several messages.
    pub targets: Vec<TransportTarget>,
}

/// The outcome of a message for a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The transport has it.
    Delivered,
    /// Waiting for a retry.
    Waiting,
    /// The transport refuses it, or has failed for too long: an operator has to look at it.
    Held,
    /// Given up: the body is lost.
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
    /// The recipient that this mailbox gets it for.
    pub recipient: Arc<str>,
}

/// The outcome of a recipient at another host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfRelay {
    /// The outcome.
    pub fate: RelayFate,
    /// LSN of the message's batch; [`Lsn::ZERO`] if a host ended a session while no mail waited for its site.
    pub message: Lsn,
    /// The recipient's number among the message's recipients at other hosts.
    pub number: u16,
    /// Attempts so far.
    pub attempts: u8,
    /// Seconds since the message was received.
    pub age_secs: u32,
    /// Time of the next attempt, in Unix seconds; 0 for none.
    pub next: u32,
    /// The reply's code.
    pub code: u16,
    /// The reply's enhanced code; empty without one.
    pub status: Arc<str>,
    /// The reply, or the server's own description.
    pub reply: Arc<str>,
    /// The host of the reply; empty without one.
    pub host: Arc<str>,
    /// The stage of the reply: `MAIL`, `RCPT`, `DATA`, `message`, `greeting`, `EHLO` and the like; empty without a
    /// host's reply.
    pub stage: Arc<str>,
    /// The source that it was sent from; empty for the system's choice.
    pub source: Arc<str>,
    /// The class of a failure, by the rules for replies; empty without one.
    pub class: Arc<str>,
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// The recipient's address.
    pub recipient: Arc<str>,
    /// The account that is charged; empty for none.
    pub tenant: Arc<str>,
    /// The campaign; empty for none.
    pub campaign: Arc<str>,
}

/// The outcome of a recipient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RelayFate {
    /// The next hop has accepted it.
    #[default]
    Delivered,
    /// Waiting for a retry.
    Deferred,
    /// The connection broke after the last octet: the next hop may have it. It is retried.
    Unknown,
    /// A host has ended the session with a reply before deciding on the message. It is retried at once.
    Interrupted,
    /// Given up: refused for good.
    Bounced,
    /// Expired: given up.
    Expired,
    /// Given up: the address is on a suppression list.
    Suppressed,
    /// It was given up, as another event says, and there is no sender to notify.
    DoubleBounced,
}

/// An act of an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admin {
    /// The action in one word, such as `hold`.
    pub action: Arc<str>,
    /// User id on this machine of the operator.
    pub uid: u32,
    /// The name of the token of an HTTP request; empty for none.
    pub token: Arc<str>,
    /// Why, in the operator's words.
    pub reason: Arc<str>,
    /// The kind of [`name`](Self::name), such as `domain`; empty if it concerns recipients.
    pub scope: Arc<str>,
    /// Object of the action.
    pub name: Arc<str>,
    /// End, in Unix seconds; 0 without an end.
    pub until: u32,
    /// Recipients affected.
    pub targets: Vec<AdminTarget>,
}

/// A recipient that an operator did something to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminTarget {
    /// The batch that has the message.
    pub message: Lsn,
    /// Number of the recipient among the message's recipients at other hosts.
    pub number: u16,
    /// Address of the recipient; empty if it could not be read.
    pub recipient: Arc<str>,
}

/// A report of another system on mail that was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The kind of report, such as `failed`, `delayed` or `abuse`.
    pub kind: Arc<str>,
    /// The batch that has the report.
    pub report: Lsn,
    /// The batch of the reported message; [`Lsn::ZERO`] if unknown.
    pub message: Lsn,
    /// The number of the reported recipient, if the message is known.
    pub number: u16,
    /// The reporter: a host or an address.
    pub reporter: Arc<str>,
    /// The sender of the message that it is about.
    pub sender: Arc<str>,
    /// Address of the recipient.
    pub recipient: Arc<str>,
    /// Its `Message-ID`.
    pub message_id: Arc<str>,
    /// The enhanced code.
    pub status: Arc<str>,
    /// The reason in the report.
    pub text: Arc<str>,
    /// The account that was charged for the message.
    pub tenant: Arc<str>,
    /// The mailing that it belonged to.
    pub campaign: Arc<str>,
}

/// A client that was refused something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEvent {
    /// Stage of the session.
    pub stage: RefusalStage,
    /// The message's id in the server's log, if it has one.
    pub id: Arc<str>,
    /// The client.
    pub peer: Arc<str>,
    /// The client's name in HELO or EHLO.
    pub helo: Arc<str>,
    /// The login; empty for none.
    pub user: Arc<str>,
    /// The reverse path, in brackets, or nothing.
    pub sender: Arc<str>,
    /// The forward paths that this is about; the first [`LIST_MAX`] of [`recipient_count`](Self::recipient_count).
    pub recipients: Vec<Arc<str>>,
    /// Number of recipients.
    pub recipient_count: u32,
    /// The reply to the client.
    pub reply: Arc<str>,
    /// Why the client was refused, for the operator only.
    pub why: Arc<str>,
}

/// The stage of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalStage {
    /// The connection.
    Connection,
    /// MAIL.
    Mail,
    /// RCPT.
    Recipient,
    /// The message, after its end.
    Message,
    /// The client did not send its message completely.
    Aborted,
}

/// A login attempt, without the password.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginEvent {
    /// The client.
    pub peer: Arc<str>,
    /// The client's name in HELO or EHLO.
    pub helo: Arc<str>,
    /// The local address and port; empty for a UNIX socket.
    pub listener: Arc<str>,
    /// The version of TLS; empty for none.
    pub tls: Arc<str>,
    /// The mechanism of SASL.
    pub mechanism: Arc<str>,
    /// The name of the login; as the client has written it if it was refused.
    pub user: Arc<str>,
    /// The reply to a refused client; empty if it has logged in.
    pub reply: Arc<str>,
    /// Why the login failed, for the operator only.
    pub why: Arc<str>,
}

/// A shard, or a member of it, that needs an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardTrouble {
    /// The number of the shard.
    pub shard: u16,
    /// `differs`: the queue of the member differs from the owner's. `stopped`: nothing acts for the shard at this node any more. `member stopped`: this node's copy does not go on.
    pub state: Arc<str>,
    /// The member.
    pub node: Arc<str>,
    /// The cause; empty where the state says all.
    pub why: Arc<str>,
}

/// A session with another host that was not opened for lack of TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFailed {
    /// The name of the host.
    pub host: Arc<str>,
    /// Name of the site.
    pub site: Arc<str>,
    /// The demand, such as `dane`.
    pub demand: Arc<str>,
    /// The result, such as `certificate`.
    pub result: Arc<str>,
    /// The error.
    pub error: Arc<str>,
}

/// Events that there was no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Refusals.
    pub refused: u64,
    /// Other events.
    pub others: u64,
}

/// Names of a list that an event has.
pub const LIST_MAX: usize = 100;
