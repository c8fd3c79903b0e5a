//! One session from greeting to end: answers the machine from the store.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;

use bytes::BytesMut;
use posthaste_mailstore::{
    BODY_READ_MAX, FlagUpdate, FlagUpdateMode, MailBody, MailboxName, MailboxView, MailstoreError, MessageFlags,
    MessageRow, MessageSet, NumberRange, RowOptions, SelectMode, Uid, UniqueIds,
};
use posthaste_net::{
    Connection, ConnectionRefusal, Goodbye, Grant, Peer, Service, SessionEnd, SessionStream, Woken, after,
};
use posthaste_scram::{ScramFirst, ScramProof, ScramServer};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::service::{Pop3Authenticator, Pop3Service, Pop3Timeouts};
use crate::session::{MarkedMessages, Pop3Credentials, Pop3Event, Pop3LoginRefusal, Pop3Machine, Pop3Refusal, Pop3Row};

/// A session over its stream.
struct Conversation {
    machine: Pop3Machine,
    stream: SessionStream,
    input: BytesMut,
    timeouts: Pop3Timeouts,
    login_deadline: Instant,
    /// The awaited line and its deadline, which is ignored before login.
    command: u64,
    command_deadline: Instant,
}

/// Rows between yields to other tasks: a store in memory never waits by itself.
const ROWS_BEFORE_YIELD: u32 = 64;

impl<A: Pop3Authenticator> Service for Pop3Service<A> {
    async fn serve(&self, connection: Connection) {
        serve(self, connection).await;
    }

    fn refuse(&self, _: &Peer, why: &ConnectionRefusal) -> Goodbye {
        // Under implicit TLS the client could not read it.
        if self.implicit_tls { Goodbye::default() } else { goodbye_to(why) }
    }
}

/// Sends no goodbye to an invalid proxy, or to a proxy that does not name its client.
fn goodbye_to(why: &ConnectionRefusal) -> Goodbye {
    let line: &[u8] = match why {
        ConnectionRefusal::NotAProxy | ConnectionRefusal::Proxy(_) => return Goodbye::default(),
        ConnectionRefusal::NotAllowed => b"-ERR [SYS/PERM] Clients of your address may not connect here\r\n",
        _ => b"-ERR [SYS/TEMP] Too many connections, try again later\r\n",
    };
    Goodbye::new(line)
}

async fn serve<A: Pop3Authenticator>(service: &Pop3Service<A>, connection: Connection) {
    let Connection { stream, peer, phase, .. } = connection;
    let trusted = !service.config.needs_tls && peer.ip().is_none_or(|ip| ip.is_loopback());
    let mut machine = Pop3Machine::new(Arc::clone(&service.config), trusted);
    if service.authenticator.offers_scram() {
        machine = machine.with_scram();
    }
    let timeouts = service.timeouts;
    let now = Instant::now();
    let mut session = Conversation {
        machine: if service.implicit_tls { machine.encrypted() } else { machine },
        stream: SessionStream::new(stream, phase, timeouts.write),
        input: BytesMut::new(),
        timeouts,
        login_deadline: after(now, timeouts.login),
        command: 0,
        command_deadline: now,
    };
    if service.implicit_tls {
        let certificate = service.certificate();
        let started = session.stream.start_tls(&certificate, session.login_deadline);
        let Ok(facts) = Box::pin(started).await else { return };
        session.machine.bind_channel(facts.exporter);
    }
    session.machine.greet();
    match session.converse(service, &peer).await {
        Ok(()) => {}
        // Nothing is said to a client that sleeps (RFC 1939 section 3).
        Err(SessionEnd::Gone | SessionEnd::TimedOut) => return,
        Err(SessionEnd::ShuttingDown) => session.machine.shut_down(),
        Err(SessionEnd::Revoked) => session.machine.revoke(),
    }
    let last = std::mem::take(session.machine.output_mut());
    session.stream.close(last, timeouts.linger).await;
}

