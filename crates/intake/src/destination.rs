//! Destinations of mail, and their view of a message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::{Entry, FrontFields};
use posthaste_watch::StuckWorker;

use crate::body::BodyFacts;
use crate::error::NotTaken;

/// A destination: mailboxes, a queue, a log. It has streams of the spool, and each message that concerns it has entries
/// for them.
///
/// A message is accepted in two steps. [`reserve`](Self::reserve) may refuse. Once all destinations have reserved,
/// [`stamp`](Self::stamp) is called for each, in list order, and the batch is appended. So stamps are in the order of
/// the log.
pub trait Destination: Send + Sync {
    /// Counts the messages that it still has to deliver. Visits every message.
    fn left(&self) -> Left {
        Left::default()
    }

    /// Figures since its opening.
    fn figures(&self) -> DestinationFigures {
        DestinationFigures::default()
    }

    /// Problems that keep its mail waiting, for the operator.
    fn troubles(&self) -> Vec<Trouble> {
        Vec::new()
    }

    /// Retries all waiting mail at once: the operator has reloaded the configuration, and may have fixed the cause.
    fn retry(&self) {}

    /// Starts nothing new, waits until `deadline` for work in flight, and ends. The rest waits for the next opening.
    /// Blocks.
    fn end_by(&self, deadline: Instant) {
        let _ = deadline;
    }

    /// Ready once it has stopped working without having been [ended](Self::end_by), which is a bug: its mail is in the
    /// spool. Not called again after that.
    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// Its workers that have become stuck or recovered; called every few seconds.
    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        let _ = now;
        Vec::new()
    }

    /// Checks that a place can take mail now, for so many recipients there. Called when a recipient is named, long
    /// before its message. Returns `Ok` for a place of another destination.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check(&self, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        let _ = (place, recipients);
        Ok(())
    }

    /// Adds its entries of a message to `reserved`; none if the message does not concern it. Takes the resources needed
    /// for publication. May wait, and holds no lock on return.
    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a>;

    /// A message was accepted and discarded.
    fn discarded(&self, mail: &Mail<'_>) {
        let _ = mail;
    }

    /// Completes its entries, known by their streams, with data that depend on the order of the log, immediately before
    /// the append. Cannot fail, does not wait and does no IO. The returned guard is dropped after the append, refused
    /// or not; then the order is fixed. A batch refused for lack of room is stamped again when it is retried.
    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        let _ = entries;
        None
    }
}

/// Held between a stamp and the end of its append, such as locks of mailboxes.
pub trait Guard {}

impl<T> Guard for T {}

/// Kept by a reservation until its batch is published or given up.
pub trait Held: Send + Sync {}

impl<T: Send + Sync> Held for T {}

/// A reservation: most complete at once, without an allocation.
pub enum Reserving<'a> {
    /// The reservation is complete.
    Done(Result<(), NotTaken>),
    /// The reservation is in progress.
    Waiting(Pin<Box<dyn Future<Output = Result<(), NotTaken>> + Send + 'a>>),
}

/// The reservations of all destinations of a message.
#[derive(Default)]
pub struct Reserved {
    /// The entries of the batch.
    pub entries: Vec<Entry>,
    /// Memory that destinations use for the message, in units of [`memory_units`](crate::memory_units). Each
    /// destination returns its part when it is done with the published message. Nothing is taken if the body is in a
    /// file.
    pub units: u64,
    /// Kept until the batch is published, refused for good, or cancelled.
    pub pins: Vec<Arc<dyn Held>>,
}

/// The envelope of a message, and other data for its destinations.
#[derive(Clone, Default)]
pub struct Mail<'a> {
    /// Origin of the message; `None` if it was made here and nobody records it.
    pub arrival: Option<&'a dyn Arrival>,
    /// Additional entries of its batch.
    pub also: Vec<Entry>,
    /// Header fields written before the body, for every reader.
    pub front: FrontFields,
    /// INTERNALDATE in seconds since 1970 (RFC 9051 section 2.3.3); `None`: the time of acceptance.
    pub internal_date: Option<u32>,
    /// The sender's address; empty for none.
    pub sender: String,
    /// The sender used for forwarded copies, if it differs.
    pub forwards_from: Option<String>,
    /// True if the client declared BODY=8BITMIME (RFC 6152).
    pub is_8bit: bool,
    /// True if its header needs SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// True if its author may sign it (DKIM): mail for other hosts whose header a map changes as it leaves is signed then.
    pub may_sign: bool,
    /// RET (RFC 3461 section 4.3).
    pub ret: Option<ReturnedPart>,
    /// ENVID as received; empty for none.
    pub envid: Arc<str>,
    /// Tenant whose account is charged for mail to other hosts; empty for none.
    pub tenant: Arc<str>,
    /// The campaign; empty for none.
    pub campaign: Arc<str>,
    /// The pool of sources to send from; empty for the tenant's.
    pub pool: Arc<str>,
    /// Seconds before it may leave (RFC 4865 FUTURERELEASE).
    pub hold_secs: u32,
    /// Seconds until it is given up; 0 if unspecified.
    pub expires_secs: u32,
    /// The recipients, each place once.
    pub recipients: Vec<MailRecipient>,
    /// Local recipients whose sender wants a notice of success once the message is durable.
    pub successes: Vec<SuccessHere>,
}

