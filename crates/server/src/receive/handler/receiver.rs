//! The receiver: settings, destinations, checks and counters that all listeners share; and the stages of a session at
//! which its checks are called, with the data of each.

use std::borrow::Cow;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use posthaste_accounts::{LoginGate, Quotas};
use posthaste_config::CHECKS_SECS;
use posthaste_directory::{Mailboxes, Place};
use posthaste_dkim::{Draft, Verifier};
use posthaste_intake::{GatheredBody as StoredBody, Intake, Mail, MemoryBudget, STORE_PATIENCE, SpoolShares};
use posthaste_message::Summary;
use posthaste_smtp::{Address, Envelope, MailFrom, RcptTo, Reply, ReversePath};
use tokio::sync::watch;

use crate::config::first_password::FirstPassword;
use crate::ids::Ids;
use crate::receive::author::Author;
use crate::receive::cluster::NodeControl;
use crate::receive::destinations::Destinations;
use crate::receive::events::EventRecorder;
use crate::receive::live::Live;
use crate::receive::logins::Session;
use crate::receive::meters::Meters;
use crate::receive::remote::RemoteHosts;
use crate::receive::returned::{Returned, ReturnedMail};
use crate::receive::sender_checks::SenderCheck;
use crate::receive::settings::Settings;
use crate::receive::tenants::Labels;
use crate::receive::transaction::Transaction;
use crate::repeats::{Kind, LeftOut, Repeats};

/// A receiver without strong references to the others: held by the relay.
#[derive(Clone, Default)]
pub(crate) struct WeakReceiver(Weak<Shared>);

impl WeakReceiver {
    pub fn upgrade(&self) -> Option<Receiver> {
        self.0.upgrade().map(Receiver)
    }
}

/// Receives for all listeners. Clones share everything.
#[derive(Clone)]
pub(crate) struct Receiver(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) settings: RwLock<Arc<Settings>>,
    /// Notifies open sessions of mail readers that settings were replaced.
    pub(super) replaced: watch::Sender<()>,
    pub(super) destinations: Destinations,
    pub(super) checks: CheckList,
    pub(super) store_patience: Duration,
    pub(super) memory: MemoryBudget,
    pub(super) shares: SpoolShares,
    pub(super) ids: Ids,
    pub(super) turned_away: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) repeats: Arc<Repeats>,
    /// Directory of the spool, for messages to the operator.
    pub(super) spool: String,
    pub(super) live: Live,
    pub(super) meters: Arc<Meters>,
    pub(super) gate: LoginGate,
    pub(super) first_password: Option<FirstPassword>,
    pub(super) quotas: Quotas,
    /// The cluster node of this server, in a cluster.
    pub(super) cluster: OnceLock<Arc<dyn NodeControl>>,
}