impl Conversation {
    /// Boxed futures keep an idle session small.
    async fn converse<A: Pop3Authenticator>(
        &mut self,
        service: &Pop3Service<A>,
        peer: &Peer,
    ) -> Result<(), SessionEnd> {
        let mut inbox = None;
        let mut event = self.machine.step(&mut self.input);
        loop {
            match event {
                Pop3Event::Close => return Ok(()),
                Pop3Event::NeedInput => self.fill().await?,
                Pop3Event::Flush => self.flush().await?,
                Pop3Event::StartTls => {
                    self.flush().await?;
                    let certificate = service.certificate();
                    let facts = Box::pin(self.stream.start_tls(&certificate, self.login_deadline)).await?;
                    self.machine.bind_channel(facts.exporter);
                    self.machine.tls_started();
                }
                Pop3Event::Login(credentials) => {
                    let view = Box::pin(log_in(service, peer, credentials, &mut self.stream)).await;
                    self.machine.logged_in(view.map(|view| inbox.insert(view).exists()));
                }
                Pop3Event::Update => {
                    let updated = Box::pin(update(opened(&inbox), &self.machine)).await;
                    self.machine.updated(updated.map_err(|error| refusal(&error)));
                }
                Pop3Event::ScramKeys(first) => {
                    let begun = Box::pin(begin_scram(service, peer, *first)).await;
                    self.machine.scram_begun(begun);
                }
                Pop3Event::ScramProof(proof) => {
                    let view = Box::pin(log_in_by_scram(service, peer, &proof, &mut self.stream)).await;
                    self.machine.scram_checked(view.map(|view| inbox.insert(view).exists()));
                }
                Pop3Event::Rows { first, last, sizes } => {
                    event = Box::pin(self.rows(opened(&inbox), NumberRange { first, last }, sizes)).await?;
                    continue;
                }
                Pop3Event::Open { message } => {
                    event = Box::pin(self.send(opened(&inbox), message)).await?;
                    continue;
                }
                Pop3Event::NextRow | Pop3Event::Read { .. } => unreachable!("{event:?} is answered elsewhere"),
            }
            event = self.machine.step(&mut self.input);
        }
    }

    /// Writes the machine's output.
    async fn flush(&mut self) -> Result<(), SessionEnd> {
        let out = std::mem::take(self.machine.output_mut());
        self.stream.write(&out).await?;
        self.stream.flush().await
    }

    /// Writes the output, then reads more.
    async fn fill(&mut self) -> Result<(), SessionEnd> {
        self.flush().await?;
        if self.command != self.machine.commands() {
            self.command = self.machine.commands();
            self.command_deadline = after(Instant::now(), self.timeouts.idle);
        }
        let deadline = if self.machine.is_logged_in() { self.command_deadline } else { self.login_deadline };
        match self.stream.fill(&mut self.input, pending(), deadline).await? {
            Woken::Deadline => Err(SessionEnd::TimedOut),
            Woken::Octets | Woken::Event => Ok(()),
        }
    }

    /// Answers a list completely, and returns the first event that is about something else.
    async fn rows(&mut self, view: &dyn MailboxView, range: NumberRange, sizes: bool) -> Result<Pop3Event, SessionEnd> {
        let validity = view.uid_validity().get();
        // LIST needs sizes, UIDL the others.
        let unique_ids = if sizes { Ok(Arc::default()) } else { view.unique_ids().await };
        let mut rows = view.rows(&MessageSet::Numbers(vec![range]), RowOptions { sizes });
        let mut waiting: VecDeque<MessageRow> = VecDeque::new();
        let mut turn = 0;
        loop {
            match self.machine.step(&mut self.input) {
                Pop3Event::NextRow => {
                    turn += 1;
                    if turn % ROWS_BEFORE_YIELD == 0 {
                        yield_now().await;
                        if self.stream.has_ended() {
                            return Err(SessionEnd::Gone);
                        }
                    }
                    if waiting.is_empty() {
                        match rows.next().await {
                            Ok(more) => waiting = more.into(),
                            Err(error) => {
                                self.machine.row(Err(refusal(&error)));
                                continue;
                            }
                        }
                    }
                    let row = waiting.pop_front();
                    let listed = unique_ids.as_ref().map(|ids| row.map(|row| listed(&row, validity, ids)));
                    self.machine.row(listed.as_ref().map(Option::as_ref).map_err(|error| refusal(error)));
                }
                Pop3Event::Flush => self.flush().await?,
                other => return Ok(other),
            }
        }
    }

    /// Sends a message completely, and returns the first event that is about something else.
    async fn send(&mut self, view: &dyn MailboxView, message: u32) -> Result<Pop3Event, SessionEnd> {
        let body = open(view, message).await;
        self.machine.opened(body.as_ref().map(|body| body.len()).map_err(refusal));
        let Ok(body) = body else { return Ok(self.machine.step(&mut self.input)) };
        loop {
            match self.machine.step(&mut self.input) {
                Pop3Event::Read { from } => {
                    let piece = body.read(from, from + BODY_READ_MAX as u64).await;
                    self.machine.octets(piece.as_deref().map_err(refusal));
                }
                Pop3Event::Flush => self.flush().await?,
                other => return Ok(other),
            }
        }
    }
}

fn opened(inbox: &Option<Box<dyn MailboxView>>) -> &dyn MailboxView {
    inbox.as_deref().expect("somebody has logged in")
}

