//! The checks of a session: one list, all called in order at each stage; the first that stops decides the reply.
//!
//! Stages: connect, hello, MAIL, RCPT, DATA, end of data. At each a check can refuse or defer. At RCPT it can change
//! the recipient, at DATA the sender. At the end of data it can add recipients, which the directory routes, write
//! fields in front of the message, label it and hold it. After that only a destination can refuse it.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use posthaste_dkim::{Draft, Verifier};
use posthaste_intake::{GatheredBody as StoredBody, Intake, LARGE_BODY_BYTES, Mail};
use posthaste_message::Summary;
use posthaste_smtp::{Envelope, MailFrom, Reply, ReversePath};

use super::Receiver;
use super::folders::FolderLookup;
use super::message::{MissingFields, TraceField};
use super::recipient::{
    AccountRoom, AtRcpt, DirectoryLookup, NextHopVerify, PlaceBounds, RecipientQuota, ReturnPathLookup,
};
use super::sender::{SenderLookup, SenderResults};
use super::signatures::Signatures;
use crate::ids::unix_micros;
use crate::receive::author::Author;
use crate::receive::future;
use crate::receive::logins::{self, Session};
use crate::receive::returned::ReturnedMail;
use crate::receive::sender_checks::SenderCheck;
use crate::receive::settings::Settings;
use crate::receive::tenants::Labels;
use crate::receive::transaction::Transaction;
use crate::repeats::Kind;

/// A check. It implements the stages that concern it.
pub(super) trait Check: Sync {
    /// Before the greeting.
    fn connect<'a>(&'a self, session: &'a Session) -> Checking<'a> {
        let _ = session;
        Checking::Done(Ok(()))
    }

    /// At HELO, EHLO or LHLO.
    fn hello<'a>(&'a self, session: &'a Session) -> Checking<'a> {
        let _ = session;
        Checking::Done(Ok(()))
    }

    /// At MAIL.
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        let _ = at;
        Checking::Done(Ok(()))
    }

    /// At each RCPT. The recipient may be changed.
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        let _ = at;
        Checking::Done(Ok(()))
    }

    /// At DATA, before the body is read. The sender may be changed.
    fn data(&self, at: &mut AtData<'_>) -> Result<(), Stop> {
        let _ = at;
        Ok(())
    }

    /// At the end of data.
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let _ = message;
        Checking::Done(Ok(()))
    }
}

/// Checks in order, and the timeout of those at the end of data.
pub(super) struct CheckList {
    pub checks: &'static [&'static dyn Check],
    /// Timeout of all checks at the end of data together. Then the client is told to come back.
    pub patience: Duration,
}

impl Default for CheckList {
    fn default() -> Self {
        Self { checks: &CHECKS, patience: CHECKS_PATIENCE }
    }
}

/// Each recipient is looked up after rewriting, and counted last, so that refused ones do not count. The sender is
/// looked up as the client named it.
static CHECKS: [&dyn Check; 22] = [
    &ValidLogin,
    &RequiredLogin,
    &OwnSender,
    &ForwardLoop,
    &OwnAuthor,
    &ReturnPathLookup,
    &SenderLookup,
    &Rewriting,
    &DirectoryLookup,
    &ReleaseTimes,
    &PlaceBounds,
    &AccountRoom,
    &FolderLookup,
    &NextHopVerify,
    &RecipientQuota,
    &TenantLabels,
    &RoomForLarge,
    &Complaints,
    &SenderResults,
    &TraceField,
    &MissingFields,
    &Signatures,
];

/// Default of [`CheckList::patience`].
pub(super) const CHECKS_PATIENCE: Duration = Duration::from_secs(60);

/// A running check. Most complete at once, without an allocation.
pub(super) enum Checking<'a> {
    Done(Result<(), Stop>),
    Waiting(Pin<Box<dyn Future<Output = Result<(), Stop>> + Send + 'a>>),
}

/// Ends the transaction or the command.
#[derive(Debug)]
pub(super) struct Stop {
    /// The answer to the client.
    pub reply: Reply,
    /// Reason for the operator.
    pub why: Option<String>,
    /// Kind in the log; `None`: that of the stage.
    pub kind: Option<Kind>,
    /// The mailbox or setting concerned, if any.
    pub about: Option<String>,
}

impl Stop {
    /// A refusal with a reason for the operator.
    pub fn because(reply: Reply, why: String) -> Self {
        Self { why: Some(why), ..reply.into() }
    }
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Self { reply, why: None, kind: None, about: None }
    }
}

/// MAIL.
pub(super) struct AtMail<'a> {
    pub receiver: &'a Receiver,
    pub session: &'a Session,
    pub settings: &'a Settings,
    /// The intake of the message.
    pub intake: &'a Intake,
    pub mail: &'a MailFrom,
}

/// DATA.
pub(super) struct AtData<'a> {
    pub receiver: &'a Receiver,
    pub session: &'a Session,
    pub settings: &'a Settings,
    pub sender: &'a mut ReversePath,
    /// Checks of an incoming message, which run while the body arrives.
    pub sender_check: Option<SenderCheck>,
}

