//! From a message on the wire to a message in the spool: what the server answers to each recipient and each body.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_delivery::DeliveryError;
use posthaste_delivery::local::{Body as StoredBody, LineEnds, LocalDelivery, Message};
use posthaste_directory::{self as directory, Mailbox, Place, Route};
use posthaste_events::Recorder;
use posthaste_message::{DateTime, HeaderScan, Received, ReceivedLocally};
use posthaste_relay::sender::Relay;
use posthaste_smtp::driver::{self, Body, Handler, Peer, Session};
use posthaste_smtp::{BodyError, Envelope, ForwardPath, MailFrom, MessageOutcome, RcptTo, Reply, ReversePath, Witness};
use posthaste_spool::Lsn;
use posthaste_transport::Transports;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::body::{Gathered, Refusal, STORE_PATIENCE, gather};
use crate::events;
use crate::forward::{Back, Forwarding};
use crate::future;
use crate::head::Head;
use crate::ids::{Ids, unix_micros};
use crate::live::Live;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget};
use crate::message_log::{LogLine, Severity};
use crate::repeats::{About, Kind, LeftOut, Repeats};
use crate::replies::{reply_to, share_is_full, too_slow};
use crate::returned::{self, ReturnPath, Returned};
use crate::settings::Settings;
use crate::shares::SpoolShares;
use crate::success::{self, Success};
use crate::transaction::{Destinations, Full, Transaction};

/// A receiver that does not keep the others: what the relay has of it, which it keeps itself.
#[derive(Clone)]
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
    store: LocalDelivery,
    store_patience: Duration,
    /// Open once the configuration names one.
    transports: OnceLock<Transports>,
    /// Open if the configuration lets anybody use it.
    relay: OnceLock<(Relay, Forwarding)>,
    memory: MemoryBudget,
    shares: SpoolShares,
    ids: Ids,
    turned_away: AtomicU64,
    repeats: Arc<Repeats>,
    /// Where the store keeps what it has promised, for messages to the operator.
    spool: String,
    /// The event log, if there is one.
    events: Option<Recorder>,
    live: Live,
}