impl Receiver {
    /// A receiver with these checks.
    pub(super) fn checking(
        checks: CheckList,
        settings: Settings,
        destinations: Destinations,
        memory: MemoryBudget,
        spool: &Path,
        repeats: Arc<Repeats>,
    ) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let spool = spool.display().to_string();
        Self(Arc::new(Shared {
            settings,
            replaced: watch::Sender::new(()),
            destinations,
            checks,
            store_patience: STORE_PATIENCE,
            memory,
            shares: SpoolShares::default(),
            ids: Ids::new(),
            turned_away: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            repeats,
            spool,
            live: Live::default(),
            meters: Arc::default(),
            gate: LoginGate::default(),
            first_password: None,
            quotas: Quotas::default(),
            cluster: OnceLock::new(),
        }))
    }

    /// Checks passwords at this gate.
    ///
    /// # Panics
    /// When it was cloned already.
    pub fn gated(mut self, gate: LoginGate) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").gate = gate;
        self
    }

    /// The gate against guessing.
    pub fn gate(&self) -> &LoginGate {
        &self.0.gate
    }

    /// Replaces the checks.
    ///
    /// # Panics
    /// When it was cloned already.
    #[cfg(test)]
    pub(super) fn with_checks(mut self, checks: CheckList) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").checks = checks;
        self
    }

    /// Followers of live dialogues.
    pub fn live(&self) -> &Live {
        &self.0.live
    }

    /// This server's cluster node, if any.
    pub fn cluster(&self) -> Option<&Arc<dyn NodeControl>> {
        self.0.cluster.get()
    }

    /// Sets the cluster node, once.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn set_cluster(&self, node: Arc<dyn NodeControl>) {
        let _ = self.0.cluster.set(node);
    }

    /// Histograms of its work.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.0.meters
    }

    /// The event log, if there is one.
    pub fn events(&self) -> Option<&EventRecorder> {
        self.0.destinations.events()
    }

    /// Repeats that the log has omitted since the last call; `all`: including the running interval.
    pub fn left_out(&self, all: bool) -> Vec<LeftOut> {
        self.0.repeats.left_out(Instant::now(), all)
    }

    /// Applies new settings to everything that begins from now on, and ends sessions of readers whose login has
    /// changed.
    pub fn replace(&self, settings: Settings) {
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.0.replaced.send_replace(());
    }

    /// The destinations of mail.
    pub fn destinations(&self) -> &Destinations {
        &self.0.destinations
    }

    /// Mail for other hosts.
    pub fn remote(&self) -> &RemoteHosts {
        self.0.destinations.remote()
    }

    /// A weak handle for the relay, which the receiver holds.
    pub fn downgrade(&self) -> WeakReceiver {
        WeakReceiver(Arc::downgrade(&self.0))
    }

    /// The budget of messages in memory.
    pub fn memory(&self) -> &MemoryBudget {
        &self.0.memory
    }

    /// Clients refused since the start because of too many connections.
    pub fn turned_away(&self) -> u64 {
        self.0.turned_away.load(Ordering::Relaxed)
    }

    /// Senders, recipients and messages since the start that were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(super) fn count_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// An id for `Received`, or for all messages of one request.
    pub(crate) fn new_id(&self) -> String {
        self.0.ids.next()
    }
}

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
    /// Timeout of all checks at the end of data together. After it, the client is told to try again later.
    pub patience: Duration,
}

/// Default of [`CheckList::patience`].
pub(super) const CHECKS_PATIENCE: Duration = Duration::from_secs(CHECKS_SECS);

/// A running check. Most complete at once, without an allocation.
pub(super) enum Checking<'a> {
    Done(Result<(), Stop>),
    Waiting(Pin<Box<dyn Future<Output = Result<(), Stop>> + Send + 'a>>),
}

/// A check's decision to end the transaction or the command.
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

/// Data at MAIL.
pub(super) struct AtMail<'a> {
    pub receiver: &'a Receiver,
    pub session: &'a Session,
    pub settings: &'a Settings,
    /// The intake of the message.
    pub intake: &'a Intake,
    pub mail: &'a MailFrom,
}

/// Data at RCPT.
pub(super) struct AtRcpt<'a> {
    pub receiver: &'a Receiver,
    pub session: &'a Session,
    pub settings: &'a Settings,
    /// The transaction, without this recipient.
    pub transaction: &'a mut Transaction,
    /// Address from the client, or from a check that has changed it.
    pub rcpt: Cow<'a, RcptTo>,
    /// The message is released later.
    pub is_held: bool,
    /// True if any client may send to the recipient.
    pub is_open: bool,
    /// Data of the recipient, if it was a signed return path.
    pub returned: Option<Returned>,
    /// The route of its mail, once looked up.
    pub goes: Option<Goes>,
    /// Address to verify at the next hop.
    pub asked_for: Option<Address>,
    /// The account that the recipient counts for.
    pub account: Option<Cow<'a, str>>,
}

/// The route of a recipient's mail.
pub(super) enum Goes {
    Here(Mailboxes),
    Nowhere,
    Elsewhere,
}

impl AtRcpt<'_> {
    /// True if some of its mail is delivered here.
    pub fn stays_here(&self) -> bool {
        let Some(Goes::Here(mailboxes)) = &self.goes else { return false };
        mailboxes.iter().any(|mailbox| mailbox.place != Place::Remote)
    }
}

/// Data at DATA.
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
    /// Why the checks put it into Junk.
    pub junk: Option<String>,
    pub body: &'a StoredBody,
    /// Recipients of the message.
    pub transaction: &'a mut Transaction,
    /// Labels, hold time and expiry. The rest follows from the transaction.
    pub mail: Mail<'static>,
    /// The complaint, if the message is one.
    pub complaint: Option<ReturnedMail>,
    /// The message's id in `Received`.
    pub received_id: &'a str,
    /// Header fields written in front of the message, each line ended by CRLF.
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
