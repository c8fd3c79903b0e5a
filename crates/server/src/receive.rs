//! From a message on the wire to a message in the spool: what the server answers to each recipient and each body.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use posthaste_delivery::DeliveryError;
use posthaste_delivery::local::{LineEnds, LocalDelivery, Message};
use posthaste_directory::{self as directory, Directory, Route};
use posthaste_message::{DateTime, Received};
use posthaste_smtp::driver::{self, Body, ByNetwork, Handler, Peer, Session};
use posthaste_smtp::{BodyError, Envelope, MailFrom, MessageOutcome, RcptTo, Reply};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::body::{Gathered, Refusal, gather};
use crate::config::{Config, Limits};
use crate::listening;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget};
use crate::message_log::{LogLine, Severity};
use crate::repeats::{About, Kind, LeftOut, Repeats};
use crate::shares::{Allowance, SpoolShares};
use crate::transaction::{Full, Transaction};

/// What a reload replaces while sessions go on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub host_name: String,
    pub directory: Directory,
    /// For each listener, in their order.
    limits: Vec<ByNetwork<MessageLimits>>,
}

/// The limits of a message that the smtp crate does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLimits {
    pub hops: usize,
    pub allowance: Allowance,
}

impl From<Limits> for MessageLimits {
    fn from(limits: Limits) -> Self {
        Self { hops: limits.hops, allowance: (&limits).into() }
    }
}

impl Settings {
    /// # Panics
    /// When `config` was not checked.
    pub fn new(config: &Config) -> Self {
        let limits = config.listeners.iter().map(|listener| listening::limits(config, listener).map(Into::into));
        Self { host_name: config.host_name.clone(), directory: config.directory(), limits: limits.collect() }
    }

    fn limits(&self, session: &Session) -> MessageLimits {
        *self.limits[session.listener].get(session.peer.ip())
    }
}

/// Receives for all listeners. Clones share everything.
#[derive(Clone)]
pub(crate) struct Receiver(Arc<Shared>);

struct Shared {
    settings: RwLock<Arc<Settings>>,
    store: LocalDelivery,
    memory: MemoryBudget,
    shares: SpoolShares,
    ids: Ids,
    turned_away: AtomicU64,
    repeats: Repeats,
    /// Where the store keeps what it has promised, for messages to the operator.
    spool: String,
}