/// An accepted recipient whose sender wants a notice of success (NOTIFY=SUCCESS, RFC 3461 section 4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuccessHere {
    /// The address given by the sender, without brackets.
    pub address: Arc<str>,
    /// ORCPT as received; empty for none.
    pub orcpt: Arc<str>,
    /// True if any of its places is a mailbox: a notice says `delivered`. Otherwise it says `relayed`: programs, files
    /// and servers do not confirm a delivery.
    pub is_mailbox: bool,
}

/// Origin of a message, assembled only for destinations that record it.
pub trait Arrival: Sync {
    /// The facts, with at most `recipients_max` recipients.
    fn facts(&self, recipients_max: usize) -> ArrivalFacts;
}

/// Facts about the origin of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArrivalFacts {
    /// Id of the message in the server's log and in `Received`.
    pub id: Arc<str>,
    /// The sender.
    pub peer: Arc<str>,
    /// The name that the client gave itself.
    pub helo: Arc<str>,
    /// The protocol, as in `Received`.
    pub with: Arc<str>,
    /// The version of TLS, such as `TLSv1.3`; empty for none.
    pub tls: Arc<str>,
    /// The login; empty for none.
    pub user: Arc<str>,
    /// The reverse path, in brackets.
    pub sender: Arc<str>,
    /// The first of the forward paths.
    pub recipients: Vec<Arc<str>>,
    /// Number of recipients.
    pub recipient_count: u32,
    /// Bytes of the message as received.
    pub bytes: u64,
    /// `Message-ID` of the message; empty if it has none.
    pub message_id: Arc<str>,
    /// Results of the checks of its sender, such as `spf=pass dkim=pass dmarc=pass`; empty if there were none.
    pub auth: Arc<str>,
    /// Why they put it into Junk; empty: they did not.
    pub junk: Arc<str>,
}

/// Unfinished messages of a destination, which the next start continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Number of messages.
    pub messages: usize,
    /// The mailboxes, servers and the like that they wait for.
    pub places: usize,
}

/// Figures of a destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DestinationFigures {
    /// Recipients whose mail was delivered.
    pub delivered: u64,
    /// Failed attempts that are retried.
    pub failed_attempts: u64,
    /// Copies of messages waiting now.
    pub waiting: u64,
    /// True if all of its places have failed.
    pub stands_still: bool,
}

/// A problem that keeps mail waiting, for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Identifier, constant as long as the problem lasts.
    pub about: String,
    /// The stream of the spool that makes no progress; `None` if only some of its mail waits.
    pub stream: Option<String>,
    /// True if all mail for a place waits.
    pub is_urgent: bool,
    /// The problem, in one line.
    pub what: String,
    /// The remedy, as a command or a hint.
    pub help: String,
}

/// One recipient at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailRecipient {
    /// Where the mail goes: a mailbox, a transport, or the queue for other hosts.
    pub place: MailPlace,
    /// The address used for delivery there.
    pub address: Arc<str>,
    /// The address given by its sender, without brackets.
    pub original: Arc<str>,
    /// Header fields written before the body at this place only.
    pub prefix: Bytes,
    /// The part after the separator in `address`, for transports; else empty.
    pub detail: Arc<str>,
    /// ORCPT (RFC 3461 section 4.2), as received; empty for none.
    pub orcpt: Arc<str>,
    /// NOTIFY (RFC 3461 section 4.1), if specified.
    pub notify: Option<NotifyWhen>,
    /// True if it goes to another host than its sender named.
    pub is_forwarded: bool,
}

impl MailRecipient {
    /// A recipient without further data.
    pub fn to(place: MailPlace) -> Self {
        MailRecipient {
            place,
            address: Arc::default(),
            original: Arc::default(),
            prefix: Bytes::new(),
            detail: Arc::default(),
            orcpt: Arc::default(),
            notify: None,
            is_forwarded: false,
        }
    }
}

/// The place that the directory has chosen for a recipient's mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailPlace {
    /// A Maildir, by its path below the mail root.
    Maildir(Arc<str>),
    /// A transport, as written in the configuration.
    Transport(Arc<str>),
    /// The host that is responsible for the address.
    Remote,
}

/// NOTIFY (RFC 3461 section 4.1). NEVER sets none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyWhen {
    /// On success.
    pub success: bool,
    /// On failure.
    pub failure: bool,
    /// On a delay.
    pub delay: bool,
}

/// RET (RFC 3461 section 4.3): the part of the message that a failure notice returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnedPart {
    /// The whole message.
    Full,
    /// Its header.
    Headers,
}
