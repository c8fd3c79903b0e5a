//! The checks of a session: one list, all called in order at each stage; the first that stops decides the reply.
//!
//! Stages: connect, hello, MAIL, RCPT, DATA, end of data. At each a check can refuse or defer. At RCPT it can change
//! the recipient, at DATA the sender. At the end of data it can add recipients, which the directory routes, write
//! fields in front of the message, label it and hold it. After that only a destination can refuse it.

use std::borrow::Cow;
use std::sync::Arc;

use posthaste_intake::LARGE_BODY_BYTES;
use posthaste_smtp::Reply;

use super::folders::FolderLookup;
use super::message::{MissingFields, TraceField};
use super::receiver::{AtData, AtMail, AtRcpt, CHECKS_PATIENCE, Check, CheckList, Checking, ReadMessage, Stop};
use super::recipient::{AccountRoom, DirectoryLookup, NextHopVerify, PlaceBounds, RecipientQuota, ReturnPathLookup};
use super::sender::{SenderLookup, SenderResults};
use super::signatures::Signatures;
use crate::ids::unix_micros;
use crate::receive::future;
use crate::receive::logins::{self, Session};
use crate::receive::settings::Settings;

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

/// All checks.
pub(super) fn all() -> CheckList {
    CheckList { checks: &CHECKS, patience: CHECKS_PATIENCE }
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
                let reply = format!("{field} must have one address; put a name with signs such as @ or , in quotes");
                (reply, format!("{field} has no address, several, or an ambiguous one"))
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

/// A large message needs a file. Without space, the client is refused when it announces the size, not after sending the
/// message.
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
