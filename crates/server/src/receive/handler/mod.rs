//! Receiving mail, from the wire into the spool: the replies to each recipient and each body.

mod checks;
mod folders;
mod injected;
mod message;
mod readers;
mod recipient;
mod sender;
mod signatures;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use posthaste_accounts::{
    LoggedIn, LoginDoor, LoginFailure, LoginGate, LoginOrigin, LoginSecrets, PasswordClaim, Quotas,
};
use posthaste_admin::is_page_link;
use posthaste_intake::{Incoming, MemoryBudget, STORE_PATIENCE, SpoolShares};
use posthaste_smtp::driver::{self, Handler, IncomingBody, Peer};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::sasl::scram::{self, ScramKeys, ScramProof};
use posthaste_smtp::{BodyError, Envelope, MailFrom, MessageOutcome, RcptTo, Reply, ReversePath, Witness};
use tokio::sync::watch;
use tokio::time::timeout;

use self::checks::{AtMail, CheckList, Stop};
pub(crate) use self::injected::{BodyOctets, InjectedBody, InjectedMail, Outcomes};
use self::message::SmtpBody;
use crate::config::certificates;
use crate::config::first_password::FirstPassword;
use crate::ids::Ids;
use crate::receive::cluster::ClusterDoor;
use crate::receive::destinations::Destinations;
use crate::receive::events::{self, EventRecorder};
use crate::receive::live::Live;
use crate::receive::logins::{self, Session};
use crate::receive::message_log::{LogLine, Severity};
use crate::receive::meters::Meters;
use crate::receive::remote::RemoteHosts;
use crate::receive::replies::{is_standby, reply_to, share_is_full, too_slow};
use crate::receive::settings::Settings;
use crate::receive::shards::ShardQueue;
use crate::receive::transaction::Transaction;
use crate::repeats::{About, Kind, LeftOut, Repeats};

/// A receiver that does not keep the others: what the relay has of it, which it keeps itself.
#[derive(Clone, Default)]
pub(crate) struct WeakReceiver(Weak<Shared>);

impl WeakReceiver {
    pub fn upgrade(&self) -> Option<Receiver> {
        self.0.upgrade().map(Receiver)
    }
}

/// Receives for all listeners. Clones share everything.
#[derive(Clone)]
pub(crate) struct Receiver(Arc<Shared>);

struct Shared {
    settings: RwLock<Arc<Settings>>,
    /// Tells open sessions of readers of other settings.
    replaced: watch::Sender<()>,
    destinations: Destinations,
    checks: CheckList,
    store_patience: Duration,
    memory: MemoryBudget,
    shares: SpoolShares,
    ids: Ids,
    turned_away: AtomicU64,
    refused: AtomicU64,
    repeats: Arc<Repeats>,
    /// Directory of the spool, for messages to the operator.
    spool: String,
    live: Live,
    meters: Arc<Meters>,
    gate: LoginGate,
    first_password: Option<FirstPassword>,
    quotas: Quotas,
    /// Of a node of a cluster.
    cluster: OnceLock<Arc<dyn ClusterDoor>>,
}