impl Receiver {
    pub fn new(settings: Settings, store: LocalDelivery, memory: MemoryBudget, spool: &Path) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let (repeats, spool) = (Repeats::default(), spool.display().to_string());
        let (ids, turned_away) = (Ids::new(), AtomicU64::new(0));
        let shares = SpoolShares::default();
        Self(Arc::new(Shared { settings, store, memory, shares, ids, turned_away, repeats, spool }))
    }

    /// What the log has left out since this was asked last; `all`: even a moment ago.
    pub fn left_out(&self, all: bool) -> Vec<LeftOut> {
        self.0.repeats.left_out(Instant::now(), all)
    }

    /// Puts new settings in force for whatever begins from now on.
    pub fn replace(&self, settings: Settings) {
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Clients since the start that were told that there are too many of them.
    pub fn turned_away(&self) -> u64 {
        self.0.turned_away.load(Ordering::Relaxed)
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads, keeps and answers one message; the log line is the caller's.
    async fn receive(
        &self,
        session: &Session,
        transaction: Transaction,
        envelope: &Envelope,
        body: &mut Body<'_>,
        log: &mut LogLine,
    ) -> MessageOutcome {
        let settings = self.settings();
        let limits = settings.limits(session);
        let trace = received_field(&settings, session, envelope, &log.id);
        let share = self.0.shares.begin(session.peer.network(), limits.allowance);
        let gathered = gather(body, envelope, trace, limits, &self.0.memory, &self.0.store, share).await;
        let Gathered { body: stored, bytes, summary, room, share } = match gathered {
            Ok(gathered) => gathered,
            Err(Refusal::Body(error)) => {
                log.abandoned = is_abandoned(&error);
                log.why = Some(error.to_string());
                return error.reply().into();
            }
            Err(Refusal::Loop { hops }) => {
                log.why = Some(format!("{hops} hops"));
                return Reply::new(554, "5.4.6", "Too many hops, the message is in a loop").into();
            }
            Err(Refusal::Delivery(error)) => return log.refused(&error).into(),
            Err(Refusal::Spool(error)) => return log.unspoolable(&error).into(),
            Err(Refusal::Share(too_much)) => {
                log.why = Some(too_much.to_string());
                return share_is_full().into();
            }
            Err(Refusal::Slow) => return log.too_slow().into(),
        };
        (log.bytes, log.message_id) = (bytes, summary.message_id);
        let targets = transaction.targets(envelope);
        (log.mailboxes, log.discarded) = (targets.len(), transaction.discarded());
        if targets.is_empty() {
            return MessageOutcome::accepted(format!("Accepted as {}", log.id));
        }
        let message = Message { targets, body: stored, line_ends: LineEnds::ToLf };
        let kept = body.within(STORE_PATIENCE, self.0.store.deliver_message(message)).await;
        drop((room, share, transaction));
        match kept {
            Some(Ok(_)) => MessageOutcome::accepted(format!("Kept as {}", log.id)),
            Some(Err(error)) => log.refused(&error).into(),
            // It may be kept all the same, and then comes twice, as it would if the client had lost patience.
            None => log.too_slow().into(),
        }
    }
}

impl Handler for Receiver {
    type State = ();
    type Transaction = Transaction;

    /// Too many are counted, and told of now and then; who may not connect is named.
    fn turned_away(&self, _: usize, peer: &Peer, why: &driver::Refusal) {
        use driver::Refusal::{NotAProxy, NotAllowed, Proxy};
        if !matches!(why, NotAllowed | NotAProxy | Proxy(_)) {
            self.0.turned_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (peer_text, why) = (peer.to_string(), why.to_string());
        match self.0.repeats.is_told(Kind::RefusedConnection, About::Client(peer.ip()), Instant::now()) {
            true => tracing::info!(peer = peer_text, why, "connection refused"),
            false => tracing::debug!(peer = peer_text, why, "connection refused"),
        }
    }

    /// A large message goes to a file; who announces one hears now that there is no room for it, not when all of it was sent.
    async fn mail(&self, session: &mut Session, _: &mut Transaction, mail: &MailFrom) -> Result<(), Reply> {
        let Some(size) = mail.size.filter(|&size| size > LARGE_BODY_BYTES as u64) else { return Ok(()) };
        if let Err(too_much) =
            self.0.shares.check(session.peer.network(), size, self.settings().limits(session).allowance)
        {
            let (peer, why) = (session.peer.to_string(), too_much.to_string());
            match self.0.repeats.is_told(Kind::Refused, client(session), Instant::now()) {
                true => tracing::info!(peer, size, why, "no room for a large message"),
                false => tracing::debug!(peer, size, why, "no room for a large message"),
            }
            return Err(share_is_full());
        }
        let store = self.0.store.clone();
        let error = match timeout(STORE_PATIENCE, spawn_blocking(move || store.check_room(size))).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) => error,
            Ok(Err(_)) => DeliveryError::Closed,
            Err(_) => return Err(too_slow()),
        };
        let help = self.help(Kind::NoSpace);
        let (peer, error_text) = (session.peer.to_string(), error.to_string());
        match self.0.repeats.is_told(Kind::NoSpace, About::Name(&self.0.spool), Instant::now()) {
            true => tracing::warn!(peer, size, error = error_text, help, "no room for a large message"),
            false => tracing::debug!(peer, size, error = error_text, "no room for a large message"),
        }
        Err(reply_to(&error))
    }

    async fn rcpt(
        &self,
        session: &mut Session,
        transaction: &mut Transaction,
        _: &Envelope,
        rcpt: &RcptTo,
    ) -> Result<(), Reply> {
        let Err((kind, ours, reply)) = self.take_recipient(transaction, rcpt) else { return Ok(()) };
        let about = ours.as_deref().map_or_else(|| client(session), About::Name);
        let told = self.0.repeats.is_told(kind, about, Instant::now());
        if !told && !tracing::enabled!(tracing::Level::DEBUG) {
            return Err(reply);
        }
        let (to, reply_text) = (rcpt.forward_path.to_string(), reply.to_string());
        let peer = session.peer.to_string();
        match (told, kind.is_ours()) {
            (true, true) => {
                let about = about.to_string();
                tracing::warn!(peer, to, about, reply = reply_text, help = self.help(kind), "recipient refused");
            }
            (true, false) => tracing::info!(peer, to, reply = reply_text, "recipient refused"),
            (false, _) => tracing::debug!(peer, to, reply = reply_text, "recipient refused"),
        }
        Err(reply)
    }

    async fn message(
        &self,
        session: &mut Session,
        transaction: Transaction,
        envelope: Envelope,
        body: &mut Body<'_>,
    ) -> MessageOutcome {
        let begun = Instant::now();
        let mut log = LogLine { id: self.0.ids.next(), ..LogLine::default() };
        let outcome = self.receive(session, transaction, &envelope, body, &mut log).await;
        self.log(&log, session, &envelope, &outcome, begun);
        outcome
    }
}