/// A completely read message.
pub(super) struct ReadMessage<'a> {
    pub receiver: &'a Receiver,
    pub session: &'a Session,
    pub settings: &'a Settings,
    pub envelope: &'a Envelope,
    pub summary: &'a Summary,
    /// Tenant, campaign and pool that its header names.
    pub labels: Labels,
    /// The author that its header names, if it is a submission, may be signed or is checked.
    pub author: &'a Author,
    /// A submission has a Date.
    pub has_date: bool,
    /// Header and body in the form for a signature, if the message may be signed.
    pub draft: Option<Box<Draft>>,
    /// The checks of an incoming message, and its data for signatures.
    pub sender_check: Option<(SenderCheck, Box<Verifier>)>,
    /// Results of these checks, for the log.
    pub results: Option<String>,
    /// Why they put it into Junk.
    pub junk: Option<String>,
    pub body: &'a StoredBody,
    /// Recipients of the message.
    pub transaction: &'a mut Transaction,
    /// Labels, hold time and expiry. The rest follows from the transaction.
    pub mail: Mail<'static>,
    /// A complaint that it is.
    pub complaint: Option<ReturnedMail>,
    /// The message's id in `Received`.
    pub received_id: &'a str,
    /// Header fields written in front of it, each line ended by CRLF.
    pub front: Vec<u8>,
    /// The Message-ID that was added.
    pub new_message_id: Option<String>,
}

impl ReadMessage<'_> {
    /// Adds a field below those already in front.
    pub fn add_front(&mut self, field: &str) {
        self.front.extend_from_slice(field.as_bytes());
        if let Some(draft) = &mut self.draft {
            draft.field(field.as_bytes());
        }
    }
}

impl Checking<'_> {
    async fn ended(self) -> Result<(), Stop> {
        match self {
            Checking::Done(checked) => checked,
            Checking::Waiting(checking) => checking.await,
        }
    }
}

impl CheckList {
    /// The stage before the greeting.
    pub async fn connect(&self, session: &Session) -> Result<(), Stop> {
        for check in self.checks {
            check.connect(session).ended().await?;
        }
        Ok(())
    }

    /// The stage HELO, EHLO or LHLO.
    pub async fn hello(&self, session: &Session) -> Result<(), Stop> {
        for check in self.checks {
            check.hello(session).ended().await?;
        }
        Ok(())
    }

    /// The stage MAIL.
    pub async fn mail(&self, at: &AtMail<'_>) -> Result<(), Stop> {
        for check in self.checks {
            check.mail(at).ended().await?;
        }
        Ok(())
    }

    /// The stage RCPT.
    pub async fn rcpt(&self, at: &mut AtRcpt<'_>) -> Result<(), Stop> {
        for check in self.checks {
            check.rcpt(at).ended().await?;
        }
        Ok(())
    }

    /// The stage DATA.
    pub fn data(&self, at: &mut AtData<'_>) -> Result<(), Stop> {
        self.checks.iter().try_for_each(|check| check.data(at))
    }

    /// The end of data.
    pub async fn message(&self, message: &mut ReadMessage<'_>) -> Result<(), Stop> {
        for check in self.checks {
            check.message(message).ended().await?;
        }
        Ok(())
    }
}

/// Stops a session whose login was removed by a reload, or got another password.
struct ValidLogin;

impl ValidLogin {
    fn check(session: &Session, settings: &Settings) -> Result<(), Stop> {
        if session.identity.is_some() && settings.login(session).is_none() {
            // 421 ends it.
            Err(Reply::new(421, "4.7.0", "Your login has changed, connect and log in again").into())
        } else {
            Ok(())
        }
    }
}

impl Check for ValidLogin {
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        Checking::Done(Self::check(at.session, at.settings))
    }

    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        Checking::Done(Self::check(at.session, at.settings))
    }

    fn data(&self, at: &mut AtData<'_>) -> Result<(), Stop> {
        Self::check(at.session, at.settings)
    }
}

/// Requires a login where configured.
struct RequiredLogin;

impl Check for RequiredLogin {
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        Checking::Done(if at.settings.lacks_login(at.session) {
            Err(Reply::new(530, "5.7.0", "Authentication required").into())
        } else {
            Ok(())
        })
    }
}

/// Requires an address of the login as sender (RFC 6409 section 6.1).
struct OwnSender;

impl Check for OwnSender {
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        let AtMail { receiver, session, settings, mail, .. } = at;
        Checking::Done(match settings.login(session) {
            Some((name, login)) if !logins::may_send_as(login, name, &mail.reverse_path, &settings.directory) => {
                receiver.tell_foreign_sender(session, name, &mail.reverse_path);
                Err(Reply::new(553, "5.7.1", "Not an address of yours, you cannot send mail from it").into())
            }
            _ => Ok(()),
        })
    }
}

/// Requires an address of the login in From: recipients see From, and not the sender of the envelope.
struct OwnAuthor;

