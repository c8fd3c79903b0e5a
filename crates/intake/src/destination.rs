//! A destination of mail, and what it is told of a message.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::{Entry, FrontFields};
use posthaste_watch::Found;

use crate::body::BodyFacts;

/// Where mail goes: mailboxes, a queue, a log. It has streams of the spool, and each message that concerns it has entries for them.
///
/// A message is accepted in two steps. [`reserve`](Self::reserve) may refuse; once all destinations have reserved, [`stamp`](Self::stamp) is called for each, in the
/// order of their list, and the batch is appended. What a stamp says is so in the order of the log.
pub trait Destination: Send + Sync {
    /// The messages that it has not done with. Visits every message.
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

    /// Begins nothing more, waits until `deadline` for what is under way, and ends. The rest waits for the next opening. Blocks.
    fn end_by(&self, deadline: Instant) {
        let _ = deadline;
    }

    /// Ready once it has stopped working although nobody has [ended](Self::end_by) it, which is a bug: its mail is in the spool. Not called again after that.
    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }

    /// Its workers that are stuck, or go on; asked every few seconds.
    fn look_for_stuck(&self, now: Instant) -> Vec<Found> {
        let _ = now;
        Vec::new()
    }

    /// Checks that mail for a place can be taken now, for so many recipients there; called when a recipient is named, long before its message. A place of
    /// another destination is not its business: `Ok`.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        let _ = (place, recipients);
        Ok(())
    }

    /// Adds its entries of a message to `reserved`; none if the message does not concern it. Takes what publication will need. May wait, and holds no lock when
    /// it returns.
    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a>;

    /// A message is accepted that goes nowhere.
    fn discarded(&self, mail: &Mail<'_>) {
        let _ = mail;
    }

    /// Completes its own of the entries, which are known by their streams, with what depends on the order of the log, immediately before the append. Cannot fail,
    /// does not wait and does no IO. What it returns is dropped when the append has returned, whether the batch was refused or not; then the order is fixed. A batch that
    /// was refused for want of room is stamped once more when it is tried again.
    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        let _ = entries;
        None
    }
}

/// Held between a stamp and the end of its append, such as the locks of mailboxes.
pub trait Guard {}

impl<T> Guard for T {}

/// Kept by a reservation until its batch is published or given up.
pub trait Held: Send + Sync {}

impl<T: Send + Sync> Held for T {}

/// A reservation: most are made at once, and cost no allocation.
pub enum Reserving<'a> {
    /// It is made.
    Done(Result<(), NotTaken>),
    /// It is being made.
    Waiting(Pin<Box<dyn Future<Output = Result<(), NotTaken>> + Send + 'a>>),
}

/// The reservations of all destinations of a message.
#[derive(Default)]
pub struct Reserved {
    /// The entries of the batch.
    pub entries: Vec<Entry>,
    /// Memory that destinations take for the message, in units of [`memory_units`](crate::memory_units). Each gives its part back by itself when it has let go of the
    /// message that was published; nothing is taken if the body is in a file.
    pub units: u64,
    /// Kept until the batch is published, refused for good, or cancelled.
    pub pins: Vec<Arc<dyn Held>>,
}

/// Why a destination does not take a message now, or ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTaken {
    /// The kind of reason.
    pub cause: NotTakenCause,
    /// The reply's code (RFC 5321 section 4.2); by it a sender knows whether to try again.
    pub code: u16,
    /// Its enhanced code (RFC 3463).
    pub status: &'static str,
    /// Its text.
    pub text: Cow<'static, str>,
    /// Of which mailbox, server or bound this is so, if of one. For the operator.
    pub about: Option<Arc<str>>,
    /// The reason, for the operator.
    pub why: String,
}

/// The kind of reason for which a message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTakenCause {
    /// Too much waits for its place.
    PlaceFull,
    /// Too much waits in a queue.
    QueueFull,
    /// The destination is not open.
    NotOpen,
    /// The place is none that could be.
    Unusable,
}