impl Receiver {
    /// Otherwise why not, of which mailbox if of one, and what the client is told.
    fn take_recipient(&self, to: &mut Transaction, rcpt: &RcptTo) -> Result<(), (Kind, Option<String>, Reply)> {
        let mailboxes = match self.settings().directory.recipient(&rcpt.forward_path) {
            Route::Local(mailboxes) => Some(mailboxes),
            Route::Discard => None,
            Route::Refused(refusal) => return Err((Kind::RefusedRecipient, None, refusal.reply())),
            // Nothing else is configured.
            _ => return Err((Kind::RefusedRecipient, None, directory::Refusal::Relay.reply())),
        };
        // Mail that waits for a mailbox that cannot be written is bounded, and the bound is felt here.
        if let Err(full) =
            self.0.store.check_mailboxes(mailboxes.iter().flat_map(|found| found.iter()).map(|mailbox| &*mailbox.path))
        {
            let reply = Reply::new(452, "4.2.2", "Too much mail waits for this mailbox, try again later");
            return Err((Kind::MailboxFull, Some(full.mailbox.to_string()), reply));
        }
        to.add(mailboxes, &self.0.memory).map_err(|full| match full {
            // RFC 5321 section 4.5.3.1.10: the client sends to the rest in another transaction.
            Full::Transaction => {
                (Kind::RefusedRecipient, None, Reply::new(452, "4.5.3", "Too many mailboxes for one message"))
            }
            Full::Memory => {
                let reply = Reply::new(452, "4.3.1", "Too many recipients at a time, try again later");
                (Kind::NoMemory, Some("limits.memory_bytes".to_owned()), reply)
            }
        })
    }

    /// What an operator can do about it.
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
            Kind::NoMemory => "raise limits.memory_bytes".to_owned(),
            Kind::Refused | Kind::RefusedRecipient | Kind::RefusedConnection | Kind::Abandoned => String::new(),
        }
    }

    fn log(&self, line: &LogLine, session: &Session, envelope: &Envelope, outcome: &MessageOutcome, begun: Instant) {
        let kind = match line.trouble {
            _ if line.abandoned => Kind::Abandoned,
            _ if outcome.is_accepted() => {
                return line.write(Severity::Info, String::new(), session, envelope, outcome, begun);
            }
            Some(trouble) => trouble,
            None => Kind::Refused,
        };
        let about = if kind.is_ours() { About::Name(&self.0.spool) } else { client(session) };
        let severity = match self.0.repeats.is_told(kind, about, Instant::now()) {
            false => Severity::Debug,
            true if kind == Kind::Broken => Severity::Error,
            true if kind.is_ours() => Severity::Warn,
            true => Severity::Info,
        };
        let help = if severity == Severity::Debug { String::new() } else { self.help(kind) };
        line.write(severity, help, session, envelope, outcome, begun);
    }
}

