//! The event log as a service, and the functions that record events.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use posthaste_accounts::LoginFailure;
use posthaste_consumer::StreamOpenError;
use posthaste_events::{
    Config as LogConfig, Event, EventKind, EventLog, LIST_MAX, LoginEvent, Notice, RefusalStage, RefusedEvent,
};
pub(crate) use posthaste_events::{EventRecorder, STREAM};
use posthaste_intake::{Arrival, ArrivalFacts};
use posthaste_smtp::driver::Peer;
use posthaste_smtp::{Envelope, ForwardPath, MessageOutcome, Reply, ReversePath};
use posthaste_spool::Spool;
use tokio::time::Instant;

use crate::config::certificates;
use crate::lifecycle::{Ended, Ending, OnFailure, Service, Unfinished};
use crate::receive::logins::{Session, refusal};
use crate::receive::message_log::LogLine;
use posthaste_config::Config;

/// The event log as a service of the server.
#[derive(Debug)]
pub(crate) struct Events {
    log: EventLog,
    ended: Ended,
}

/// The remedy if the log cannot be opened.
pub(crate) const HELP: &str =
    "no events are recorded; once the disk of the spool can be written, start the server again";

impl Events {
    /// Opens the log if it is enabled. Otherwise drops entries of an earlier run, which would stay in the spool
    /// forever.
    ///
    /// # Errors
    /// The log's stream cannot be registered, or a thread cannot be started. File errors are logged, and mail is still
    /// received.
    pub fn open(config: &Config, spool: &Arc<dyn Spool>) -> Result<Option<Self>, StreamOpenError> {
        let events = &config.events;
        if !events.enabled {
            let left = posthaste_events::give_up(&**spool);
            if left > 0 {
                tracing::warn!(
                    batches = left,
                    "events that an earlier run had not written are dropped: the event log is off"
                );
            }
            return Ok(None);
        }
        let dir = events.dir.display().to_string();
        let (alive, ended) = Ended::new();
        let alive = Mutex::new(Some(alive));
        let notice = Arc::new(move |notice| match notice {
            Notice::Panicked { thread } => {
                tracing::error!(thread, "a thread of the event log has panicked, which is a bug");
                alive.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            Notice::Failing { error } => {
                tracing::error!(dir, error, "the event log cannot be written: events wait in the spool; trying again");
            }
            Notice::Changed { file } => {
                tracing::error!(
                    dir,
                    file,
                    "another program removed or changed this file of the event log: events in it may be lost; starting a new file"
                );
            }
            Notice::LeavingOut => {
                tracing::error!(dir, "too many events wait for the event log: dropping further ones")
            }
            Notice::Recording => tracing::info!(dir, "events are recorded in the event log again"),
            _ => tracing::info!(dir, "the event log is written again"),
        });
        let log = LogConfig { notice, ..events.into() };
        EventLog::open(spool.clone(), log).map(|log| Some(Self { log, ended }))
    }

    pub fn recorder(&self) -> EventRecorder {
        self.log.recorder()
    }

    /// Writes the remaining entries, for `patience` at most. Blocks.
    pub fn end(&self, patience: std::time::Duration) {
        self.log.end(patience);
    }
}

impl Service for Events {
    fn name(&self) -> &'static str {
        "event log"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("events are left out of the event log; those before wait in the spool")
    }

    /// Writes all entries of the spool.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        Box::pin(async move {
            let end = move || {
                let is_whole = self.log.end(deadline.saturating_duration_since(Instant::now()));
                (is_whole, self.log.stats().left_out)
            };
            let (is_whole, left_out) = tokio::task::spawn_blocking(end).await.unwrap_or_default();
            if left_out > 0 {
                tracing::warn!(events = left_out, "events were dropped from the event log since the start");
            }
            is_whole.then_some(()).ok_or(Unfinished("the event log is behind; the next start writes the rest"))
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ended.poll(cx)
    }
}

/// Records the outcome of targets in the log, for each destination.
#[derive(Debug)]
pub(crate) struct Outcomes(pub EventRecorder);

/// The origin of a message, for its event.
pub(crate) struct Origin<'a> {
    pub session: &'a Session,
    pub envelope: &'a Envelope,
    pub line: &'a LogLine,
}

impl Arrival for Origin<'_> {
    fn facts(&self, recipients_max: usize) -> ArrivalFacts {
        let Self { session, envelope, line } = self;
        let paths = envelope.recipients.iter().map(|rcpt| &rcpt.forward_path);
        ArrivalFacts {
            id: line.received_id.as_str().into(),
            peer: session.peer.to_string().into(),
            helo: helo(session),
            with: session.with_keyword(envelope.mail.smtputf8).into(),
            tls: session.tls.as_deref().map_or("", certificates::version).into(),
            user: user(session).into(),
            sender: envelope.mail.reverse_path.to_string().into(),
            recipients: paths.take(recipients_max).map(|path| path.to_string().into()).collect(),
            recipient_count: u32::try_from(envelope.recipients.len()).unwrap_or(u32::MAX),
            bytes: line.bytes,
            message_id: line.message_id.as_deref().unwrap_or_default().into(),
            auth: line.results.as_deref().unwrap_or_default().into(),
            junk: line.junk.as_deref().unwrap_or_default().into(),
        }
    }
}

