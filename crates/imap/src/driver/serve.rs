//! Drives one session from greeting to end: passes the machine's requests to the store.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use posthaste_mailstore::{
    ListOptions, MailAccount, MailboxView, MailstoreError, MessageWriter, ModSeq, NamePattern, SelectMode,
};
use posthaste_net::{Connection, Grant, Peer, SessionEnd, SessionStream};
use posthaste_scram::{ScramFirst, ScramProof, ScramServer};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::connection::Line;
use super::logins::LoginSession;
use super::messages::Messages;
use super::service::{Authenticator, ImapService, ImapSettings};
use super::{changes, mail};
use crate::session::{ImapCredentials, ImapEvent, ImapMachine, LoginRefusal, MailRefusal, SelectedMailbox};

/// State of the login.
#[derive(Default)]
struct Mine {
    login: Option<Login>,
    view: Option<Box<dyn MailboxView>>,
    /// Receives the message of an APPEND.
    writer: Option<Box<dyn MessageWriter>>,
}

/// Maximum wait of a FETCH for a durable `\Seen`, so that its response has the flag (decision 31).
const SEEN_PATIENCE: Duration = Duration::from_millis(200);

pub(super) async fn serve<A: Authenticator>(service: &ImapService<A>, connection: Connection) {
    let Connection { stream, peer, phase, .. } = connection;
    let ImapSettings { config, timeouts, connections_per_login } = service.config.get();
    let trusted = !config.needs_tls && peer.ip().is_none_or(|ip| ip.is_loopback());
    let mut machine = ImapMachine::new(config, trusted);
    if service.implicit_tls {
        machine = machine.encrypted();
    }
    if service.authenticator.offers_scram() {
        machine = machine.with_scram();
    }
    let mut line = Line::new(machine, stream, phase, timeouts);
    if service.implicit_tls && Box::pin(line.start_tls(&service.certificate())).await.is_err() {
        return;
    }
    line.machine.greet();
    let entrance = Entrance { service, peer: &peer, connections_per_login };
    match converse(&entrance, &mut line).await {
        Ok(()) => {}
        Err(SessionEnd::Gone) => return,
        Err(SessionEnd::TimedOut) => line.machine.time_out(),
        Err(SessionEnd::ShuttingDown) => line.machine.shut_down(),
        Err(SessionEnd::Revoked) => line.machine.revoke(),
    }
    line.close().await;
}

/// Boxed futures keep an idle session small.
async fn converse<A: Authenticator>(entrance: &Entrance<'_, A>, line: &mut Line) -> Result<(), SessionEnd> {
    let service = entrance.service;
    let mut mine = Mine::default();
    let mut event = line.machine.step(&mut line.input);
    loop {
        match event {
            ImapEvent::Close => return Ok(()),
            ImapEvent::NeedInput => match &mine.view {
                Some(view) if line.machine.is_idling() => line.fill(view.changed()).await?,
                _ => line.fill(pending()).await?,
            },
            ImapEvent::Flush => line.flush().await?,
            ImapEvent::StartTls => {
                line.flush().await?;
                Box::pin(line.start_tls(&service.certificate())).await?;
                line.machine.tls_started();
            }
            ImapEvent::Compress => {
                line.flush().await?;
                line.compress();
            }
            ImapEvent::Login(credentials) => {
                let verdict = Box::pin(entrance.log_in(credentials, &mut line.stream)).await;
                line.machine.logged_in(verdict.map(|login| mine.login = Some(login)));
            }
            ImapEvent::ScramKeys(first) => {
                let begun = Box::pin(entrance.begin_scram(*first)).await;
                line.machine.scram_begun(begun);
            }
            ImapEvent::ScramProof(proof) => {
                let verdict = Box::pin(entrance.log_in_by_scram(&proof, &mut line.stream)).await;
                line.machine.scram_checked(verdict.map(|login| mine.login = Some(login)));
            }
            ImapEvent::Unselect => mine.view = None,
            ImapEvent::Rows { set, sizes } => {
                let view = mine.view.as_deref().expect("a mailbox is selected");
                let mut messages = Messages::new(view, &set, sizes);
                event = Box::pin(messages.answer(line, service)).await?;
                continue;
            }
            ImapEvent::List { patterns, subscribed, recursive, status } => {
                event = Box::pin(list(line, mine.account(), &patterns, ListOptions { status, subscribed, recursive }))
                    .await?;
                continue;
            }
            ask => Box::pin(mine.answer(line, ask)).await,
        }
        event = line.machine.step(&mut line.input);
    }
}

