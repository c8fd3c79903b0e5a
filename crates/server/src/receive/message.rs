//! One message: its body read and kept, and the answer to it.

use bytes::Bytes;
use posthaste_delivery::local::{Body as StoredBody, LineEnds, Message};
use posthaste_message::{DateTime, Encryption, HeaderScan, Received, ReceivedLocally};
use posthaste_relay::report::Report;
use posthaste_smtp::driver::{Body, Peer};
use posthaste_smtp::{BodyError, Envelope, MessageOutcome, Reply, ReversePath};
use posthaste_spool::Lsn;

use super::{Receiver, check_login};
use crate::body::{Gathered, Refusal, gather};
use crate::certificates;
use crate::events;
use crate::future;
use crate::head::Head;
use crate::ids::unix_micros;
use crate::logins::Session;
use crate::message_log::LogLine;
use crate::replies::share_is_full;
use crate::returned::{self, Returned};
use crate::settings::Settings;
use crate::success::{self, Success};
use crate::transaction::{Destinations, Transaction};

impl Receiver {
    /// Reads, keeps and answers one message; the log line is the caller's.
    pub(super) async fn receive(
        &self,
        session: &Session,
        mut transaction: Transaction,
        envelope: &mut Envelope,
        body: &mut Body<'_>,
        log: &mut LogLine,
    ) -> MessageOutcome {
        let settings = self.settings();
        if let Err(reply) = check_login(session, &settings) {
            return reply.into();
        }
        if let Some(other) = settings.maps.sender(&envelope.mail.reverse_path) {
            envelope.mail.reverse_path = other;
        }
        let envelope = &*envelope;
        // Before the body is read: it waits with its client, and takes no memory here.
        let pause = self.0.store.intake().pause(transaction.has_remote());
        if !pause.is_zero() {
            body.elapsed(pause).await;
        }
        let limits = settings.limits(session);
        let trace = received_field(&settings, session, envelope, &log.received_id);
        let share = self.0.shares.begin(session.peer.network(), limits.allowance);
        let is_trusted = settings.is_trusted(session);
        let fields = settings.tenants.fields().filter(|_| settings.is_trusted_client(session));
        let canonical = settings.maps.canonical().filter(|_| is_trusted);
        let head = Head::new(HeaderScan::watching(&settings.host_name), fields.cloned(), canonical.cloned());
        let gathered = gather(body, envelope, (trace, head), limits, &self.0.memory, &self.0.store, share).await;
        let Gathered { body: stored, bytes, summary, said, room, share } = match gathered {
            Ok(gathered) => gathered,
            Err(refusal) => return refuse(refusal, log).into(),
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
        if summary.is_ascii {
            destinations.need_no_utf8();
        }
        if let Some(remote) = &mut destinations.remote {
            let sender = &envelope.mail.reverse_path;
            let login = settings.login(session).map(|(_, login)| login);
            settings.tenants.label(remote, session, sender, (is_trusted, login), said.labels);
            if envelope.mail.hold.is_some() || envelope.mail.expires.is_some() {
                let (hold_secs, expires_secs) = future::times(&envelope.mail, unix_micros() / 1_000_000);
                (remote.hold_secs, remote.expires_secs) = (hold_secs, expires_secs);
            }
            let count = remote.recipients.len() as u64;
            if self.relay().is_some_and(|relay| !relay.has_room_for(&remote.tenant, count)) {
                log.why = Some(format!("too much mail of tenant {} waits", remote.tenant));
                return Reply::new(452, "4.3.1", "Too much of your mail waits for other hosts, try again later").into();
            }
        }
        log.remote = destinations.remote.as_ref().map_or(0, |remote| remote.recipients.len());
        (log.mailboxes, log.discarded) = (destinations.len() - log.remote, transaction.discarded());
        let recorder = self.0.events.as_ref();
        let event = recorder.and_then(|recorder| events::received(recorder, log, session, envelope, &destinations));
        let complaint = match transaction.returned().is_empty() {
            true => returned::complaint(self.relay(), &stored).await,
            false => None,
        };
        if destinations.len() == 0 {
            if !transaction.returned().is_empty() {
                // Nobody is left to whom it could go.
                self.note_returned(transaction.returned(), returned::read(&stored).as_ref(), Lsn::ZERO);
            }
            self.note_complaint(complaint, Lsn::ZERO);
            return MessageOutcome::accepted(format!("Accepted as {}", log.received_id));
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
                log.id = Some(message.id());
                self.note_returned(&returned, report.as_ref(), Lsn::new(message.id()));
                self.note_complaint(complaint, Lsn::new(message.id()));
                if !successes.is_empty() {
                    self.tell_success(envelope, &successes, &header).await;
                }
                MessageOutcome::accepted(format!("Kept as {}", message.id()))
            }
            Err(error) => log.refused(&error).into(),
        }
    }

