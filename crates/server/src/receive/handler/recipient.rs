//! Recipients: the checks that determine the destination of each one's mail, or why it is refused.

use std::borrow::Cow;

use posthaste_directory::{self as directory, Mailbox, Place, Route};
use posthaste_intake::{MailPlace, NotTaken, NotTakenCause};
use posthaste_smtp::{Address, ForwardPath, RcptTo, Reply};

use super::receiver::{AtRcpt, Check, Checking, Goes, Receiver, Stop};
use crate::config::forward::Back;
use crate::receive::logins::Session;
use crate::receive::maps::Exists;
use crate::receive::remote::Ahead;
use crate::receive::replies::reply_of;
use crate::receive::returned::ReturnPath;
use crate::receive::transaction::{Full, Transaction, place_of};
use crate::repeats::Kind;

impl From<directory::DirectoryRefusal> for Stop {
    fn from(refusal: directory::DirectoryRefusal) -> Self {
        refusal.reply().into()
    }
}

impl From<NotTaken> for Stop {
    fn from(not_taken: NotTaken) -> Self {
        let kind = match not_taken.cause {
            NotTakenCause::QueueFull => Kind::QueueFull,
            NotTakenCause::PlaceFull | NotTakenCause::NotOpen | NotTakenCause::Unusable => Kind::MailboxFull,
        };
        let about = not_taken.about.as_deref().map(str::to_owned);
        Self { kind: Some(kind), about, ..reply_of(&not_taken).into() }
    }
}

impl From<Full> for Stop {
    fn from(full: Full) -> Self {
        match full {
            // RFC 5321 section 4.5.3.1.10: the client sends to the rest in another transaction.
            Full::Transaction => Reply::new(452, "4.5.3", "Too many mailboxes for one message").into(),
            Full::Memory => {
                let reply = Reply::new(452, "4.3.1", "Too many recipients at a time, try again later");
                Self { kind: Some(Kind::NoMemory), about: Some("limits.memory_bytes".to_owned()), ..reply.into() }
            }
        }
    }
}

/// Routes mail to return paths signed by this server to the original sender. If that is unknown, the mail is read and
/// discarded.
pub(super) struct ReturnPathLookup;

impl ReturnPathLookup {
    fn look_up(at: &mut AtRcpt<'_>) -> Result<(), Stop> {
        let remote = at.receiver.remote();
        match remote.return_path(&at.rcpt.forward_path) {
            ReturnPath::Ordinary => {}
            ReturnPath::Invalid => return Err(directory::DirectoryRefusal::UnknownUser.into()),
            ReturnPath::NotNow => {
                return Err(Reply::new(451, "4.3.0", "This address cannot be looked up now, try again later").into());
            }
            ReturnPath::Ours(returned) => {
                let sender = returned.original.as_ref().map(|original| format!("<{}>", original.sender));
                at.returned = Some(returned);
                let Some(Ok(forward_path)) = sender.map(|sender| ForwardPath::parse(&sender)) else {
                    at.goes = Some(Goes::Nowhere);
                    return Ok(());
                };
                (at.is_open, at.is_held) = (true, false);
                at.rcpt.to_mut().forward_path = forward_path;
            }
        }
        match remote.back(&at.rcpt.forward_path) {
            Back::Ordinary => {}
            Back::Invalid => return Err(directory::DirectoryRefusal::UnknownUser.into()),
            Back::Sender(forward_path) => {
                at.is_open = true;
                at.rcpt.to_mut().forward_path = forward_path;
            }
        }
        Ok(())
    }
}

impl Check for ReturnPathLookup {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        Checking::Done(Self::look_up(at))
    }
}

/// Looks up the route in the directory. Mail for another host is accepted from clients that may relay, and for
/// recipients open to every client.
pub(super) struct DirectoryLookup;

