//! Receiving mail, from the wire into the spool: the replies to each recipient and each body.

mod checks;
mod folders;
mod injected;
mod log;
mod login_checks;
mod message;
mod readers;
mod receiver;
mod recipient;
mod sender;
mod signatures;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use posthaste_accounts::{LoggedIn, LoginSecrets, PasswordClaim};
use posthaste_intake::{Incoming, MemoryBudget, STORE_PATIENCE};
use posthaste_smtp::driver::{self, Handler, IncomingBody, Peer};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::sasl::scram::{self, ScramKeys, ScramProof};
use posthaste_smtp::{BodyError, Envelope, MailFrom, MessageOutcome, RcptTo, Reply, Witness};
use tokio::time::timeout;

pub(crate) use self::injected::{BodyOctets, InjectedBody, InjectedMail, Outcomes};
use self::login_checks::{logged, sending};
use self::message::SmtpBody;
use self::receiver::AtMail;
pub(crate) use self::receiver::{Receiver, WeakReceiver};
use crate::receive::cluster::begin_soon;
use crate::receive::destinations::Destinations;
use crate::receive::events;
use crate::receive::logins::{self, Session};
use crate::receive::message_log::LogLine;
use crate::receive::replies::{is_standby, reply_to, share_is_full, too_slow};
use crate::receive::settings::Settings;
use crate::receive::shards::ShardQueue;
use crate::receive::transaction::Transaction;
use crate::repeats::Repeats;

impl Handler for Receiver {
    type State = Option<Arc<LoginSecrets>>;
    type Transaction = Transaction;

    fn witness(&self, session: &Session) -> Option<Arc<dyn Witness>> {
        let peer = Some(session.peer.ip()).flatten();
        self.live().session(true, peer, || session.peer.to_string())
    }

    /// Mostly clients that speak no TLS, or do not trust the certificate.
    fn tls_failed(&self, session: &Session, error: &std::io::Error) {
        self.tell_failed_tls(session, error);
    }

    /// Counts connections refused by a limit, which are logged in sums. Logs each client that may not connect.
    fn turned_away(&self, _: usize, peer: &Peer, why: &driver::ConnectionRefusal) {
        use driver::ConnectionRefusal::{NotAProxy, NotAllowed, Proxy};
        if !matches!(why, NotAllowed | NotAProxy | Proxy(_)) {
            self.0.turned_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.tell_refused_peer(peer, &why.to_string());
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
        let checked = self.check_login(&session.peer, Some(session), mechanism, claim).await;
        let LoggedIn { name, secrets } = checked.map_err(logins::refusal)?;
        session.state = Some(secrets);
        Ok(name)
    }

    async fn scram_keys(&self, session: &mut Session, user: &str) -> Result<Option<ScramKeys>, Reply> {
        let settings = self.settings();
        let origin = sending(&session.peer);
        let keys = self.0.gate.scram_keys(&settings.logins, &settings.directory, origin, user).await;
        keys.map_err(|failure| {
            self.record_login(&session.peer, Some(session), scram::NAME, logged(user), Some(failure));
            logins::refusal(failure)
        })
    }

    async fn scram_proof(&self, session: &mut Session, proof: &ScramProof) -> Result<String, Reply> {
        let settings = self.settings();
        let origin = sending(&session.peer);
        let checked = self.0.gate.check_scram(&settings.logins, &settings.directory, origin, proof).await;
        let name = checked.as_ref().map_or_else(|_| logged(proof.user()), |login| &login.name);
        self.record_login(&session.peer, Some(session), proof.mechanism(), name, checked.as_ref().err().copied());
        let LoggedIn { name, secrets } = checked.map_err(logins::refusal)?;
        session.state = Some(secrets);
        Ok(name)
    }

    async fn mail(&self, session: &mut Session, to: &mut Transaction, mail: &MailFrom) -> Result<(), Reply> {
        to.announce(mail.size);
        let outcome = match self.begin_in_cluster(to).await {
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
        taken.map_err(|stop| self.refuse_recipient(session, &envelope.mail.reverse_path, rcpt, stop))
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
    /// A receiver with all checks.
    pub fn new(
        settings: Settings,
        destinations: Destinations,
        memory: MemoryBudget,
        spool: &Path,
        repeats: Arc<Repeats>,
    ) -> Self {
        Self::checking(checks::all(), settings, destinations, memory, spool, repeats)
    }

    /// Like [`new`](Self::new), with another patience than [`STORE_PATIENCE`].
    #[cfg(test)]
    pub fn with_patience(settings: Settings, destinations: Destinations, patience: std::time::Duration) -> Self {
        let memory = MemoryBudget::new(0);
        let mut shared = Self::new(settings, destinations, memory, Path::new("spool"), Arc::default()).0;
        Arc::get_mut(&mut shared).expect("nobody else has it").store_patience = patience;
        Self(shared)
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
        self.log_message(&log, session, &envelope, &outcome, begun);
        outcome
    }

    /// Begins a transaction under a shard of this node, where there is a cluster.
    async fn begin_in_cluster(&self, to: &mut Transaction) -> Result<(), Reply> {
        let Some(cluster) = self.cluster() else { return Ok(()) };
        to.hold(begin_soon(&**cluster, to.must_be_home()).await.ok_or_else(is_standby)?);
        Ok(())
    }

    async fn check_mail(&self, session: &Session, shard: Option<&ShardQueue>, mail: &MailFrom) -> Result<(), Reply> {
        let settings = self.settings();
        let (intake, _) = self.0.destinations.under(shard);
        let at = AtMail { receiver: self, session, settings: &settings, intake, mail };
        self.0.checks.mail(&at).await.map_err(|stop| stop.reply)
    }

    async fn check_size(&self, at: &AtMail<'_>, size: u64) -> Result<(), Reply> {
        let AtMail { session, settings, intake, .. } = *at;
        if let Err(too_much) = self.0.shares.check(session.peer.network(), size, settings.limits(session).allowance) {
            self.tell_share_is_full(session, size, &too_much.to_string());
            return Err(share_is_full());
        }
        let error = match timeout(STORE_PATIENCE, intake.wait_for_room(size)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(too_slow()),
        };
        self.tell_no_room(session, size, &error.to_string());
        Err(reply_to(&error))
    }
}