    fn note_returned(&self, returned: &[Returned], read: Option<&Report>, report: Lsn) {
        if let Some(relay) = self.relay() {
            returned::note(relay, self.events(), returned, read, report);
        }
    }

    fn note_complaint(&self, complaint: Option<(Returned, Report)>, report: Lsn) {
        if let Some((returned, read)) = complaint {
            self.note_returned(&[returned], Some(&read), report);
        }
    }

    /// Durable before the message is answered: a client that hears nothing sends it again, and is told again.
    async fn tell_success(&self, envelope: &Envelope, successes: &[Success], header: &[u8]) {
        let wording = self.relay().map_or_else(Default::default, |relay| relay.wording());
        let written = success::write(&self.settings().host_name, &wording, envelope, successes, header);
        let sender = envelope.mail.reverse_path.bare();
        let told = self.notify(&sender, written, None).await;
        if let Err(error) = told {
            tracing::warn!(sender, error, "the sender could not be told that its message is delivered");
        }
    }

    /// Where a message goes, and from whom it leaves for those to whom it is forwarded.
    pub fn destinations(&self, transaction: &Transaction, envelope: &Envelope) -> Destinations {
        let settings = self.settings();
        let directory = &settings.directory;
        let detail = |address: &str| directory.detail(address).unwrap_or_default().into();
        let sender = &envelope.mail.reverse_path;
        let forwarding = self.forwarding().filter(|_| transaction.is_forwarded());
        let forwards_from =
            forwarding.map_or_else(|| sender.clone(), |forwarding| forwarding.sender(sender, directory));
        transaction.destinations(envelope, &forwards_from, detail)
    }
}

/// A message that this server has received so often is in a loop if it would be forwarded once more: each time it may become several.
const FORWARDS_MAX: usize = 4;

/// The answer to a message whose body was not taken, and its reason for the log.
fn refuse(refusal: Refusal, log: &mut LogLine) -> Reply {
    match refusal {
        Refusal::Body(error) => {
            log.abandoned = is_abandoned(&error);
            log.why = Some(error.to_string());
            error.reply()
        }
        Refusal::Loop { hops } => {
            log.why = Some(format!("{hops} hops"));
            Reply::new(554, "5.4.6", "Too many hops, the message is in a loop")
        }
        Refusal::NoName { field } => {
            log.why = Some(format!("{field} has no name"));
            Reply::new(554, "5.6.0", format!("The field {field} needs a name of one word"))
        }
        Refusal::Delivery(error) => log.refused(&error),
        Refusal::Spool(error) => log.unspoolable(&error),
        Refusal::Share(too_much) => {
            log.why = Some(too_much.to_string());
            share_is_full()
        }
        Refusal::Slow => log.too_slow(),
    }
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
    let cipher = session.tls.as_deref().map(certificates::cipher);
    let tls = session.tls.as_deref().zip(cipher.as_deref());
    Received {
        helo: session.helo.as_deref().unwrap_or_default(),
        peer: session.peer.ip(),
        by: &settings.host_name,
        with: session.with_keyword(envelope.mail.smtputf8),
        id,
        recipient,
        tls: tls.map(|(tls, cipher)| Encryption { cipher, version: certificates::version(tls) }),
        date,
    }
    .write_to(&mut field);
    field.into()
}

/// Whether the message ended because its client did, in one way or another.
fn is_abandoned(error: &BodyError) -> bool {
    matches!(error, BodyError::Reset | BodyError::Disconnected | BodyError::TimedOut | BodyError::Io(_))
}
