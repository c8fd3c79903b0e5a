//! One recipient: where its mail goes, or why it is refused.

use posthaste_directory::{self as directory, Mailbox, Place, Route};
use posthaste_intake::{MailPlace, NotTaken, NotTakenCause};
use posthaste_smtp::{Address, ForwardPath, RcptTo, Reply};

use super::Receiver;
use super::checks::{self, Stop};
use crate::forward::Back;
use crate::logins::Session;
use crate::maps::Exists;
use crate::remote::Ahead;
use crate::repeats::Kind;
use crate::replies::reply_of;
use crate::returned::{ReturnPath, Returned};
use crate::settings::Settings;
use crate::transaction::{Full, Transaction, place_of};

/// A recipient that is refused.
pub(super) struct RefusedRecipient {
    pub kind: Kind,
    /// The mailbox or the setting that the refusal is about, if it is about one.
    pub about: Option<String>,
    /// The answer to the client.
    pub reply: Reply,
    /// The operator is told this, too.
    pub why: Option<String>,
}

/// Why a recipient at another host may be accepted without another check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clearance {
    /// There is no reason.
    None,
    /// Every client may send to it.
    Open,
    /// Its next hop was asked, and takes mail for it.
    Asked,
}

impl From<Stop> for RefusedRecipient {
    fn from(stop: Stop) -> Self {
        Self { why: stop.why, ..stop.reply.into() }
    }
}

impl From<Reply> for RefusedRecipient {
    fn from(reply: Reply) -> Self {
        Self { kind: Kind::RefusedRecipient, about: None, reply, why: None }
    }
}

impl From<directory::Refusal> for RefusedRecipient {
    fn from(refusal: directory::Refusal) -> Self {
        refusal.reply().into()
    }
}

impl From<NotTaken> for RefusedRecipient {
    fn from(not_taken: NotTaken) -> Self {
        let kind = match not_taken.cause {
            NotTakenCause::QueueFull => Kind::QueueFull,
            NotTakenCause::PlaceFull | NotTakenCause::NotOpen | NotTakenCause::Unusable => Kind::MailboxFull,
        };
        let about = not_taken.about.as_deref().map(str::to_owned);
        Self { kind, about, reply: reply_of(&not_taken), why: None }
    }
}

impl From<Full> for RefusedRecipient {
    fn from(full: Full) -> Self {
        match full {
            // RFC 5321 section 4.5.3.1.10: the client sends to the rest in another transaction.
            Full::Transaction => Reply::new(452, "4.5.3", "Too many mailboxes for one message").into(),
            Full::Memory => {
                let reply = Reply::new(452, "4.3.1", "Too many recipients at a time, try again later");
                let about = Some("limits.memory_bytes".to_owned());
                Self { kind: Kind::NoMemory, about, reply, why: None }
            }
        }
    }
}

impl Receiver {
    /// Adds a recipient to the transaction; its next hop is asked for it first if the configuration says so. `is_held`: it is to leave later.
    pub(super) async fn take_recipient(
        &self,
        session: &Session,
        to: &mut Transaction,
        rcpt: &RcptTo,
        is_held: bool,
    ) -> Result<(), RefusedRecipient> {
        let asked = self.look_up_recipient(session, to, (rcpt, Clearance::None), is_held);
        let asked = asked.map_err(|refused| match self.remote().stuck() {
            // The relay might take it, or know its return path.
            Some(why) if refused.reply.is_permanent() => {
                let reply = Reply::new(451, "4.3.5", "This address cannot be served now, try again later");
                RefusedRecipient {
                    kind: Kind::NotVerified,
                    about: Some("relay".to_owned()),
                    reply,
                    why: Some(why.to_owned()),
                }
            }
            _ => refused,
        })?;
        let Some(address) = asked else { return Ok(()) };
        match self.remote().ask_ahead(&address).await {
            Ahead::Taken => self.look_up_recipient(session, to, (rcpt, Clearance::Asked), is_held).map(drop),
            Ahead::Refused(reply) => Err(reply.into()),
            Ahead::NotKnown(why) => {
                let reply = Reply::new(451, "4.4.3", "This address cannot be verified now, try again later");
                let (about, why) = (Some(address.domain().to_string().to_lowercase()), Some(why.to_string()));
                Err(RefusedRecipient { kind: Kind::NotVerified, about, reply, why })
            }
        }
    }