impl DirectoryLookup {
    fn look_up(at: &mut AtRcpt<'_>) -> Result<(), Stop> {
        if at.goes.is_some() {
            return Ok(());
        }
        at.goes = Some(match at.settings.directory.recipient(&at.rcpt.forward_path) {
            Route::Local(mailboxes) => Goes::Here(mailboxes),
            Route::Discard => Goes::Nowhere,
            Route::Refused(directory::DirectoryRefusal::Relay) if at.is_open => Goes::Elsewhere,
            Route::Refused(directory::DirectoryRefusal::Relay)
                if at.receiver.may_relay(at.session, &at.rcpt.forward_path) =>
            {
                let address = at.rcpt.forward_path.address();
                match address.map_or(Exists::Yes, |address| at.settings.maps.has_recipient(address)) {
                    Exists::Yes => {}
                    Exists::No => return Err(directory::DirectoryRefusal::UnknownUser.into()),
                    Exists::AskNextHop => at.asked_for = address.cloned(),
                }
                Goes::Elsewhere
            }
            Route::Refused(refusal) => return Err(refusal.into()),
            // Nothing else is configured.
            _ => return Err(directory::DirectoryRefusal::Relay.into()),
        });
        Ok(())
    }
}

impl Check for DirectoryLookup {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        Checking::Done(Self::look_up(at))
    }
}

/// Checks that each place accepts mail now: limits of unwritable mailboxes, and of the queue for other hosts.
pub(super) struct PlaceBounds;

impl PlaceBounds {
    fn ask(at: &AtRcpt<'_>) -> Result<(), Stop> {
        let destinations = &at.receiver.0.destinations;
        let shard = at.transaction.shard().map(|shard| &**shard);
        let remotes = match &at.goes {
            Some(Goes::Here(mailboxes)) => {
                let is_remote = |mailbox: &&Mailbox| mailbox.place == Place::Remote;
                for mailbox in mailboxes.iter().filter(|mailbox| !is_remote(mailbox)) {
                    destinations.check(shard, &place_of(mailbox), 1)?;
                }
                mailboxes.iter().filter(is_remote).count()
            }
            Some(Goes::Elsewhere) => at.transaction.remotes() + 1,
            Some(Goes::Nowhere) | None => 0,
        };
        match remotes {
            0 => Ok(()),
            count => Ok(destinations.check(shard, &MailPlace::Remote, count as u64)?),
        }
    }
}

impl Check for PlaceBounds {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        Checking::Done(Self::ask(at))
    }
}

/// Checks that the message fits into the quota of each account.
pub(super) struct AccountRoom;

impl AccountRoom {
    async fn ask(receiver: &Receiver, maildirs: Vec<String>, announced: u64, is_permanent: bool) -> Result<(), Stop> {
        for maildir in maildirs {
            if !receiver.0.destinations.has_room(&maildir, announced).await {
                let reply = if is_permanent {
                    Reply::new(552, "5.2.2", "The mailbox is full")
                } else {
                    Reply::new(452, "4.2.2", "The mailbox is full, try again later")
                };
                return Err(Stop { kind: Some(Kind::AccountFull), about: Some(maildir), ..reply.into() });
            }
        }
        Ok(())
    }
}

impl Check for AccountRoom {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        let Some(Goes::Here(mailboxes)) = at.goes.as_ref().filter(|_| at.settings.quota_is_set) else {
            return Checking::Done(Ok(()));
        };
        let maildir = |mailbox: &Mailbox| match &mailbox.place {
            Place::Maildir(path) => Some(path.to_string()),
            Place::Transport(_) | Place::Remote => None,
        };
        let maildirs: Vec<String> = mailboxes.iter().filter_map(maildir).collect();
        let receiver = at.receiver;
        let settings = at.settings;
        Checking::Waiting(Box::pin(Self::ask(
            receiver,
            maildirs,
            at.transaction.announced(),
            settings.quota_is_permanent,
        )))
    }
}

/// Asks the next hop about a recipient at another host, if configured.
pub(super) struct NextHopVerify;

impl NextHopVerify {
    async fn ask(receiver: &Receiver, address: Address) -> Result<(), Stop> {
        match receiver.remote().ask_ahead(&address).await {
            Ahead::Taken => Ok(()),
            Ahead::Refused(reply) => Err(reply.into()),
            Ahead::NotKnown(why) => {
                let reply = Reply::new(451, "4.4.3", "This address cannot be verified now, try again later");
                let about = Some(address.domain().to_string().to_lowercase());
                Err(Stop { kind: Some(Kind::NotVerified), about, ..Stop::because(reply, why.to_string()) })
            }
        }
    }
}