/// The parameters of one session's start.
struct Entrance<'a, A> {
    service: &'a ImapService<A>,
    peer: &'a Peer,
    /// Maximum sessions of a login; 0: any number.
    connections_per_login: usize,
}

impl<A: Authenticator> Entrance<'_, A> {
    async fn log_in(&self, credentials: ImapCredentials, stream: &mut SessionStream) -> Result<Login, LoginRefusal> {
        let grant = self.service.authenticator.login(self.peer, credentials).await?;
        self.let_in(grant, stream).await
    }

    async fn begin_scram(&self, first: ScramFirst) -> Result<ScramServer, LoginRefusal> {
        let keys = self.service.authenticator.scram_keys(self.peer, first.user()).await?;
        ScramServer::begin(first, keys).ok_or(LoginRefusal::Busy)
    }

    async fn log_in_by_scram(&self, proof: &ScramProof, stream: &mut SessionStream) -> Result<Login, LoginRefusal> {
        let grant = self.service.authenticator.scram_login(self.peer, proof).await?;
        self.let_in(grant, stream).await
    }

    async fn let_in(&self, grant: Grant, stream: &mut SessionStream) -> Result<Login, LoginRefusal> {
        let session = self.service.sessions.begin(grant.login.clone(), self.connections_per_login);
        let session = session.ok_or(LoginRefusal::TooMany)?;
        stream.end_with(grant.until);
        let account = self.service.store.account(&grant.login).await.map_err(|error| match error {
            MailstoreError::NoMailbox => LoginRefusal::Wrong,
            _ => LoginRefusal::Unavailable,
        })?;
        Ok(Login { account, _session: session })
    }
}

/// A login, until the session ends.
struct Login {
    account: Arc<dyn MailAccount>,
    _session: LoginSession,
}

impl Mine {
    fn account(&self) -> &dyn MailAccount {
        &*self.login.as_ref().expect("somebody has logged in").account
    }
}

impl Mine {
    /// Answers an event by one call of the store.
    async fn answer(&mut self, line: &mut Line, ask: ImapEvent) {
        let account = &*self.login.as_ref().expect("somebody has logged in").account;
        match ask {
            ImapEvent::Status(name) => {
                let status = async {
                    let id = changes::find(account, &name).await?;
                    account.status(id).await.map_err(|error| mail::refusal(&error))
                };
                let status = status.await;
                line.machine.status(status.as_ref().map(mail::counts).map_err(|why| *why));
            }
            ImapEvent::Select { mailbox, read_only } => {
                // What the old view holds is given back first.
                self.view = None;
                let mode = if read_only { SelectMode::ReadOnly } else { SelectMode::Writable };
                let selected: Result<SelectedMailbox, MailRefusal> = async {
                    let id = changes::find(account, &mailbox).await?;
                    let view = account.select(id, mode).await.map_err(|error| mail::refusal(&error))?;
                    Ok(mail::selected(&**self.view.insert(view)))
                }
                .await;
                line.machine.selected(selected);
            }
            ImapEvent::Changes { may_expunge, looks } => {
                let view = self.view.as_deref_mut().expect("a mailbox is selected");
                let changes = if looks { view.advance(may_expunge).await } else { view.catch_up(may_expunge).await };
                let changes = changes.as_ref().map(|changes| mail::changes(changes, view));
                line.machine.changes(changes.map_err(mail::refusal));
            }
            ImapEvent::Append { .. }
            | ImapEvent::AppendNext(_)
            | ImapEvent::Write(_)
            | ImapEvent::Finish
            | ImapEvent::Abandon => append(line, account, &mut self.writer, ask).await,
            ImapEvent::Quota { mailbox } => {
                let quota = changes::quota(account, mailbox.as_deref()).await;
                line.machine.quota(quota);
            }
            ImapEvent::Manage(change) => line.machine.managed(changes::manage(account, change).await),
            ask => change(line, account, self.view.as_deref().expect("a mailbox is selected"), ask).await,
        }
    }
}