impl Check for OwnAuthor {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let ReadMessage { settings, session, author, .. } = message;
        let Some((name, login)) = settings.login(session) else { return Checking::Done(Ok(())) };
        let (field, address) = author.answerable();
        if login.author_right(address, name, &settings.directory).is_some() {
            return Checking::Done(Ok(()));
        }
        let (reply, why) = match address {
            Some(address) => (format!("{field} is not an address of yours"), format!("{field} is {address}")),
            None => {
                let reply = format!("{field} must have one address; a name with signs such as @ or , stands in quotes");
                (reply, format!("{field} has no address, several, or one that cannot be read without doubt"))
            }
        };
        Checking::Done(Err(Stop::because(Reply::new(553, "5.7.1", reply), why)))
    }
}

/// Stops a message that this server has forwarded to itself.
struct ForwardLoop;

/// Maximum receptions of a forwarded message by this server. More is a loop, which may multiply the message each time.
const FORWARDS_MAX: usize = 4;

impl Check for ForwardLoop {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let own_hops = message.summary.own_hops;
        Checking::Done(if message.transaction.is_forwarded() && own_hops >= FORWARDS_MAX {
            Err(Stop::because(
                Reply::new(554, "5.4.6", "Forwarded by this server too often, the message is in a loop"),
                format!("forwarded {own_hops} times"),
            ))
        } else {
            Ok(())
        })
    }
}

/// Rewritten senders and recipients, and copies, by the configured maps.
struct Rewriting;

impl Check for Rewriting {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        if let Some(other) = at.settings.maps.recipient(&at.rcpt) {
            at.rcpt = Cow::Owned(other);
        }
        Checking::Done(Ok(()))
    }

    fn data(&self, at: &mut AtData<'_>) -> Result<(), Stop> {
        if let Some(other) = at.settings.maps.sender(at.sender) {
            *at.sender = other;
        }
        Ok(())
    }

    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        for copy in message.settings.maps.copies(message.envelope) {
            if let Err(reply) = message.receiver.add_copy(message.transaction, &copy) {
                let why = format!("no copy to {}: {reply}", copy.forward_path);
                let reply = Reply::new(451, "4.3.5", "Mail cannot be accepted now, try again later");
                return Checking::Done(Err(Stop::because(reply, why)));
            }
        }
        Checking::Done(Ok(()))
    }
}

/// The account of mail for other hosts.
struct TenantLabels;

impl Check for TenantLabels {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let settings = message.settings;
        let session = message.session;
        let mut labels = std::mem::take(&mut message.labels);
        if let Some(tenant) = message.transaction.tenant() {
            if let Some(other) = labels.tenant.filter(|other| other != tenant) {
                let reply = Reply::new(550, "5.7.1", "This token is of another tenant");
                return Checking::Done(Err(Stop::because(reply, format!("the header names the tenant {other}"))));
            }
            labels.tenant = Some(Arc::clone(tenant));
            // Also where all of it stays here: the event log shows it to its tenant.
            message.mail.tenant = Arc::clone(tenant);
        }
        if let Some(pool) = settings.tenants.unknown_pool(&labels) {
            let reply = Reply::new(554, "5.6.0", format!("There is no pool {pool}"));
            return Checking::Done(Err(Stop::because(reply, format!("there is no pool {pool}"))));
        }
        if message.transaction.has_remote() {
            let by = (settings.is_trusted(session), settings.login(session).map(|(_, login)| login));
            settings.tenants.label(&mut message.mail, session, &message.envelope.mail.reverse_path, by, labels);
        }
        Checking::Done(Ok(()))
    }
}

/// Checks release and expiry times (RFC 4865).
struct ReleaseTimes;

impl Check for ReleaseTimes {
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        Checking::Done(if at.mail.hold.is_some() || at.mail.expires.is_some() {
            future::check(at.mail, unix_micros() / 1_000_000).map_err(Stop::from)
        } else {
            Ok(())
        })
    }

    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        Checking::Done(if at.is_held && at.stays_here() {
            let text = "Mail for this address cannot be held back, it is delivered here";
            Err(Reply::new(550, "5.5.4", text).into())
        } else {
            Ok(())
        })
    }

    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let said = &message.envelope.mail;
        if message.transaction.has_remote() && (said.hold.is_some() || said.expires.is_some()) {
            (message.mail.hold_secs, message.mail.expires_secs) = future::times(said, unix_micros() / 1_000_000);
        }
        Checking::Done(Ok(()))
    }
}

/// A large message goes to a file: its client is told of lacking space when announcing it, not after sending it.
struct RoomForLarge;

impl Check for RoomForLarge {
    fn mail<'a>(&'a self, at: &'a AtMail<'a>) -> Checking<'a> {
        let Some(size) = at.mail.size.filter(|&size| size > LARGE_BODY_BYTES as u64) else {
            return Checking::Done(Ok(()));
        };
        Checking::Waiting(Box::pin(async move { Ok(at.receiver.check_size(at, size).await?) }))
    }
}

/// Notes a complaint about sent mail once its message is accepted.
struct Complaints;

impl Check for Complaints {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        let remote = message.receiver.remote();
        if !remote.signs_return_paths() || !message.transaction.returned().is_empty() {
            return Checking::Done(Ok(()));
        }
        Checking::Waiting(Box::pin(async move {
            message.complaint = remote.complaint(message.body).await;
            Ok(())
        }))
    }
}