impl Receiver {
    pub fn new(
        settings: Settings,
        store: LocalDelivery,
        memory: MemoryBudget,
        spool: &Path,
        repeats: Arc<Repeats>,
    ) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let spool = spool.display().to_string();
        let (ids, turned_away) = (Ids::new(), AtomicU64::new(0));
        let (shares, transports, relay) = (SpoolShares::default(), OnceLock::new(), OnceLock::new());
        let store_patience = STORE_PATIENCE;
        let events = None;
        Self(Arc::new(Shared {
            settings,
            store,
            store_patience,
            transports,
            relay,
            memory,
            shares,
            ids,
            turned_away,
            repeats,
            spool,
            events,
            live: Live::default(),
        }))
    }

    /// Tells an event log.
    ///
    /// # Panics
    /// When it was cloned already.
    pub fn recording(mut self, events: Option<Recorder>) -> Self {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet").events = events;
        self
    }

    /// As [`new`](Self::new), with another patience than [`STORE_PATIENCE`].
    #[cfg(test)]
    pub fn with_patience(settings: Settings, store: LocalDelivery, patience: Duration) -> Self {
        let memory = MemoryBudget::new(0);
        let mut shared = Self::new(settings, store, memory, Path::new("spool"), Arc::default()).0;
        Arc::get_mut(&mut shared).expect("nobody else has it").store_patience = patience;
        Self(shared)
    }

    /// Who looks on.
    pub fn live(&self) -> &Live {
        &self.0.live
    }

    /// The event log, if there is one.
    pub fn events(&self) -> Option<&Recorder> {
        self.0.events.as_ref()
    }

    /// What the log has left out since this was asked last; `all`: even a moment ago.
    pub fn left_out(&self, all: bool) -> Vec<LeftOut> {
        self.0.repeats.left_out(Instant::now(), all)
    }

    /// Puts new settings in force for whatever begins from now on.
    pub fn replace(&self, settings: Settings) {
        *self.0.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Delivers to transports from now on.
    pub fn set_transports(&self, transports: Transports) {
        // The server has opened none.
        let _ = self.0.transports.set(transports);
    }

    /// Those that are open.
    pub fn transports(&self) -> Option<&Transports> {
        self.0.transports.get()
    }

    /// Takes mail for other hosts from now on.
    pub fn set_relay(&self, relay: Relay, forwarding: Forwarding) {
        // Opened once.
        let _ = self.0.relay.set((relay, forwarding));
    }

    /// It, if it is open.
    pub fn relay(&self) -> Option<&Relay> {
        self.0.relay.get().map(|(relay, _)| relay)
    }

    /// What becomes of senders whose mail is forwarded.
    pub fn forwarding(&self) -> Option<&Forwarding> {
        self.0.relay.get().map(|(_, forwarding)| forwarding)
    }

    /// Where mail is kept.
    pub fn store(&self) -> &LocalDelivery {
        &self.0.store
    }

    /// For the relay, which the receiver holds.
    pub fn downgrade(&self) -> WeakReceiver {
        WeakReceiver(Arc::downgrade(&self.0))
    }

    /// What messages in memory may take.
    pub fn memory(&self) -> &MemoryBudget {
        &self.0.memory
    }

    /// Clients since the start that were told that there are too many of them.
    pub fn turned_away(&self) -> u64 {
        self.0.turned_away.load(Ordering::Relaxed)
    }

    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.0.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads, keeps and answers one message; the log line is the caller's.
    async fn receive(
        &self,
        session: &Session,
        mut transaction: Transaction,
        envelope: &mut Envelope,
        body: &mut Body<'_>,
        log: &mut LogLine,
    ) -> MessageOutcome {
        let settings = self.settings();
        if let Some(other) = settings.maps.sender(&envelope.mail.reverse_path) {
            envelope.mail.reverse_path = other;
        }
        let envelope = &*envelope;
        let limits = settings.limits(session);
        let trace = received_field(&settings, session, envelope, &log.id);
        let share = self.0.shares.begin(session.peer.network(), limits.allowance);
        let is_trusted = settings.is_trusted(session);
        let fields = settings.tenants.fields().filter(|_| is_trusted);
        let canonical = settings.maps.canonical().filter(|_| is_trusted);
        let head = Head::new(HeaderScan::watching(&settings.host_name), fields.cloned(), canonical.cloned());
        let gathered = gather(body, envelope, (trace, head), limits, &self.0.memory, &self.0.store, share).await;
        let Gathered { body: stored, bytes, summary, said, room, share } = match gathered {
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
            Err(Refusal::NoName { field }) => {
                log.why = Some(format!("{field} has no name"));
                return Reply::new(554, "5.6.0", format!("The field {field} needs a name of one word")).into();
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
        if transaction.is_forwarded() && summary.own_hops >= FORWARDS_MAX {
            log.why = Some(format!("forwarded {} times", summary.own_hops));
            return Reply::new(554, "5.4.6", "Forwarded by this server too often, the message is in a loop").into();
        }
        if let Some(pool) = settings.tenants.unknown_pool(&said.labels) {
            log.why = Some(format!("there is no pool {pool}"));
            return Reply::new(554, "5.6.0", format!("There is no pool {pool}")).into();
        }
        for copy in settings.maps.copies(envelope) {
            if let Err(reply) = self.add_copy(&mut transaction, &copy) {
                log.why = Some(format!("no copy to {}: {reply}", copy.forward_path));
                return Reply::new(451, "4.3.5", "Mail cannot be accepted now, try again later").into();
            }
        }
        let mut destinations = self.destinations(&transaction, envelope);
        if let Some(remote) = &mut destinations.remote {
            let sender = &envelope.mail.reverse_path;
            settings.tenants.label(remote, session, sender, is_trusted, said.labels);
            if envelope.mail.hold.is_some() || envelope.mail.expires.is_some() {
                let (hold_secs, expires_secs) = future::times(&envelope.mail, unix_micros() / 1_000_000);
                (remote.hold_secs, remote.expires_secs) = (hold_secs, expires_secs);
            }
        }
        (log.mailboxes, log.discarded) = (destinations.len(), transaction.discarded());
        let recorder = self.0.events.as_ref();
        let event = recorder.and_then(|recorder| events::received(recorder, log, session, envelope, &destinations));
        if destinations.len() == 0 {
            if !transaction.returned().is_empty() {
                // Nobody is left to whom it could go.
                self.tell_returned(transaction.returned(), returned::read(&stored).as_ref(), Lsn::ZERO);
            }
            return MessageOutcome::accepted(format!("Accepted as {}", log.id));
        }
        let report = if transaction.returned().is_empty() { None } else { returned::read(&stored) };
        let successes =
            if envelope.mail.reverse_path == ReversePath::Null { Vec::new() } else { transaction.successes() };
        let header = match &stored {
            StoredBody::Memory(pieces) if !successes.is_empty() => success::header(pieces),
            // A large one is in a file: its notification is without a header.
            _ => Vec::new(),
        };
        let Destinations { maildirs: targets, transports, remote } = destinations;
        let entry = |outside| self.transports().expect("open since its recipient was accepted").entry(outside);
        let queued = |remote| self.relay().expect("open since its recipient was accepted").entry(remote);
        let also = event.into_iter().chain(transports.map(entry)).chain(remote.map(queued)).collect();
        let message = Message { targets, body: stored, line_ends: LineEnds::ToLf, also };
        let kept = self.0.store.deliver_unless(message, body.elapsed(self.0.store_patience)).await;
        drop((room, share));
        let returned = transaction.into_returned();
        match kept {
            Ok(message) => {
                self.tell_returned(&returned, report.as_ref(), Lsn::new(message.id()));
                if !successes.is_empty() {
                    self.tell_success(envelope, &successes, &header).await;
                }
                MessageOutcome::accepted(format!("Kept as {}", log.id))
            }
            Err(error) => log.refused(&error).into(),
        }
    }
}

impl Handler for Receiver {
    type State = ();
    type Transaction = Transaction;

    fn witness(&self, session: &Session) -> Option<Arc<dyn Witness>> {
        let peer = Some(session.peer.ip()).flatten();
        self.live().session(true, peer, || session.peer.to_string())
    }

    /// Too many are counted, and told of now and then; who may not connect is named.
    fn turned_away(&self, _: usize, peer: &Peer, why: &driver::Refusal) {
        use driver::Refusal::{NotAProxy, NotAllowed, Proxy};
        if !matches!(why, NotAllowed | NotAProxy | Proxy(_)) {
            self.0.turned_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (peer_text, why) = (peer.to_string(), why.to_string());
        if let Some(recorder) = &self.0.events {
            events::connection(recorder, peer, &why);
        }
        match self.0.repeats.is_told(Kind::RefusedConnection, About::Client(peer.ip()), Instant::now()) {
            true => tracing::info!(peer = peer_text, why, "connection refused"),
            false => tracing::debug!(peer = peer_text, why, "connection refused"),
        }
    }

    /// A large message goes to a file; who announces one hears now that there is no room for it, not when all of it was sent.
    async fn mail(&self, session: &mut Session, _: &mut Transaction, mail: &MailFrom) -> Result<(), Reply> {
        let asks_time = mail.hold.is_some() || mail.expires.is_some();
        let secs_max = || self.settings().limits(session).future_release_secs;
        let outcome = match asks_time.then(|| future::check(mail, secs_max(), unix_micros() / 1_000_000)) {
            Some(Err(reply)) => Err(reply),
            Some(Ok(())) | None => self.check_size(session, mail).await,
        };
        if let (Some(recorder), Err(reply)) = (&self.0.events, &outcome) {
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
        let Err((kind, ours, reply)) =
            self.take_recipient(session, transaction, (rcpt, false), envelope.mail.hold.is_some())
        else {
            return Ok(());
        };
        if let Some(recorder) = &self.0.events {
            events::command(recorder, session, &envelope.mail.reverse_path, Some(&rcpt.forward_path), &reply);
        }
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
        mut envelope: Envelope,
        body: &mut Body<'_>,
    ) -> MessageOutcome {
        let begun = Instant::now();
        let mut log = LogLine { id: self.0.ids.next(), ..LogLine::default() };
        let outcome = self.receive(session, transaction, &mut envelope, body, &mut log).await;
        if let Some(recorder) = self.0.events.as_ref().filter(|_| log.abandoned || !outcome.is_accepted()) {
            events::message(recorder, &log, session, &envelope, &outcome);
        }
        self.log(&log, session, &envelope, &outcome, begun);
        outcome
    }
}

impl Receiver {
    async fn check_size(&self, session: &Session, mail: &MailFrom) -> Result<(), Reply> {
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

    /// Durable before the message is answered: a client that hears nothing sends it again, and is told again.
    async fn tell_success(&self, envelope: &Envelope, successes: &[Success], header: &[u8]) {
        let written = success::write(&self.settings().host_name, envelope, successes, header);
        let sender = envelope.mail.reverse_path.to_string();
        let told = self.notify(&sender[1..sender.len() - 1], written, None).await;
        if let Err(error) = told {
            tracing::warn!(sender, error, "the sender could not be told that its message is delivered");
        }
    }

    /// Where a message goes, and from whom it leaves.
    pub fn destinations(&self, transaction: &Transaction, envelope: &Envelope) -> Destinations {
        let settings = self.settings();
        let directory = &settings.directory;
        let detail = |address: &str| directory.detail(address).unwrap_or_default().into();
        let sender = &envelope.mail.reverse_path;
        let forwarding = self.forwarding().filter(|_| transaction.is_forwarded());
        let leaves_from = forwarding.map_or_else(|| sender.clone(), |forwarding| forwarding.sender(sender, directory));
        transaction.destinations(envelope, &leaves_from, detail)
    }

    /// Otherwise why not, of which mailbox if of one, and what the client is told. `is_open`: it may be at another host, for every client. `is_held`: it is to leave later.
    fn take_recipient(
        &self,
        session: &Session,
        to: &mut Transaction,
        (rcpt, is_open): (&RcptTo, bool),
        is_held: bool,
    ) -> Result<(), (Kind, Option<String>, Reply)> {
        let back = self.forwarding().map_or(Back::Ordinary, |forwarding| forwarding.back(&rcpt.forward_path));
        let mut turned_back = None;
        let returned = match self.return_path(&rcpt.forward_path) {
            ReturnPath::Ordinary => None,
            ReturnPath::Invalid => {
                return Err((Kind::RefusedRecipient, None, directory::Refusal::UnknownUser.reply()));
            }
            ReturnPath::NotNow => {
                let reply = Reply::new(451, "4.3.0", "This address cannot be looked up now, try again later");
                return Err((Kind::RefusedRecipient, None, reply));
            }
            ReturnPath::Ours(returned) => Some(returned),
        };
        if let Some(returned) = returned {
            return self.take_returned(session, to, rcpt, returned);
        }
        match back {
            Back::Ordinary => {}
            Back::Sender(forward_path) => turned_back = Some(RcptTo { forward_path, ..rcpt.clone() }),
            Back::Invalid => return Err((Kind::RefusedRecipient, None, directory::Refusal::UnknownUser.reply())),
        }
        let is_back = is_open || turned_back.is_some();
        let rcpt = turned_back.as_ref().unwrap_or(rcpt);
        let settings = self.settings();
        let maps = &settings.maps;
        let mapped = maps.recipient(rcpt);
        let rcpt = mapped.as_ref().unwrap_or(rcpt);
        let no_room = || {
            let reply = Reply::new(452, "4.3.1", "Too much mail waits for other hosts, try again later");
            (Kind::NoMemory, None, reply)
        };
        let has_room = |recipients| self.relay().is_some_and(|relay| relay.has_room(recipients));
        let mailboxes = match settings.directory.recipient(&rcpt.forward_path) {
            Route::Local(mailboxes) => Some(mailboxes),
            Route::Discard => None,
            Route::Refused(directory::Refusal::Relay) if is_back || self.may_relay(session, &rcpt.forward_path) => {
                if !is_back && !maps.has_recipient(&rcpt.forward_path) {
                    return Err((Kind::RefusedRecipient, None, directory::Refusal::UnknownUser.reply()));
                }
                if !has_room(1) {
                    return Err(no_room());
                }
                return to.add_remote(rcpt, &self.0.memory).map_err(too_many);
            }
            Route::Refused(refusal) => return Err((Kind::RefusedRecipient, None, refusal.reply())),
            // Nothing else is configured.
            _ => return Err((Kind::RefusedRecipient, None, directory::Refusal::Relay.reply())),
        };
        if is_held && mailboxes.iter().flat_map(|found| found.iter()).any(|found| found.place != Place::Remote) {
            let reply = Reply::new(550, "5.5.4", "Mail for this address cannot be held back, it is delivered here");
            return Err((Kind::RefusedRecipient, None, reply));
        }
        // Mail that waits for a mailbox that cannot be written is bounded, and the bound is felt here.
        let places = || mailboxes.iter().flat_map(|found| found.iter());
        let maildirs = places().filter_map(|Mailbox { place, .. }| match place {
            Place::Maildir(path) => Some(&**path),
            Place::Transport(_) | Place::Remote => None,
        });
        let is_full = self.0.store.check_mailboxes(maildirs).err().map(|full| full.mailbox);
        let is_full = is_full.map_or_else(|| self.check_transports(places()), |full| Err(Some(full)));
        if let Err(full) = is_full {
            let reply = match full {
                Some(_) => Reply::new(452, "4.2.2", "Too much mail waits for this mailbox, try again later"),
                None => Reply::new(451, "4.3.5", "This address cannot be served now, try again later"),
            };
            return Err((Kind::MailboxFull, full.map(|full| full.to_string()), reply));
        }
        let remote = places().filter(|mailbox| mailbox.place == Place::Remote).count() as u64;
        if remote > 0 && self.relay().is_some() && !has_room(remote) {
            return Err(no_room());
        }
        to.add(rcpt, mailboxes, &self.0.memory).map_err(too_many)
    }

    /// Mail to a return path of ours goes on to the sender behind it; if nobody knows that any more, it is read and goes nowhere.
    fn take_returned(
        &self,
        session: &Session,
        to: &mut Transaction,
        rcpt: &RcptTo,
        returned: Returned,
    ) -> Result<(), (Kind, Option<String>, Reply)> {
        let sender = returned.original.as_ref().map(|original| ForwardPath::parse(&format!("<{}>", original.sender)));
        let taken = match sender {
            Some(Ok(forward_path)) => {
                self.take_recipient(session, to, (&RcptTo { forward_path, ..rcpt.clone() }, true), false)
            }
            _ => to.add(rcpt, None, &self.0.memory).map_err(too_many),
        };
        // A sender that does not exist any more is no reason to refuse the report.
        match taken {
            Err((_, _, reply)) if reply.is_permanent() => to.add(rcpt, None, &self.0.memory).map_err(too_many)?,
            taken => taken?,
        }
        to.note_returned(returned);
        Ok(())
    }

    /// Adds somebody who gets a copy. Who may relay is no question: the configuration says so.
    fn add_copy(&self, to: &mut Transaction, copy: &RcptTo) -> Result<(), Reply> {
        let full = |_| Reply::new(452, "4.3.1", "no room for one recipient more");
        match self.settings().directory.recipient(&copy.forward_path) {
            Route::Local(mailboxes) => to.add(copy, Some(mailboxes), &self.0.memory).map_err(full),
            Route::Refused(directory::Refusal::Relay) if self.relay().is_some() => {
                to.add_remote(copy, &self.0.memory).map_err(full)
            }
            Route::Refused(refusal) => Err(refusal.reply()),
            _ => Ok(()),
        }
    }

    /// Whether mail for a domain that is not ours is sent on.
    fn may_relay(&self, session: &Session, path: &ForwardPath) -> bool {
        let (Some(_), Some(address)) = (self.relay(), path.address()) else { return false };
        self.settings().may_relay(session, &address.domain().to_string())
    }

    /// # Errors
    /// The transport for which too much mail waits; or none is open, or no relay.
    fn check_transports<'a>(&self, mut places: impl Iterator<Item = &'a Mailbox>) -> Result<(), Option<Arc<str>>> {
        places.try_for_each(|Mailbox { place, .. }| {
            let transport = match place {
                Place::Maildir(_) => return Ok(()),
                Place::Remote => return self.relay().map(drop).ok_or(None),
                Place::Transport(transport) => transport,
            };
            let transports = self.transports().ok_or(None)?;
            transports.check(transport).map_err(|full| Some(full.transport))
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

/// Why one recipient more is refused.
fn too_many(full: Full) -> (Kind, Option<String>, Reply) {
    match full {
        // RFC 5321 section 4.5.3.1.10: the client sends to the rest in another transaction.
        Full::Transaction => {
            (Kind::RefusedRecipient, None, Reply::new(452, "4.5.3", "Too many mailboxes for one message"))
        }
        Full::Memory => {
            let reply = Reply::new(452, "4.3.1", "Too many recipients at a time, try again later");
            (Kind::NoMemory, Some("limits.memory_bytes".to_owned()), reply)
        }
    }
}

/// A message that this server has received so often is in a loop if it would be forwarded once more: each time it may become several.
const FORWARDS_MAX: usize = 4;

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
    let (recipient, date) = (only.as_deref(), DateTime::from_unix(unix_micros() / 1_000_000));
    if let Peer::Local { uid } = session.peer {
        let (by, utf8) = (&*settings.host_name, envelope.mail.smtputf8);
        ReceivedLocally { by, uid, id, recipient, utf8, date }.write_to(&mut field);
        return field.into();
    }
    Received {
        helo: session.helo.as_deref().unwrap_or_default(),
        peer: session.peer.ip(),
        by: &settings.host_name,
        with: session.with_keyword(envelope.mail.smtputf8),
        id,
        recipient,
        date,
    }
    .write_to(&mut field);
    field.into()
}

/// Whether the message ended because its client did, in one way or another.
fn is_abandoned(error: &BodyError) -> bool {
    matches!(error, BodyError::Reset | BodyError::Disconnected | BodyError::TimedOut | BodyError::Io(_))
}