impl Check for NextHopVerify {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        match at.asked_for.take() {
            None => Checking::Done(Ok(())),
            Some(address) => Checking::Waiting(Box::pin(Self::ask(at.receiver, address))),
        }
    }
}

/// Counts a recipient against the quota of the login or local user.
pub(super) struct RecipientQuota;

impl Check for RecipientQuota {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        let Some((account, rates)) = at.settings.quota(at.session) else { return Checking::Done(Ok(())) };
        Checking::Done(match at.receiver.0.quotas.take(&account, rates) {
            Ok(()) => {
                at.account = Some(account);
                Ok(())
            }
            Err(reached) => {
                let reply = Reply::new(450, "4.7.1", reached.to_string());
                Err(Stop { kind: Some(Kind::OverQuota), about: Some(account.to_string()), ..reply.into() })
            }
        })
    }
}

impl Receiver {
    /// Adds a recipient to the transaction if no check stops it. `is_held`: the message is released later.
    pub(super) async fn take_recipient(
        &self,
        session: &Session,
        to: &mut Transaction,
        rcpt: &RcptTo,
        is_held: bool,
    ) -> Result<(), Stop> {
        let settings = self.settings();
        let mut at = AtRcpt {
            receiver: self,
            session,
            settings: &settings,
            transaction: to,
            rcpt: Cow::Borrowed(rcpt),
            is_held,
            is_open: false,
            returned: None,
            goes: None,
            asked_for: None,
            account: None,
        };
        let checked = self.0.checks.rcpt(&mut at).await;
        let AtRcpt { transaction: to, rcpt: taken, returned, goes, account, .. } = at;
        let memory = &self.0.memory;
        let added = match checked {
            Ok(()) => match goes {
                Some(Goes::Here(mailboxes)) => to.add(&taken, Some(mailboxes), memory).map_err(Stop::from),
                Some(Goes::Elsewhere) => to.add_remote(&taken, memory).map_err(Stop::from),
                Some(Goes::Nowhere) | None => to.add(&taken, None, memory).map_err(Stop::from),
            },
            // A sender that does not exist any more is no reason to refuse the report.
            Err(stop) if returned.is_some() && stop.reply.is_permanent() => {
                to.add(rcpt, None, memory).map_err(Stop::from)
            }
            Err(stop) => Err(self.unless_stuck(stop)),
        };
        match added {
            Ok(()) => returned.into_iter().for_each(|returned| to.note_returned(returned)),
            // A recipient that is not added is not counted.
            Err(_) => account.iter().for_each(|account| self.0.quotas.give_back(account)),
        }
        added
    }

    /// Makes a refusal temporary while the relay is stuck: an open one might accept it, or know it as a return path.
    fn unless_stuck(&self, stop: Stop) -> Stop {
        match self.remote().stuck() {
            Some(why) if stop.reply.is_permanent() => {
                let reply = Reply::new(451, "4.3.5", "This address cannot be served now, try again later");
                let kind = Some(Kind::NotVerified);
                let about = Some("relay".to_owned());
                Stop { kind, about, ..Stop::because(reply, why.to_owned()) }
            }
            _ => stop,
        }
    }

    /// Adds a recipient of a copy, which the configuration asks for: no relay check.
    pub(super) fn add_copy(&self, to: &mut Transaction, copy: &RcptTo) -> Result<(), Reply> {
        let full = |_| Reply::new(452, "4.3.1", "no room for one recipient more");
        match self.settings().directory.recipient(&copy.forward_path) {
            Route::Local(mailboxes) => to.add(copy, Some(mailboxes), &self.0.memory).map_err(full),
            Route::Refused(directory::DirectoryRefusal::Relay) if self.remote().is_open() => {
                to.add_remote(copy, &self.0.memory).map_err(full)
            }
            Route::Refused(refusal) => Err(refusal.reply()),
            _ => Ok(()),
        }
    }

    /// True if mail for a foreign domain is relayed.
    fn may_relay(&self, session: &Session, path: &ForwardPath) -> bool {
        let Some(address) = path.address().filter(|_| self.remote().is_open()) else { return false };
        self.settings().may_relay(session, &address.domain().to_string())
    }
}