async fn log_in<A: Pop3Authenticator>(
    service: &Pop3Service<A>,
    peer: &Peer,
    credentials: Pop3Credentials,
    stream: &mut SessionStream,
) -> Result<Box<dyn MailboxView>, Pop3LoginRefusal> {
    let grant = service.authenticator.login(peer, credentials).await?;
    inbox_of(service, grant, stream).await
}

async fn begin_scram<A: Pop3Authenticator>(
    service: &Pop3Service<A>,
    peer: &Peer,
    first: ScramFirst,
) -> Result<ScramServer, Pop3LoginRefusal> {
    let keys = service.authenticator.scram_keys(peer, first.user()).await?;
    ScramServer::begin(first, keys).ok_or(Pop3LoginRefusal::Busy)
}

async fn log_in_by_scram<A: Pop3Authenticator>(
    service: &Pop3Service<A>,
    peer: &Peer,
    proof: &ScramProof,
    stream: &mut SessionStream,
) -> Result<Box<dyn MailboxView>, Pop3LoginRefusal> {
    let grant = service.authenticator.scram_login(peer, proof).await?;
    inbox_of(service, grant, stream).await
}

async fn inbox_of<A>(
    service: &Pop3Service<A>,
    grant: Grant,
    stream: &mut SessionStream,
) -> Result<Box<dyn MailboxView>, Pop3LoginRefusal> {
    stream.end_with(grant.until);
    let opened = async {
        let account = service.store.account(&grant.login).await?;
        let inbox = MailboxName::parse("INBOX").expect("INBOX is a name");
        let id = account.find(&inbox).await?.ok_or(MailstoreError::NoMailbox)?;
        account.select(id, SelectMode::KeepsRecent).await
    };
    opened.await.map_err(|error| match error {
        MailstoreError::NoMailbox => Pop3LoginRefusal::Wrong,
        _ => Pop3LoginRefusal::Unavailable,
    })
}

/// Applies the client's changes after QUIT.
async fn update(view: &dyn MailboxView, machine: &Pop3Machine) -> Result<(), MailstoreError> {
    let deleted = machine.deleted().into_iter().flat_map(MarkedMessages::iter);
    let is_deleted = |message: &u32| machine.deleted().is_some_and(|deleted| deleted.contains(*message));
    let retrieved = machine.retrieved().into_iter().flat_map(MarkedMessages::iter);
    let seen = set(retrieved.filter(|message| !is_deleted(message)));
    let deleted = set(deleted);
    if let Some(seen) = seen {
        let update = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::SEEN, keywords: Vec::new() };
        // The client has its messages, and is told of the removal alone.
        let _ = view.store(&seen, &update, None).await;
    }
    match deleted {
        Some(deleted) => view.remove(&deleted).await,
        None => Ok(()),
    }
}

/// A set of ascending message numbers.
fn set(messages: impl Iterator<Item = u32>) -> Option<MessageSet> {
    let mut ranges: Vec<NumberRange> = Vec::new();
    for message in messages {
        match ranges.last_mut() {
            Some(last) if last.last + 1 == message => last.last = message,
            _ => ranges.push(NumberRange { first: message, last: message }),
        }
    }
    (!ranges.is_empty()).then_some(MessageSet::Numbers(ranges))
}

/// Opens a message by its number.
async fn open(view: &dyn MailboxView, message: u32) -> Result<Arc<dyn MailBody>, MailstoreError> {
    let only = NumberRange { first: message, last: message };
    let rows = view.rows(&MessageSet::Numbers(vec![only]), RowOptions::default()).next().await?;
    let uid: Uid = rows.first().map(|row| row.uid).ok_or(MailstoreError::Gone)?;
    view.body(uid).await
}

/// The unique-id: one of an earlier server, or Dovecot's default form, `%08Xu%08Xv` in lower case.
fn listed(row: &MessageRow, validity: u32, unique_ids: &UniqueIds) -> Pop3Row {
    let uid = row.uid.get();
    let unique_id = unique_ids.get(&uid).map_or_else(|| format!("{uid:08x}{validity:08x}"), |id| id.to_string());
    Pop3Row { message: row.number, size: row.size, unique_id }
}

fn refusal(error: &MailstoreError) -> Pop3Refusal {
    match error {
        MailstoreError::Gone | MailstoreError::NoMailbox => Pop3Refusal::Gone,
        MailstoreError::NoPermission
        | MailstoreError::Damaged(_)
        | MailstoreError::ReadOnly
        | MailstoreError::Cannot(_) => Pop3Refusal::Impossible,
        _ => Pop3Refusal::Unavailable,
    }
}
