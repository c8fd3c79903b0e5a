//! The control socket: operators' requests to the running server, over a UNIX socket in its data directory.
//!
//! A request is one line of JSON, the answer lines of JSON. The last line has `done` or `error`; a connection takes one request. Only the server's user, who
//! owns the socket, and root can connect.
//!
//! Here are the socket and the dispatch; each group of requests has a file of its own.

mod account;
mod acme;
mod act;
mod asker;
mod cat;
pub(crate) mod closed;
mod closed_mailboxes;
mod cluster;
mod divert;
mod domains;
pub(crate) mod everywhere;
mod explain;
mod export;
mod find;
mod import;
mod list;
mod logins;
mod mail;
pub(crate) mod queue_counts;
mod queues;
mod scopes;
mod search;
mod shared;
mod summary;
mod suppression;
pub(crate) mod suspend;
mod trace;
mod transfer;
mod transports;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use account::ControlMailboxes;
pub(crate) use asker::Asker;
use bytes::Bytes;
pub use closed::{ClosedAnswer, ClosedError, open_closed};
use posthaste_admin::{AskRefusal, Token};
use posthaste_config::Config;
use posthaste_control::{ClusterOrder, Doing, Request, SOCKET, SentRequest, Which};
use posthaste_directory::Directory;
use posthaste_relay::sender::OfMail;
use posthaste_spool::Lsn;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use self::queues::{no_relay, of_each, on_each, relay_of, relays_for};
use crate::config::acme::Acme;
use crate::control::page_links::{NO_PAGE, PageLinkMaker};
use crate::lifecycle::{Ending, OnFailure, Service};
use crate::receive::handler::Receiver;

/// The socket before requests are answered: clients connect, and wait. The file is removed with it.
pub(crate) struct ControlSocket {
    path: PathBuf,
    /// The listening socket, until requests are answered.
    listener: Option<UnixListener>,
}