    /// Adds a recipient to the transaction. `Some`: nothing was added, the next hop is to be asked for that address first.
    fn look_up_recipient(
        &self,
        session: &Session,
        to: &mut Transaction,
        (rcpt, clearance): (&RcptTo, Clearance),
        is_held: bool,
    ) -> Result<Option<Address>, RefusedRecipient> {
        match self.remote().return_path(&rcpt.forward_path) {
            ReturnPath::Ordinary => {}
            ReturnPath::Invalid => return Err(directory::Refusal::UnknownUser.into()),
            ReturnPath::NotNow => {
                return Err(Reply::new(451, "4.3.0", "This address cannot be looked up now, try again later").into());
            }
            ReturnPath::Ours(returned) => return self.take_returned(session, to, rcpt, returned).map(|()| None),
        }
        let forwarded_sender = match self.remote().back(&rcpt.forward_path) {
            Back::Ordinary => None,
            Back::Sender(forward_path) => Some(RcptTo { forward_path, ..rcpt.clone() }),
            Back::Invalid => return Err(directory::Refusal::UnknownUser.into()),
        };
        let is_open = clearance == Clearance::Open || forwarded_sender.is_some();
        let rcpt = forwarded_sender.as_ref().unwrap_or(rcpt);
        let settings = self.settings();
        checks::rcpt(session, &settings)?;
        let mapped = settings.maps.recipient(rcpt);
        let rcpt = mapped.as_ref().unwrap_or(rcpt);
        match settings.directory.recipient(&rcpt.forward_path) {
            Route::Local(mailboxes) => {
                self.check_places(&mailboxes, is_held)?;
                self.counted(session, &settings, || to.add(rcpt, Some(mailboxes), &self.0.memory))?;
            }
            Route::Discard => self.counted(session, &settings, || to.add(rcpt, None, &self.0.memory))?,
            Route::Refused(directory::Refusal::Relay) if is_open || self.may_relay(session, &rcpt.forward_path) => {
                let exists = |address: &&Address| settings.maps.has_recipient(address);
                let address = rcpt.forward_path.address().filter(|_| !is_open);
                let exists = address.as_ref().map_or(Exists::Yes, exists);
                if exists == Exists::No {
                    return Err(directory::Refusal::UnknownUser.into());
                }
                self.0.destinations.check(&MailPlace::Remote, to.remotes() as u64 + 1)?;
                if exists == Exists::AskNextHop && clearance != Clearance::Asked {
                    return Ok(address.cloned());
                }
                self.counted(session, &settings, || to.add_remote(rcpt, &self.0.memory))?;
            }
            Route::Refused(refusal) => return Err(refusal.into()),
            // Nothing else is configured.
            _ => return Err(directory::Refusal::Relay.into()),
        }
        Ok(None)
    }

    /// Whether each place takes mail now: what waits for a mailbox that cannot be written is bounded, and the bound is felt here.
    fn check_places(&self, mailboxes: &[Mailbox], is_held: bool) -> Result<(), RefusedRecipient> {
        let places = || mailboxes.iter().map(|mailbox| &mailbox.place);
        if is_held && places().any(|place| *place != Place::Remote) {
            let reply = Reply::new(550, "5.5.4", "Mail for this address cannot be held back, it is delivered here");
            return Err(reply.into());
        }
        let is_remote = |mailbox: &&Mailbox| mailbox.place == Place::Remote;
        for mailbox in mailboxes.iter().filter(|mailbox| !is_remote(mailbox)) {
            self.0.destinations.check(&place_of(mailbox), 1)?;
        }
        match mailboxes.iter().filter(is_remote).count() {
            0 => Ok(()),
            count => Ok(self.0.destinations.check(&MailPlace::Remote, count as u64)?),
        }
    }

    /// Adds a recipient that has passed all checks, and counts it against the quota of the login or local user. One that is not added is not counted.
    fn counted(
        &self,
        session: &Session,
        settings: &Settings,
        add: impl FnOnce() -> Result<(), Full>,
    ) -> Result<(), RefusedRecipient> {
        let Some((account, rates)) = settings.quota(session) else { return Ok(add()?) };
        let taken = self.0.quotas.take(&account, rates);
        taken.map_err(|reached| {
            let (about, reply) = (Some(account.to_string()), Reply::new(450, "4.7.1", reached.to_string()));
            RefusedRecipient { kind: Kind::OverQuota, about, reply, why: None }
        })?;
        add().inspect_err(|_| self.0.quotas.give_back(&account))?;
        Ok(())
    }

    /// Mail to a return path of ours goes on to the sender behind it; if nobody knows that any more, it is read and goes nowhere.
    fn take_returned(
        &self,
        session: &Session,
        to: &mut Transaction,
        rcpt: &RcptTo,
        returned: Returned,
    ) -> Result<(), RefusedRecipient> {
        let sender = returned.original.as_ref().map(|original| ForwardPath::parse(&format!("<{}>", original.sender)));
        let taken = match sender {
            Some(Ok(forward_path)) => {
                let rcpt = RcptTo { forward_path, ..rcpt.clone() };
                self.look_up_recipient(session, to, (&rcpt, Clearance::Open), false).map(drop)
            }
            _ => to.add(rcpt, None, &self.0.memory).map_err(RefusedRecipient::from),
        };
        // A sender that does not exist any more is no reason to refuse the report.
        match taken {
            Err(refused) if refused.reply.is_permanent() => to.add(rcpt, None, &self.0.memory)?,
            taken => taken?,
        }
        to.note_returned(returned);
        Ok(())
    }

    /// Adds somebody who gets a copy. Who may relay is no question: the configuration says so.
    pub(super) fn add_copy(&self, to: &mut Transaction, copy: &RcptTo) -> Result<(), Reply> {
        let full = |_| Reply::new(452, "4.3.1", "no room for one recipient more");
        match self.settings().directory.recipient(&copy.forward_path) {
            Route::Local(mailboxes) => to.add(copy, Some(mailboxes), &self.0.memory).map_err(full),
            Route::Refused(directory::Refusal::Relay) if self.remote().is_open() => {
                to.add_remote(copy, &self.0.memory).map_err(full)
            }
            Route::Refused(refusal) => Err(refusal.reply()),
            _ => Ok(()),
        }
    }

    /// Whether mail for a domain that is not ours is sent on.
    fn may_relay(&self, session: &Session, path: &ForwardPath) -> bool {
        let Some(address) = path.address().filter(|_| self.remote().is_open()) else { return false };
        self.settings().may_relay(session, &address.domain().to_string())
    }
}