impl Receiver {
    pub fn new(
        settings: Settings,
        destinations: Destinations,
        memory: MemoryBudget,
        spool: &Path,
        repeats: Arc<Repeats>,
    ) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let spool = spool.display().to_string();
        let (ids, turned_away) = (Ids::new(), AtomicU64::new(0));
        let (shares, store_patience) = (SpoolShares::default(), STORE_PATIENCE);
        Self(Arc::new(Shared {
            settings,
            replaced: watch::Sender::new(()),
            destinations,
            checks: CheckList::default(),
            store_patience,
            memory,
            shares,
            ids,
            turned_away,
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

    /// Like [`new`](Self::new), with another patience than [`STORE_PATIENCE`].
    #[cfg(test)]
    pub fn with_patience(settings: Settings, destinations: Destinations, patience: Duration) -> Self {
        let memory = MemoryBudget::new(0);
        let mut shared = Self::new(settings, destinations, memory, Path::new("spool"), Arc::default()).0;
        Arc::get_mut(&mut shared).expect("nobody else has it").store_patience = patience;
        Self(shared)
    }

    /// Replaces the checks.
    ///
    /// # Panics
    /// When it was cloned already.
    #[cfg(test)]
    fn with_checks(mut self, checks: CheckList) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").checks = checks;
        self
    }

    /// The onlookers.
    pub fn live(&self) -> &Live {
        &self.0.live
    }

    /// The node of a cluster that this server is, if it is one.
    pub fn cluster(&self) -> Option<&Arc<dyn ClusterDoor>> {
        self.0.cluster.get()
    }

    /// It is a node of a cluster. Said once.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "for a node of a cluster"))]
    pub fn set_cluster(&self, door: Arc<dyn ClusterDoor>) {
        let _ = self.0.cluster.set(door);
    }

    /// Histograms of its work.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.0.meters
    }

    /// The event log, if there is one.
    pub fn events(&self) -> Option<&EventRecorder> {
        self.0.destinations.events()
    }

    /// Repeats that the log has left out since this was asked last; `all`: even a moment ago.
    pub fn left_out(&self, all: bool) -> Vec<LeftOut> {
        self.0.repeats.left_out(Instant::now(), all)
    }

    /// Puts new settings in force for whatever begins from now on, and ends sessions of readers whose login has changed.
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

    /// Clients since the start that were told that there are too many of them.
    pub fn turned_away(&self) -> u64 {
        self.0.turned_away.load(Ordering::Relaxed)
    }

    /// Senders, recipients and messages since the start that were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn count_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Handler for Receiver {
    type State = Option<Arc<LoginSecrets>>;
    type Transaction = Transaction;

    fn witness(&self, session: &Session) -> Option<Arc<dyn Witness>> {
        let peer = Some(session.peer.ip()).flatten();
        self.live().session(true, peer, || session.peer.to_string())
    }

    /// Mostly those that speak no TLS, and clients that do not trust the certificate.
    fn tls_failed(&self, session: &Session, error: &std::io::Error) {
        let (peer, error) = (session.peer.to_string(), error.to_string());
        if self.0.repeats.is_told(Kind::FailedTls, client(session), Instant::now()) {
            if let Some(recorder) = self.events() {
                events::connection(recorder, &session.peer, &format!("TLS handshake failed: {error}"));
            }
            tracing::info!(peer, error, "TLS handshake failed");
        } else {
            tracing::debug!(peer, error, "TLS handshake failed")
        }
    }

    /// Counts refused connections beyond a limit, which are logged in sums. Logs each client that may not connect.
    fn turned_away(&self, _: usize, peer: &Peer, why: &driver::ConnectionRefusal) {
        use driver::ConnectionRefusal::{NotAProxy, NotAllowed, Proxy};
        if !matches!(why, NotAllowed | NotAProxy | Proxy(_)) {
            self.0.turned_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (peer_text, why) = (peer.to_string(), why.to_string());
        if let Some(recorder) = self.events() {
            events::connection(recorder, peer, &why);
        }
        if self.0.repeats.is_told(Kind::RefusedConnection, About::Client(peer.ip()), Instant::now()) {
            tracing::info!(peer = peer_text, why, "connection refused")
        } else {
            tracing::debug!(peer = peer_text, why, "connection refused")
        }
    }

    async fn connect(&self, session: &mut Session) -> Result<(), Reply> {
        let checked = self.0.checks.connect(session).await;
        checked.map_err(|stop| self.refuse_session(session, stop))
    }

    async fn hello(&self, session: &mut Session) -> Result<(), Reply> {
        let checked = self.0.checks.hello(session).await;
        checked.map_err(|stop| self.refuse_session(session, stop))
    }

    async fn authenticate(
        &self,
        session: &mut Session,
        mechanism: &'static str,
        credentials: Credentials,
    ) -> Result<String, Reply> {
        let Credentials { user, password, acts_for } = credentials;
        let claim = PasswordClaim { user, password, acts_for };
        let checked = self.check_login((&session.peer, Some(session)), mechanism, claim).await;
        let LoggedIn { name, secrets } = checked.map_err(logins::refusal)?;
        session.state = Some(secrets);
        Ok(name)
    }

    async fn scram_keys(&self, session: &mut Session, user: &str) -> Result<Option<ScramKeys>, Reply> {
        let (settings, origin) = (self.settings(), sending(&session.peer));
        let keys = self.0.gate.scram_keys(&settings.logins, &settings.directory, origin, user).await;
        keys.map_err(|failure| {
            self.record_login((&session.peer, Some(session)), scram::NAME, logged(user), Some(failure));
            logins::refusal(failure)
        })
    }

    async fn scram_proof(&self, session: &mut Session, proof: &ScramProof) -> Result<String, Reply> {
        let (settings, origin) = (self.settings(), sending(&session.peer));
        let checked = self.0.gate.check_scram(&settings.logins, &settings.directory, origin, proof).await;
        let name = checked.as_ref().map_or_else(|_| logged(proof.user()), |login| &login.name);
        self.record_login((&session.peer, Some(session)), proof.mechanism(), name, checked.as_ref().err().copied());
        let LoggedIn { name, secrets } = checked.map_err(logins::refusal)?;
        session.state = Some(secrets);
        Ok(name)
    }

    async fn mail(&self, session: &mut Session, to: &mut Transaction, mail: &MailFrom) -> Result<(), Reply> {
        to.announce(mail.size);
        let outcome = match self.begin_in_cluster(to) {
            Ok(()) => self.check_mail(session, to.shard().map(|shard| &**shard), mail).await,
            standby => standby,
        };
        let _ = outcome.as_ref().inspect_err(|_| self.count_refused());
        if let (Some(recorder), Err(reply)) = (self.events(), &outcome) {
            events::command(recorder, session, &mail.reverse_path, None, reply);
        }
        outcome
    }

    async fn rcpt(
        &self,
        session: &mut Session,
        transaction: &mut Transaction,
        envelope: &Envelope,
        rcpt: &RcptTo,
    ) -> Result<(), Reply> {
        let taken = self.take_recipient(session, transaction, rcpt, envelope.mail.hold.is_some()).await;
        let Err(Stop { kind, about, reply, why }) = taken else { return Ok(()) };
        let kind = kind.unwrap_or(Kind::RefusedRecipient);
        self.count_refused();
        if let Some(recorder) = self.events() {
            events::command(recorder, session, &envelope.mail.reverse_path, Some(&rcpt.forward_path), &reply);
        }
        let about = about.as_deref().map_or_else(|| client(session), About::Name);
        let told = self.0.repeats.is_told(kind, about, Instant::now());
        if !told && !tracing::enabled!(tracing::Level::DEBUG) {
            return Err(reply);
        }
        let (to, reply_text) = (rcpt.forward_path.to_string(), reply.to_string());
        let peer = session.peer.to_string();
        let user = session.identity.as_ref().map(|identity| &*identity.authorization_id);
        match (told, kind.is_ours()) {
            (true, true) => {
                let (about, mut help) = (about.to_string(), self.help(kind));
                why.iter().for_each(|why| help.extend([": ", why]));
                tracing::warn!(peer, user, to, about, reply = reply_text, help, "recipient refused");
            }
            (true, false) => tracing::info!(peer, user, to, reply = reply_text, "recipient refused"),
            (false, _) => tracing::debug!(peer, user, to, reply = reply_text, "recipient refused"),
        }
        Err(reply)
    }

    async fn message(
        &self,
        session: &mut Session,
        transaction: Transaction,
        envelope: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> MessageOutcome {
        self.take_message(session, transaction, envelope, &mut SmtpBody(body)).await
    }
}

impl Receiver {
    /// An id for `Received`, or for what messages of one request have in common.
    pub(crate) fn new_id(&self) -> String {
        self.0.ids.next()
    }

    /// Keeps a message, and logs and records the outcome.
    async fn take_message<B: Incoming<Error = BodyError>>(
        &self,
        session: &Session,
        transaction: Transaction,
        mut envelope: Envelope,
        body: &mut B,
    ) -> MessageOutcome {
        let begun = Instant::now();
        let received_id = transaction.received_id().map_or_else(|| self.new_id(), str::to_owned);
        let mut log = LogLine { received_id, ..LogLine::default() };
        let outcome = self.receive(session, transaction, &mut envelope, body, &mut log).await;
        if !outcome.is_accepted() {
            self.count_refused();
        }
        if let Some(recorder) = self.events().filter(|_| log.abandoned || !outcome.is_accepted()) {
            events::message(recorder, &log, session, &envelope, &outcome);
        }
        self.log(&log, session, &envelope, &outcome, begun);
        outcome
    }

    /// Begins a transaction under a shard of this node, where there is a cluster.
    fn begin_in_cluster(&self, to: &mut Transaction) -> Result<(), Reply> {
        let Some(cluster) = self.cluster() else { return Ok(()) };
        to.hold(cluster.begin(to.must_be_home()).ok_or_else(is_standby)?);
        Ok(())
    }

    async fn check_mail(&self, session: &Session, shard: Option<&ShardQueue>, mail: &MailFrom) -> Result<(), Reply> {
        let settings = self.settings();
        let (intake, _) = self.0.destinations.under(shard);
        let at = AtMail { receiver: self, session, settings: &settings, intake, mail };
        self.0.checks.mail(&at).await.map_err(|stop| stop.reply)
    }

    /// Counts, records and logs a client that a check has stopped before MAIL.
    fn refuse_session(&self, session: &Session, stop: Stop) -> Reply {
        let Stop { reply, why, kind, .. } = stop;
        self.count_refused();
        let (peer, why) = (session.peer.to_string(), why.unwrap_or_else(|| reply.to_string()));
        let helo = session.helo.as_deref();
        if self.0.repeats.is_told(kind.unwrap_or(Kind::RefusedConnection), client(session), Instant::now()) {
            if let Some(recorder) = self.events() {
                events::connection(recorder, &session.peer, &why);
            }
            tracing::info!(peer, helo, why, "connection refused");
        } else {
            tracing::debug!(peer, helo, why, "connection refused")
        }
        reply
    }

    /// Logs that a login has sent from an address that is none of its own.
    fn tell_foreign_sender(&self, session: &Session, user: &str, sender: &ReversePath) {
        let (peer, from) = (session.peer.to_string(), sender.to_string());
        if self.0.repeats.is_told(Kind::Refused, client(session), Instant::now()) {
            tracing::info!(peer, user, from, "sender refused: not an address of this login")
        } else {
            tracing::debug!(peer, user, from, "sender refused: not an address of this login")
        }
    }

    /// Logs a login and records its event. Every accepted login is recorded, so that the use of a stolen password can be found; refused ones only as often as they are logged.
    fn record_login(
        &self,
        (peer, session): (&Peer, Option<&Session>),
        mechanism: &str,
        user: &str,
        failure: Option<LoginFailure>,
    ) {
        let why = failure.map(|failure| failure.to_string());
        let kind = if why.is_none() { Kind::Login } else { Kind::FailedLogin };
        let told = self.0.repeats.is_told(kind, About::Client(peer.ip()), Instant::now());
        if let Some(recorder) = self.events().filter(|_| told || why.is_none()) {
            events::login(recorder, (peer, session), mechanism, user, failure);
        }
        let peer = events::peer_name(peer);
        let tls = session.and_then(|session| session.tls.as_deref()).map(certificates::version);
        match (why, told) {
            (None, true) => tracing::info!(peer, user, mechanism, tls, "logged in"),
            (None, false) => tracing::debug!(peer, user, mechanism, tls, "logged in"),
            (Some(why), true) => tracing::info!(peer, user, mechanism, tls, why, "login failed"),
            (Some(why), false) => tracing::debug!(peer, user, mechanism, tls, why, "login failed"),
        }
    }

    /// Checks a password and records the outcome. `session`: of SMTP.
    async fn check_login(
        &self,
        (peer, session): (&Peer, Option<&Session>),
        mechanism: &str,
        claim: PasswordClaim,
    ) -> Result<LoggedIn, LoginFailure> {
        let settings = self.settings();
        let user = logged(&claim.user).to_owned();
        let origin = session.map_or_else(|| reading(peer), |_| sending(peer));
        let checked = self.0.gate.check(&settings.logins, &settings.directory, origin, claim).await;
        let name = checked.as_ref().map_or(&user, |login| &login.name);
        self.record_login((peer, session), mechanism, name, checked.as_ref().err().copied());
        checked
    }

    /// Counts a wrong token of HTTP for its client, and waits as after a wrong password.
    pub async fn wrong_token(&self, client: Option<IpAddr>, presented: &str) -> LoginFailure {
        // Without an address it has come by a UNIX socket.
        let peer = client.map_or(Peer::Unix, |ip| Peer::Tcp { remote: (ip, 0).into(), local: (ip, 0).into() });
        let failure = self.0.gate.wrong_token(peer.network(), presented).await;
        let (what, failure) = match failure {
            LoginFailure::Wrong(_) if is_page_link(presented) => ("a link to the page", LoginFailure::Wrong(USED_LINK)),
            failure => ("a token", failure),
        };
        self.record_login((&peer, None), "HTTP", what, Some(failure));
        failure
    }

    async fn check_size(&self, at: &AtMail<'_>, size: u64) -> Result<(), Reply> {
        let AtMail { session, settings, intake, .. } = *at;
        if let Err(too_much) = self.0.shares.check(session.peer.network(), size, settings.limits(session).allowance) {
            let (peer, why) = (session.peer.to_string(), too_much.to_string());
            if self.0.repeats.is_told(Kind::Refused, client(session), Instant::now()) {
                tracing::info!(peer, size, why, "no room for a large message")
            } else {
                tracing::debug!(peer, size, why, "no room for a large message")
            }
            return Err(share_is_full());
        }
        let error = match timeout(STORE_PATIENCE, intake.wait_for_room(size)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(too_slow()),
        };
        let help = self.help(Kind::NoSpace);
        let (peer, error_text) = (session.peer.to_string(), error.to_string());
        if self.0.repeats.is_told(Kind::NoSpace, About::Name(&self.0.spool), Instant::now()) {
            tracing::warn!(peer, size, error = error_text, help, "no room for a large message")
        } else {
            tracing::debug!(peer, size, error = error_text, "no room for a large message")
        }
        Err(reply_to(&error))
    }

    /// Advice for the operator.
    fn help(&self, kind: Kind) -> String {
        let spool = &self.0.spool;
        match kind {
            Kind::NoSpace => {
                format!("free space on the disk of {spool}; `posthaste spool inspect {spool}` lists what waits there")
            }
            Kind::Slow => format!("the disk of {spool}, or that of the mailboxes, is overloaded or does not answer"),
            Kind::Broken => {
                format!(
                    "check the kernel's log for errors of the disk of {spool}; after a failed sync, restart the server"
                )
            }
            Kind::MailboxFull => format!("`posthaste spool inspect {spool}` shows why it cannot be written"),
            Kind::AccountFull => "`[quota]` sets the limit".to_owned(),
            Kind::NoMemory => "raise limits.memory_bytes".to_owned(),
            Kind::QueueFull => {
                "`posthaste queue summary` shows what waits; `relay.queue_recipients` is the bound".to_owned()
            }
            Kind::OverQuota => {
                "is its password stolen, or a program abused? `auth.recipient_rate` sets the limit".to_owned()
            }
            Kind::NotSigned => "`posthaste dkim list` shows the key that cannot be used".to_owned(),
            Kind::NotVerified => "the next hop cannot be asked for its recipients".to_owned(),
            Kind::Login | Kind::FailedLogin => String::new(),
            Kind::Refused | Kind::RefusedRecipient | Kind::RefusedConnection | Kind::FailedTls | Kind::Abandoned => {
                String::new()
            }
        }
    }

    fn log(&self, line: &LogLine, session: &Session, envelope: &Envelope, outcome: &MessageOutcome, begun: Instant) {
        let kind = match line.trouble {
            _ if line.abandoned => Kind::Abandoned,
            _ if outcome.is_accepted() => {
                self.0.meters.accepted(begun.elapsed());
                return line.write(Severity::Info, String::new(), session, envelope, outcome, begun);
            }
            Some(trouble) => trouble,
            None => Kind::Refused,
        };
        let about = if kind.is_ours() { About::Name(&self.0.spool) } else { client(session) };
        let severity = if self.0.repeats.is_told(kind, about, Instant::now()) {
            if kind == Kind::Broken {
                Severity::Error
            } else if kind.is_ours() {
                Severity::Warn
            } else {
                Severity::Info
            }
        } else {
            Severity::Debug
        };
        let help = if severity == Severity::Debug { String::new() } else { self.help(kind) };
        line.write(severity, help, session, envelope, outcome, begun);
    }
}

/// Why a link to the page opens nothing.
const USED_LINK: &str = "it was used, or is older than 10 minutes";

/// The part of a login's name that is logged; some type their password there.
fn logged(user: &str) -> &str {
    const BYTES_MAX: usize = 100;
    &user[..user.floor_char_boundary(BYTES_MAX)]
}

/// A client of SMTP.
fn sending(peer: &Peer) -> LoginOrigin {
    LoginOrigin { door: LoginDoor::Sending, network: peer.network() }
}

/// A client that reads mail.
fn reading(peer: &Peer) -> LoginOrigin {
    LoginOrigin { door: LoginDoor::Reading, network: peer.network() }
}

/// The client that a line counts for.
fn client(session: &Session) -> About<'static> {
    About::Client(session.peer.ip())
}