impl ControlSocket {
    /// Listens in `data`. If the path is too long for a socket, or the directory is not writable, the server continues
    /// without it, and the log says so.
    pub fn listen(data: &Path) -> Option<Self> {
        let path = data.join(SOCKET);
        match listen(&path) {
            Ok(listener) => Some(Self { path, listener: Some(listener) }),
            Err(error) => {
                let (path, error) = (path.display().to_string(), error.to_string());
                tracing::warn!(path, error, "no control socket: `posthaste queue` cannot ask this server");
                None
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers requests.
pub(crate) struct Control {
    /// The accepting task, and the file, which exists as long.
    accepting: Option<(JoinHandle<()>, ControlSocket)>,
    mail: Option<ControlMailboxes>,
    /// Ends sessions about mail when it is dropped.
    _ending: watch::Sender<()>,
}

/// Parts of the server that requests are handed to.
#[derive(Clone)]
struct Doors {
    receiver: Receiver,
    page: Option<PageLinkMaker>,
    mail: Option<ControlMailboxes>,
    acme: Acme,
    reload: mpsc::Sender<ReloadAsked>,
    ended: watch::Receiver<()>,
}

/// A reload request, which waits for the result.
pub(crate) type ReloadAsked = oneshot::Sender<Result<Value, String>>;

impl Control {
    /// Answers clients of `socket`, including those already connected. Reload requests go to the receiver of `reload`.
    pub fn begin(
        socket: Option<ControlSocket>,
        receiver: Receiver,
        (page, mail, acme): (Option<PageLinkMaker>, Option<ControlMailboxes>, Acme),
        reload: mpsc::Sender<ReloadAsked>,
    ) -> Self {
        let (ending, ended) = watch::channel(());
        if let Some(node) = receiver.cluster() {
            let asked = receiver.downgrade();
            node.others()
                .answer(Arc::new(move |question: Bytes| everywhere::answer_peer(asked.upgrade().as_ref(), &question)));
        }
        let doors = Doors { receiver, page, mail: mail.clone(), acme, reload, ended };
        let accepting = socket.and_then(|mut socket| {
            let listener = socket.listener.take()?;
            Some((tokio::spawn(accept(listener, doors)), socket))
        });
        Self { accepting, mail, _ending: ending }
    }
}

impl Service for Control {
    fn name(&self) -> &'static str {
        "control"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("`posthaste queue` cannot ask this server")
    }

    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        if let Some(mail) = &self.mail {
            mail.set_message_bytes(config.limits.session.message_bytes);
        }
        Vec::new()
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        if let Some((accepting, _socket)) = self.accepting {
            accepting.abort();
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((accepting, _)) = &mut self.accepting else { return Poll::Pending };
        std::pin::Pin::new(accepting).poll(cx).map(drop)
    }
}

/// The spool of the same directory is locked, so an existing socket is left over.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, doors: Doors) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let doors = doors.clone();
                tokio::spawn(async move {
                    // A client that has gone needs no answer.
                    let _ = serve(stream, doors).await;
                    drop(place);
                });
            }
            // Such as too many open files: others are closed meanwhile.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: UnixStream, doors: Doors) -> io::Result<()> {
    let Doors { receiver, page, mail, acme, reload, mut ended } = doors;
    let uid = stream.peer_cred()?.uid();
    // The socket's mode says the same, but not from its first moment on.
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut limited = BufReader::new(read.take(REQUEST_BYTES_MAX));
    timeout(PATIENCE, limited.read_line(&mut line)).await??;
    if let Ok(SentRequest(request)) = serde_json::from_str(&line)
        && let Some(shown) = trace::shown(&request)
    {
        let live = receiver.live().clone();
        // It holds nothing up at the server's end.
        drop(receiver);
        return match shown {
            Ok(shown) => trace::follow(write, live, shown).await,
            Err(error) => write.write_all(format!("{}\n", json!({ "error": error })).as_bytes()).await,
        };
    }
    if let Ok(SentRequest(Request::Import { release })) = serde_json::from_str(&line) {
        if let Err(error) = relay_of(&receiver) {
            return write.write_all(format!("{}\n", json!({ "error": error })).as_bytes()).await;
        }
        // It holds nothing up at the server's end.
        let weak = receiver.downgrade();
        drop(receiver);
        return import::import(limited, write, weak, uid, release).await;
    }
    if let Ok(SentRequest(Request::Reload {})) = serde_json::from_str(&line) {
        let last = ask_for_reload(&reload).await.unwrap_or_else(|error| json!({ "error": error }));
        tracing::info!(uid, "the operator requested a reload");
        return write.write_all(format!("{last}\n").as_bytes()).await;
    }
    if let Ok(SentRequest(Request::Acme { all })) = serde_json::from_str(&line) {
        // It holds nothing up at the server's end.
        drop(receiver);
        return acme::renew(write, &acme, all, ended, uid).await;
    }
    if let Ok(SentRequest(Request::Cluster { order: Some(ClusterOrder::Drain) })) = serde_json::from_str(&line) {
        return cluster::drain(write, receiver, ended, uid).await;
    }
    if let Ok(SentRequest(Request::Account { account })) = serde_json::from_str(&line) {
        // It holds nothing up at the server's end.
        drop(receiver);
        let session = account::serve(limited, write, mail, account, uid);
        return tokio::select! {
            served = session => served,
            _ = ended.changed() => Ok(()),
        };
    }
    answer(write, move |answer| match serde_json::from_str(&line) {
        Ok(SentRequest(Request::Page { secs, scopes })) => {
            let last = page.ok_or(NO_PAGE)?.answer(&scopes, secs)?;
            tracing::info!(uid, scopes = last["scopes"].as_str(), secs, "a link to the page was made");
            Ok(last)
        }
        Ok(SentRequest(request)) => {
            perform(&request, &Asker { uid, ..Asker::default() }, &receiver, answer).map_err(|refusal| match refusal {
                AskRefusal::Refused(why) | AskRefusal::Unknown(why) => why,
                AskRefusal::Changed { now, .. } => {
                    format!("the selection has changed: {now} recipients are in it now")
                }
            })
        }
        Err(error) => Err(format!("not a request: {error}")),
    })
    .await
}

async fn ask_for_reload(reload: &mpsc::Sender<ReloadAsked>) -> Outcome {
    let (tell, told) = oneshot::channel();
    let no_answer = || "the server cannot reload now".to_owned();
    reload.try_send(tell).map_err(|_| no_answer())?;
    timeout(PATIENCE, told).await.ok().and_then(Result::ok).ok_or_else(no_answer)?
}

/// Writes the lines of an answer while `perform` finds them, and the last.
async fn answer(
    mut write: OwnedWriteHalf,
    perform: impl FnOnce(Answer<'_>) -> Outcome + Send + 'static,
) -> io::Result<()> {
    let (answer, mut answered) = mpsc::channel(LINES_MAX);
    let working = spawn_blocking(move || {
        let last = perform(&|line| answer.blocking_send(line).is_ok());
        let _ = answer.blocking_send(last.unwrap_or_else(|error| json!({ "error": error })));
    });
    while let Some(line) = answered.recv().await {
        timeout(PATIENCE, write.write_all(format!("{line}\n").as_bytes())).await??;
    }
    working.await?;
    write.shutdown().await
}

/// Answers an HTTP request with this token. Blocks.
///
/// # Errors
/// The selection has changed, or the request is refused.
pub(crate) fn ask(
    receiver: &Receiver,
    request: &Request,
    token: &Token,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    let (uid, tenant) = (rustix::process::geteuid().as_raw(), token.tenant().map(str::to_owned));
    let asker = Asker { uid, token: token.name().to_owned(), tenant, is_peer: false };
    perform(request, &asker, receiver, answer)
}

/// The refusal of a request whose selection has changed by more than a tenth since it was shown.
fn changed(receiver: &Receiver, request: &Request) -> Option<AskRefusal> {
    let (expected, now) = match request {
        Request::Act { of, action, expect, .. } => ((*expect)?, act::concerned(receiver, of, *action)),
        // Which mail hosts a recipient has is known for some only.
        Request::Suspend { scope, expect, .. } | Request::Divert { scope, expect, .. } if scope.site.is_none() => {
            let (relays, filter) = (receiver.relays(), scopes::filter(&scopes::which(scope)));
            relays.first()?;
            ((*expect)?, relays.iter().map(|relay| relay.count(&filter)).sum())
        }
        _ => return None,
    };
    is_other(expected, now).then_some(AskRefusal::Changed { expected, now })
}

/// True if a number is no longer that which was shown, by more than a tenth.
fn is_other(expected: u64, now: u64) -> bool {
    now.abs_diff(expected) > expected / 10
}

/// The last line of the answer. It names streams that are stuck.
fn perform(request: &Request, asker: &Asker, receiver: &Receiver, answer: Answer<'_>) -> Result<Value, AskRefusal> {
    let outcome = match beside_the_queue(request, asker, receiver, answer) {
        Some(outcome) => outcome.map_err(AskRefusal::Refused),
        None => of_the_queue(request, asker, receiver, answer),
    };
    let is_unknown = |message| {
        let relay = receiver.remote().relay_with(message);
        relay.is_some_and(|relay| !asker.knows(&relay, message))
    };
    let mut last = outcome.map_err(|refusal| match (refusal, wanted_message(request)) {
        (AskRefusal::Refused(why), Some(message)) if is_unknown(message) => AskRefusal::Unknown(why),
        (refusal, _) => refusal,
    })?;
    let stuck = receiver.destinations().stuck().all();
    if !stuck.is_empty() && asker.tenant.is_none() {
        last["stuck"] = stuck.into();
    }
    Ok(last)
}

/// The waiting message whose content a request needs.
fn wanted_message(request: &Request) -> Option<Lsn> {
    match request {
        Request::Cat { message, .. } => Some(*message),
        Request::Mail { message, mailbox, name } | Request::File { message, mailbox, name, .. } => {
            message.filter(|_| mailbox.is_empty() && name.is_empty())
        }
        _ => None,
    }
}

/// `None` if it concerns waiting mail.
fn beside_the_queue(request: &Request, asker: &Asker, receiver: &Receiver, answer: Answer<'_>) -> Option<Outcome> {
    Some(match request {
        Request::ForgetMailbox { mailbox } => forget_mailbox(receiver, mailbox),
        Request::Logins { .. } => logins::list(receiver, answer),
        Request::Domains {} => domains::list(receiver, answer),
        Request::Cluster { order } => cluster::perform(receiver, asker, order.as_ref(), answer),
        Request::Records { domain } => domains::records(receiver, domain, answer),
        Request::Find { what, user, events, secs, limit } => {
            let settings = receiver.settings();
            let wanted = find::wanted(&settings.directory, what.as_ref(), user.as_ref(), events);
            let bounds = find::Bounds { secs: *secs, limit: *limit, tenant: asker.tenant.as_deref() };
            find::find(settings.events.as_deref(), &wanted, &bounds, answer)
        }
        Request::Mail { message, mailbox, name } => {
            mail::mail(receiver, asker, mail::Place { message: *message, mailbox, name })
        }
        Request::File { message, mailbox, name, number } => {
            let place = mail::Place { message: *message, mailbox, name };
            mail::file(receiver, asker, place, *number, answer)
        }
        Request::Search { query, secs, skip, limit } => {
            search::search(receiver, query, &search::Part { secs: *secs, skip: *skip, limit: *limit }, answer)
        }
        Request::Subjects { of } => mail::subjects(receiver, of, answer),
        Request::ForgetGuesses { of } => logins::forget(receiver, asker.uid, of),
        _ => return None,
    })
}

fn of_the_queue(
    request: &Request,
    asker: &Asker,
    receiver: &Receiver,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    if let Some(node) = receiver.cluster().filter(|_| everywhere::concerns(request) && !asker.is_peer) {
        let changed = everywhere::changed(receiver, &**node, request, asker).map_or(Ok(()), Err);
        return changed.and_then(|()| everywhere::perform(receiver, &**node, request, asker, answer));
    }
    of_this_node(request, asker, receiver, answer)
}

/// Of the queues that this node has.
fn of_this_node(
    request: &Request,
    asker: &Asker,
    receiver: &Receiver,
    answer: Answer<'_>,
) -> Result<Value, AskRefusal> {
    if let Some(door) = receiver.cluster().filter(|_| shared::concerns(request)) {
        let changed = everywhere::changed(receiver, &**door, request, asker).map_or(Ok(()), Err);
        return changed.and_then(|()| shared::perform(&**door, request, asker, answer).map_err(AskRefusal::Refused));
    }
    if receiver.remote().stuck().is_some() && !concerns_transports(request, asker, receiver) {
        return Err(AskRefusal::Refused(no_relay(receiver)));
    }
    match changed(receiver, request) {
        Some(changed) => Err(changed),
        None => on_waiting_mail(request, asker, receiver, answer).map_err(AskRefusal::Refused),
    }
}

/// True if the transports answer a request, at least in part, even while the queue for other hosts is stuck. Tenants
/// have no mail there.
fn concerns_transports(request: &Request, asker: &Asker, receiver: &Receiver) -> bool {
    let of = match request {
        Request::List { of, .. }
        | Request::Count { of, .. }
        | Request::Act { of, action: Doing::Release | Doing::Delete, .. } => of,
        _ => return false,
    };
    let Some(transports) = receiver.transports() else { return false };
    let is_theirs = |message| {
        let of = Which { message: Some(message), ..Which::default() };
        transports::list(transports, &of, 1, &|_| true) > 0
    };
    // Numbers are those of recipients of the relay.
    asker.tenant.is_none() && of.number.is_none() && of.message.is_none_or(is_theirs)
}

fn on_waiting_mail(request: &Request, asker: &Asker, receiver: &Receiver, answer: Answer<'_>) -> Outcome {
    let numbered = &relays_for(receiver, request)?;
    let relays = &numbered.iter().map(|(_, relay)| relay.clone()).collect::<Vec<_>>();
    if let Request::Count { of, action } = request {
        return Ok(json!({ "done": act::concerned(receiver, of, *action) }));
    }
    if let Request::List { of, limit, after } = request {
        let (most, events) = (limit.unwrap_or(u64::MAX), receiver.settings().events.clone());
        let after = after.as_deref().map(list::key).transpose()?;
        // At the socket a list is whole.
        let is_bounded = !asker.token.is_empty() || asker.is_peer;
        let wanted = list::Page { of, after, most, is_bounded, events: events.as_deref() };
        let listed = list::list_all(relays, &wanted, answer);
        let transports = receiver.transports().filter(|_| listed.count < most);
        let others = transports.map_or(0, |transports| transports::list(transports, of, most - listed.count, answer));
        let mut end = json!({ "done": listed.count + others });
        if let Some(next) = listed.next {
            end["next"] = next.into();
        }
        return Ok(end);
    }
    let [relay, ..] = &relays[..] else { return without_relay(request, asker, receiver) };
    match request {
        Request::Summary { of, by, top } => summary::summary(relays, asker, of, (*by, *top), answer),
        Request::Cat { message, header } => cat::cat(relay, asker, *message, *header, answer),
        Request::Export { of, hold, .. } => {
            export::export(relays, asker, &receiver.settings().host_name, of, *hold, answer)
        }
        Request::Import { .. } => Err("an import is answered elsewhere".to_owned()),
        Request::Act { of, action, secs, reason, .. } => {
            let others = act::on_transports(request, asker, receiver)?;
            act::act(numbered, asker, of, *action, *secs, reason, others)
        }
        Request::Suspend { scope, secs, reason, .. } => {
            on_each(numbered, &|relay| suspend::suspend(relay, asker, scope, *secs, reason))
        }
        Request::Resume { scope } => on_each(numbered, &|relay| suspend::resume(relay, asker, scope)),
        Request::Suspensions { .. } => of_each(numbered, answer, &|relay, answer| suspend::list(relay, asker, answer)),
        Request::List { .. }
        | Request::Count { .. }
        | Request::Trace { .. }
        | Request::ForgetMailbox { .. }
        | Request::Logins { .. }
        | Request::Domains {}
        | Request::Cluster { .. }
        | Request::Records { .. }
        | Request::ForgetGuesses { .. }
        | Request::Find { .. }
        | Request::Mail { .. }
        | Request::File { .. }
        | Request::Subjects { .. }
        | Request::Search { .. }
        | Request::Account { .. }
        | Request::Reload {}
        | Request::Page { .. }
        | Request::Acme { .. } => Err("answered elsewhere".to_owned()),
        Request::Divert { scope, to, secs, reason, .. } => {
            on_each(numbered, &|relay| divert::divert(relay, asker, scope, to, *secs, reason))
        }
        Request::Undivert { scope } => on_each(numbered, &|relay| divert::end(relay, asker, scope)),
        Request::Diversions { .. } => of_each(numbered, answer, &|relay, answer| divert::list(relay, answer)),
        Request::Explain { domain, tenant, pool, source } => {
            explain::explain(relay, OfMail { domain, tenant, pool, source }, answer)
        }
        Request::Suppressions { of } => suppression::list(relay, of, answer),
        Request::Suppress { entries } => suppression::add(relay, asker, entries),
        Request::Unsuppress { tenant, addresses } => suppression::remove(relay, asker, tenant, addresses),
    }
}

fn without_relay(request: &Request, asker: &Asker, receiver: &Receiver) -> Outcome {
    match request {
        Request::Summary { .. } | Request::Suspensions { .. } | Request::Diversions { .. } => Ok(json!({ "done": 0 })),
        Request::Act { action: Doing::Flush, .. } => Ok(json!({ "done": 0 })),
        Request::Act { .. } | Request::Divert { .. } | Request::Undivert { .. } if asker.is_peer => {
            Ok(json!({ "done": 0 }))
        }
        Request::Act { action: Doing::Release | Doing::Delete, .. } if receiver.transports().is_some() => {
            act::on_transports(request, asker, receiver).map(|done| json!({ "done": done, "changed": done }))
        }
        _ => Err(no_relay(receiver)),
    }
}

fn forget_mailbox(receiver: &Receiver, mailbox: &str) -> Outcome {
    let deadline = std::time::Instant::now() + PATIENCE;
    receiver.destinations().forget_mailbox(mailbox, deadline)?;
    tracing::info!(mailbox, "mail accepted so far for a removed mailbox will not be delivered");
    Ok(json!({ "done": 1 }))
}

/// A line of an answer.
pub(crate) fn as_json(line: &impl Serialize) -> Value {
    serde_json::to_value(line).expect("a line of texts and numbers")
}

/// Takes a line of an answer; true while the client listens.
type Answer<'a> = &'a dyn Fn(Value) -> bool;
/// The last line of an answer, or the error.
type Outcome = Result<Value, String>;

const REQUEST_BYTES_MAX: u64 = 64 << 10;
const CONNECTIONS_MAX: usize = 16;
/// Lines of an answer that wait to be written.
const LINES_MAX: usize = 256;
/// Timeout of a client that sends or reads nothing.
const PATIENCE: Duration = Duration::from_secs(30);