/// Answers a step of APPEND. `writer` exists from its first message to its end.
async fn append(
    line: &mut Line,
    account: &dyn MailAccount,
    writer: &mut Option<Box<dyn MessageWriter>>,
    ask: ImapEvent,
) {
    match ask {
        ImapEvent::Append { mailbox, message } => {
            let begun = changes::append(account, &mailbox, message).await;
            line.machine.append_begun(begun.map(|begun| *writer = Some(begun)));
        }
        ImapEvent::AppendNext(message) => {
            let begun = changes::append_next(&mut **writer.as_mut().expect("an append has begun"), message).await;
            if begun.is_err() {
                *writer = None;
            }
            line.machine.append_begun(begun);
        }
        ImapEvent::Write(octets) => {
            let written = writer.as_mut().expect("an append has begun").write(octets).await;
            if written.is_err() {
                *writer = None;
            }
            line.machine.written(written.map_err(|error| mail::refusal(&error)));
        }
        ImapEvent::Finish => {
            let writer = writer.take().expect("an append has begun");
            line.machine.appended(changes::finish(writer).await);
        }
        ImapEvent::Abandon => *writer = None,
        other => unreachable!("{other:?} is answered elsewhere"),
    }
}

/// Answers a change of messages.
async fn change(line: &mut Line, account: &dyn MailAccount, view: &dyn MailboxView, ask: ImapEvent) {
    match ask {
        ImapEvent::Store { uid, set, update, unchanged_since } => {
            line.machine.stored(changes::store(view, uid, &set, update, unchanged_since).await);
        }
        ImapEvent::Vanished { since } => {
            let uids = view.vanished(ModSeq(since)).await;
            line.machine.vanished(uids.as_deref().map(mail::vanished).map_err(mail::refusal));
        }
        ImapEvent::MarkSeen(uids) => {
            // What takes longer goes on without the session.
            let _ = timeout(SEEN_PATIENCE, changes::mark_seen(view, &uids)).await;
            line.machine.marked_seen();
        }
        ImapEvent::Expunge(uids) => line.machine.expunged(changes::expunge(view, uids.as_ref()).await),
        ImapEvent::Copy { set, mailbox, moves } => {
            line.machine.copied(changes::copy(account, view, &set, &mailbox, moves).await);
        }
        other => unreachable!("{other:?} is answered elsewhere"),
    }
}

/// Answers a list completely, and returns the first event that is about something else.
async fn list(
    line: &mut Line,
    account: &dyn MailAccount,
    patterns: &[String],
    options: ListOptions,
) -> Result<ImapEvent, SessionEnd> {
    let patterns: Vec<NamePattern> = patterns.iter().map(|pattern| NamePattern::new(pattern)).collect();
    let mut names = match account.list(&patterns, options).await {
        Ok(names) => {
            line.machine.list_opened(Ok(()));
            names
        }
        Err(error) => {
            line.machine.list_opened(Err(mail::refusal(&error)));
            return Ok(line.machine.step(&mut line.input));
        }
    };
    loop {
        match line.machine.step(&mut line.input) {
            ImapEvent::NextName => {
                let name = names.next().await;
                let name = name.as_ref().map(|name| name.as_ref().map(mail::listed));
                line.machine.listed(name.map_err(mail::refusal));
            }
            ImapEvent::Flush => {
                line.flush().await?;
                yield_now().await;
            }
            other => return Ok(other),
        }
    }
}