/// A message that was refused, for some of its recipients at least, or that its client broke off.
pub(crate) fn message(
    recorder: &EventRecorder,
    line: &LogLine,
    session: &Session,
    envelope: &Envelope,
    outcome: &MessageOutcome,
) {
    let (recipients, recipient_count) = paths(envelope.recipients.iter().map(|rcpt| &rcpt.forward_path));
    let reply = match outcome {
        _ if line.abandoned => String::new(),
        MessageOutcome::All(reply) => reply.to_string(),
        MessageOutcome::Each(replies) => replies.iter().map(Reply::to_string).collect::<Vec<_>>().join("; "),
    };
    recorder.note(&Event::now(EventKind::Refused(RefusedEvent {
        stage: if line.abandoned { RefusalStage::Aborted } else { RefusalStage::Message },
        id: line.received_id.as_str().into(),
        peer: session.peer.to_string().into(),
        helo: helo(session),
        user: user(session).into(),
        sender: envelope.mail.reverse_path.to_string().into(),
        recipients,
        recipient_count,
        // Whose words the reply has already.
        why: line.why.as_deref().filter(|why| !reply.ends_with(why)).unwrap_or_default().into(),
        reply: reply.into(),
    })));
}

/// A MAIL or RCPT that was refused.
pub(crate) fn command(
    recorder: &EventRecorder,
    session: &Session,
    sender: &ReversePath,
    recipient: Option<&ForwardPath>,
    reply: &Reply,
) {
    let (recipients, recipient_count) = paths(recipient.into_iter());
    recorder.note(&Event::now(EventKind::Refused(RefusedEvent {
        stage: if recipient.is_some() { RefusalStage::Recipient } else { RefusalStage::Mail },
        id: "".into(),
        peer: session.peer.to_string().into(),
        helo: helo(session),
        user: user(session).into(),
        sender: sender.to_string().into(),
        recipients,
        recipient_count,
        reply: reply.to_string().into(),
        why: "".into(),
    })));
}

/// An accepted or refused login. `session` is that of SMTP, if any; only the operator sees the reason of a failure.
pub(crate) fn login(
    recorder: &EventRecorder,
    peer: &Peer,
    session: Option<&Session>,
    mechanism: &str,
    user: &str,
    failure: Option<LoginFailure>,
) {
    let reply = session.and(failure).map_or_else(String::new, |failure| refusal(failure).to_string());
    let why = failure.map_or_else(String::new, |failure| failure.to_string());
    let listener = match peer {
        Peer::Tcp { local, .. } if local.port() != 0 => local.to_string(),
        _ => String::new(),
    };
    recorder.note(&Event::now(EventKind::Login(LoginEvent {
        peer: peer_name(peer).into(),
        helo: session.map_or_else(|| "".into(), helo),
        listener: listener.into(),
        tls: session.and_then(|session| session.tls.as_deref()).map_or("", certificates::version).into(),
        mechanism: mechanism.into(),
        user: user.into(),
        reply: reply.into(),
        why: why.into(),
    })));
}

/// A client's name in the log and in events. The port is unknown for a client named by a proxy.
pub(crate) fn peer_name(peer: &Peer) -> String {
    match peer {
        Peer::Tcp { remote, .. } if remote.port() == 0 => remote.ip().to_string(),
        _ => peer.to_string(),
    }
}

/// An unreadable file in the pickup directory, and the user who placed it there.
pub(crate) fn pickup(recorder: &EventRecorder, file: &str, uid: Option<u32>, why: &str) {
    let peer = uid.map_or(String::new(), |uid| Peer::Local { uid }.to_string());
    recorder.note(&without_session(RefusalStage::Message, file, peer, why));
}

/// A client that may not connect.
pub(crate) fn connection(recorder: &EventRecorder, peer: &Peer, why: &str) {
    recorder.note(&without_session(RefusalStage::Connection, "", peer.to_string(), why));
}

fn without_session(stage: RefusalStage, id: &str, peer: String, why: &str) -> Event {
    Event::now(EventKind::Refused(RefusedEvent {
        stage,
        id: id.into(),
        peer: peer.into(),
        helo: "".into(),
        user: "".into(),
        sender: "".into(),
        recipients: Vec::new(),
        recipient_count: 0,
        reply: "".into(),
        why: why.into(),
    }))
}

fn helo(session: &Session) -> Arc<str> {
    session.helo.as_deref().unwrap_or_default().into()
}

/// Name of the login; empty without one.
fn user(session: &Session) -> &str {
    session.identity.as_ref().map_or("", |identity| &identity.authorization_id)
}

fn paths<'a>(paths: impl ExactSizeIterator<Item = &'a ForwardPath>) -> (Vec<Arc<str>>, u32) {
    let count = u32::try_from(paths.len()).unwrap_or(u32::MAX);
    (paths.take(LIST_MAX).map(|path| path.to_string().into()).collect(), count)
}