/// Whom lines about a client are counted for.
fn client(session: &Session) -> About<'static> {
    About::Client(session.peer.ip())
}

fn received_field(settings: &Settings, session: &Session, envelope: &Envelope, id: &str) -> Bytes {
    let only = match envelope.recipients.as_slice() {
        [one] => one.forward_path.address().map(ToString::to_string),
        _ => None,
    };
    let mut field = Vec::with_capacity(256);
    Received {
        helo: session.helo.as_deref().unwrap_or_default(),
        peer: session.peer.ip(),
        by: &settings.host_name,
        with: session.with_keyword(envelope.mail.smtputf8),
        id,
        recipient: only.as_deref(),
        date: DateTime::from_unix(unix_micros() / 1_000_000),
    }
    .write_to(&mut field);
    field.into()
}

pub(crate) fn reply_to(error: &DeliveryError) -> Reply {
    match error {
        DeliveryError::TooLarge { .. } => {
            Reply::new(552, "5.3.4", "Message and recipients are larger than can be kept")
        }
        DeliveryError::BadMailbox(_) => Reply::new(550, "5.1.3", "Not a mailbox name that can be used here"),
        DeliveryError::Full(_) => Reply::new(452, "4.3.1", "No space to keep the message, try again later"),
        DeliveryError::Busy => Reply::new(451, "4.3.2", "Too much mail waits to be written, try again later"),
        DeliveryError::Closed => Reply::new(421, "4.3.2", "The server is shutting down"),
        _ => Reply::new(451, "4.3.0", "The message could not be kept, try again later"),
    }
}

fn share_is_full() -> Reply {
    Reply::new(452, "4.3.1", "Too much of your mail is under way, try again later")
}

pub(crate) fn too_slow() -> Reply {
    Reply::new(452, "4.3.1", "The storage is too slow, try again later")
}

/// Whether the message ended because its client did, in one way or another.
fn is_abandoned(error: &BodyError) -> bool {
    matches!(error, BodyError::Reset | BodyError::Disconnected | BodyError::TimedOut | BodyError::Io(_))
}

/// Names for messages in the log and in Received: the time this server began and a count, so none comes twice.
struct Ids {
    begun: String,
    next: AtomicU64,
}

impl Ids {
    fn new() -> Self {
        Self { begun: base36(unix_micros().unsigned_abs()), next: AtomicU64::new(1) }
    }

    fn next(&self) -> String {
        format!("{}.{}", self.begun, base36(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((number % 36) as u32, 36).expect("a digit below 36"));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// How long the store may take over a message before the client is told to come back. The client's own patience is ten minutes
/// (RFC 5321 section 4.5.3.2.6).
pub(crate) const STORE_PATIENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_base_36() {
        assert_eq!([0, 35, 36, 46655, 46656].map(base36), ["0", "z", "10", "zzz", "1000"]);
    }

    #[test]
    fn each_failure_has_its_reply() {
        use posthaste_spool::AppendError;

        let check = |error: DeliveryError, expected: &str| {
            let reply = reply_to(&error).to_string();
            assert!(reply.starts_with(expected), "{error}: {reply}");
        };
        let error = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        check(DeliveryError::Full(error(std::io::ErrorKind::StorageFull)), "452 4.3.1 ");
        check(DeliveryError::Busy, "451 4.3.2 ");
        check(DeliveryError::Closed, "421 4.3.2 ");
        check(DeliveryError::Sync(error(std::io::ErrorKind::Other)), "451 4.3.0 ");
        check(AppendError::TooLarge { bytes: 2, limit: 1 }.into(), "552 5.3.4 ");
        check(AppendError::Poisoned("a sync failed".into()).into(), "451 4.3.0 ");
        check(DeliveryError::BadMailbox("..".into()), "550 5.1.3 ");
    }
}