/// The envelope of a message, and what else its destinations are told.
#[derive(Clone, Default)]
pub struct Mail<'a> {
    /// Where it came from; `None`: it was made here, and nobody records that.
    pub arrival: Option<&'a dyn Arrival>,
    /// Further entries of its batch.
    pub also: Vec<Entry>,
    /// Header fields that are written in front of it, for every reader.
    pub front: FrontFields,
    /// INTERNALDATE in seconds since 1970 (RFC 9051 section 2.3.3); `None`: the time of acceptance.
    pub internal_date: Option<u32>,
    /// The sender's address; empty for none.
    pub sender: String,
    /// The sender that it gets for those to whom it is forwarded, if that is another.
    pub forwards_from: Option<String>,
    /// BODY=8BITMIME was said of it (RFC 6152).
    pub is_8bit: bool,
    /// Its header needs SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// RET (RFC 3461 section 4.3).
    pub ret: Option<ReturnedPart>,
    /// ENVID as received; empty for none.
    pub envid: Arc<str>,
    /// On whose account it is sent to other hosts; empty for none.
    pub tenant: Arc<str>,
    /// The mailing it belongs to; empty for none.
    pub campaign: Arc<str>,
    /// The pool of sources that it is sent from; empty for that of its tenant.
    pub pool: Arc<str>,
    /// It does not leave before so many seconds have gone by (RFC 4865 FUTURERELEASE).
    pub hold_secs: u32,
    /// It is given up after so many seconds; 0: not said.
    pub expires_secs: u32,
    /// The recipients, each place once.
    pub recipients: Vec<MailRecipient>,
}

/// Facts about where a message came from. It is put together only for those who record it.
pub trait Arrival: Sync {
    /// All of it, with so many recipients at most.
    fn facts(&self, recipients_max: usize) -> ArrivalFacts;
}

/// Where a message came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArrivalFacts {
    /// Its name in the server's log and in `Received`.
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
    /// Their number.
    pub recipient_count: u32,
    /// Bytes of the message as it came.
    pub bytes: u64,
    /// Its `Message-ID`; empty if it has none.
    pub message_id: Arc<str>,
}

/// Messages that a destination has not done with: the next start goes on with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Their number.
    pub messages: usize,
    /// The mailboxes, or servers and the like, that they wait for.
    pub places: usize,
}

/// Figures of a destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DestinationFigures {
    /// Recipients that got their mail.
    pub delivered: u64,
    /// Attempts that failed and are repeated.
    pub failed_attempts: u64,
    /// Copies of messages that wait now.
    pub waiting: u64,
    /// True if all of its places have failed.
    pub stands_still: bool,
}

/// Something that keeps mail waiting, for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Identifies it: the same at each look, as long as it lasts.
    pub about: String,
    /// The stream of the spool that makes no progress; `None` if some of its mail waits.
    pub stream: Option<String>,
    /// All mail for a place stands still.
    pub is_urgent: bool,
    /// The trouble, in one line.
    pub what: String,
    /// The remedy, as a command or a hint.
    pub help: String,
}

/// One recipient at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailRecipient {
    /// Where.
    pub place: MailPlace,
    /// The address with which it is delivered there.
    pub address: Arc<str>,
    /// The address that its sender gave, without brackets.
    pub original: Arc<str>,
    /// Header fields that stand in front of the body at this place alone.
    pub prefix: Bytes,
    /// The part after the separator in `address`, for transports; else empty.
    pub detail: Arc<str>,
    /// ORCPT (RFC 3461 section 4.2), as received; empty for none.
    pub orcpt: Arc<str>,
    /// NOTIFY (RFC 3461 section 4.1), if it was said.
    pub notify: Option<NotifyWhen>,
    /// It goes to another host than its sender has named.
    pub is_forwarded: bool,
}

impl MailRecipient {
    /// A recipient of whom nothing more is known.
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

/// Where the directory has sent a recipient's mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailPlace {
    /// A Maildir, by its path below the mail root.
    Maildir(Arc<str>),
    /// A transport, as it is written in the configuration.
    Transport(Arc<str>),
    /// The host that is responsible for the address.
    Remote,
}

/// NOTIFY (RFC 3461 section 4.1). NEVER is none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotifyWhen {
    /// Of success.
    pub success: bool,
    /// Of failure.
    pub failure: bool,
    /// Of a delay.
    pub delay: bool,
}

/// RET (RFC 3461 section 4.3): how much of the message a notification of failure returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnedPart {
    /// All of it.
    Full,
    /// Its header.
    Headers,
}
