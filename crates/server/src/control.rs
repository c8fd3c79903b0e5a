//! The control socket: what an operator asks of the running server, over a UNIX socket in its data directory.
//!
//! A request is one line of JSON, the answer lines of JSON. The last line has `done` or `error`; a connection takes one request. Only the server's user, who
//! owns the socket, and root can connect.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_relay::queue::{Action, QueueEntry, Scope, Secs, Selection, Status, Waits};
use posthaste_relay::sender::{Filter, Relay, Waiting};
use posthaste_smtp::Reply;
use posthaste_spool::Lsn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::receive::Receiver;
use crate::services::{Ending, OnFailure, Service};

/// The name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The recipients that wait, one on each line.
    List {
        /// Which.
        #[serde(default)]
        of: Which,
    },
    /// Does something with recipients; the answer has how many are `changed`, and how many are under way and `follow`.
    Act {
        /// Which.
        of: Which,
        /// What.
        action: Doing,
        /// Why: for the log, and for those who are told that their mail is given up.
        #[serde(default)]
        reason: String,
    },
    /// Tries nothing of a scope.
    Suspend {
        /// Of what.
        scope: Named,
        /// For how long, in seconds; not set: without an end.
        secs: Option<Secs>,
        /// Why.
        #[serde(default)]
        reason: String,
    },
    /// Ends a suspension.
    Resume {
        /// Of what.
        scope: Named,
    },
    /// What is suspended, one on each line.
    Suspensions,
}

/// Recipients that are meant. Nothing set: all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// The number of their message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Their number within it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
    /// From this sender; empty for notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    /// To this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// To this domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Of this campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Held ones, or those that are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
}

/// What is done with recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// They are not tried, and do not expire.
    Hold,
    /// Held ones are tried again.
    Release,
    /// They are tried now.
    Flush,
    /// They are tried now, as if for the first time.
    Requeue,
    /// They are removed without a word.
    Delete,
    /// They are given up, and their senders are told.
    Bounce,
}

/// What is suspended, by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Named {
    /// Mail of a tenant.
    Tenant(String),
    /// A mailing.
    Campaign(String),
    /// Mail to a domain.
    Domain(String),
    /// Mail to a set of mail hosts, as the log names it.
    Site(String),
}

impl Named {
    fn scope(&self) -> Scope {
        match self {
            Self::Tenant(name) => Scope::Tenant(name.as_str().into()),
            Self::Campaign(name) => Scope::Campaign(name.as_str().into()),
            Self::Domain(name) => Scope::Domain(name.to_lowercase().into()),
            Self::Site(name) => Scope::Site(name.as_str().into()),
        }
    }
}

impl Which {
    fn filter(&self) -> Filter {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        Filter {
            selection: Selection {
                tenant: text(&self.tenant),
                campaign: text(&self.campaign),
                domain: self.domain.as_ref().map(|domain| domain.to_lowercase().into()),
                is_held: self.held,
            },
            message: self.message.map(Lsn::new),
            number: self.number,
            sender: self.sender.clone(),
            recipient: self.recipient.clone(),
        }
    }
}

/// Answers requests.
pub(crate) struct Control {
    path: PathBuf,
    accepting: Option<JoinHandle<()>>,
}

impl Control {
    /// Listens in `data`. A path that is too long for a socket, or a directory that cannot be written, leaves the server without it: the log says so.
    pub fn begin(data: &Path, receiver: Receiver) -> Self {
        let path = data.join(SOCKET);
        let accepting = match listen(&path) {
            Ok(listener) => Some(tokio::spawn(accept(listener, receiver))),
            Err(error) => {
                let (path, error) = (path.display().to_string(), error.to_string());
                tracing::warn!(path, error, "no control socket: `posthaste queue` cannot ask this server");
                None
            }
        };
        Self { path, accepting }
    }
}

impl Service for Control {
    fn name(&self) -> &'static str {
        "control"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("`posthaste queue` cannot ask this server")
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        if let Some(accepting) = self.accepting {
            accepting.abort();
            let _ = std::fs::remove_file(&self.path);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(accepting) = &mut self.accepting else { return Poll::Pending };
        std::pin::Pin::new(accepting).poll(cx).map(drop)
    }
}

/// The spool of the same directory is locked: a socket that is there is left over.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, receiver: Receiver) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let receiver = receiver.clone();
                tokio::spawn(async move {
                    // Whoever has gone needs no answer.
                    let _ = serve(stream, receiver).await;
                    drop(place);
                });
            }
            // Such as too many open files: others are closed meanwhile.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: UnixStream, receiver: Receiver) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    // The socket's mode says the same, but not from its first moment on.
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut limited = BufReader::new(read.take(REQUEST_BYTES_MAX));
    timeout(PATIENCE, limited.read_line(&mut line)).await??;
    let (answer, mut answered) = mpsc::channel(LINES_MAX);
    let working = spawn_blocking(move || {
        let last = match serde_json::from_str::<Request>(&line) {
            Ok(request) => perform(&request, uid, &receiver, &|line| answer.blocking_send(line).is_ok()),
            Err(error) => Err(format!("not a request: {error}")),
        };
        let _ = answer.blocking_send(last.unwrap_or_else(|error| json!({ "error": error })));
    });
    while let Some(line) = answered.recv().await {
        timeout(PATIENCE, write.write_all(format!("{line}\n").as_bytes())).await??;
    }
    working.await?;
    write.shutdown().await
}

/// The last line of the answer.
fn perform(request: &Request, uid: u32, receiver: &Receiver, answer: &dyn Fn(Value) -> bool) -> Result<Value, String> {
    let Some(relay) = receiver.relay() else {
        return match request {
            Request::List { .. } | Request::Suspensions => Ok(json!({ "done": 0 })),
            _ => Err("this server relays no mail".to_owned()),
        };
    };
    let failed = |error: posthaste_relay::sender::ControlError| error.to_string();
    match request {
        Request::List { of } => {
            let mut count = 0;
            relay.waiting(&of.filter(), &mut |waiting| {
                count += 1;
                answer(as_json(&waiting, relay))
            });
            Ok(json!({ "done": count }))
        }
        Request::Act { of, action, reason } => {
            let text = if reason.is_empty() { "given up by the operator" } else { reason };
            let text: String = text.chars().filter(|c| matches!(c, ' '..='~')).take(REASON_CHARS_MAX).collect();
            let done =
                relay.act(&of.filter(), action.of_queue(), &Reply::new(GIVEN_UP, "5.0.0", text)).map_err(failed)?;
            let of = serde_json::to_string(of).unwrap_or_default();
            let (changed, follow) = (done.changed, done.follows);
            tracing::info!(uid, action = ?action, of, reason, changed, follow, "the operator has changed the queue");
            Ok(json!({ "done": changed, "changed": changed, "follow": follow }))
        }
        Request::Suspend { scope, secs, reason } => {
            relay.suspend(scope.scope(), *secs, reason).map_err(failed)?;
            tracing::info!(uid, scope = ?scope, secs, reason, "the operator has suspended mail");
            Ok(json!({ "done": 1 }))
        }
        Request::Resume { scope } => {
            let had = relay.resume(scope.scope()).map_err(failed)?;
            tracing::info!(uid, scope = ?scope, "the operator has resumed mail");
            Ok(json!({ "done": u8::from(had) }))
        }
        Request::Suspensions => {
            let all = relay.suspensions();
            let _ = all.iter().all(|entry| answer(suspension(entry)));
            Ok(json!({ "done": all.len() }))
        }
    }
}

impl Doing {
    fn of_queue(self) -> Action {
        match self {
            Self::Hold => Action::Hold,
            Self::Release => Action::Release,
            Self::Flush => Action::Flush,
            Self::Requeue => Action::Requeue,
            Self::Delete => Action::Delete,
            Self::Bounce => Action::Bounce(Status { code: 554, enhanced: 0 }),
        }
    }
}

fn as_json(waiting: &Waiting, relay: &Relay) -> Value {
    let state = &waiting.state;
    let name = relay.queue_name(state.queue);
    let name = name.as_ref();
    let (kind, until) = match state.waits {
        Waits::Until(next) => ("scheduled", Some(next)),
        Waits::Due => ("due", None),
        Waits::Suspended(until) => ("suspended", Some(until).filter(|until| *until < Secs::MAX)),
        Waits::Held(_) => ("held", None),
        Waits::Busy => ("under way", None),
    };
    let held_by = match state.waits {
        Waits::Held(reason) => Some(format!("{reason:?}").to_lowercase()),
        _ => None,
    };
    let status = match state.status {
        Status { code: 0, .. } => None,
        Status { code, enhanced: 0 } => Some(code.to_string()),
        Status { code, enhanced } => Some(format!("{code} {}.{}.{}", code / 100, enhanced / 1000, enhanced % 1000)),
    };
    json!({
        "id": format!("{}.{}", state.key.message.get(), state.key.number),
        "sender": &*waiting.sender,
        "recipient": &*waiting.recipient,
        "domain": name.map(|name| &*name.domain),
        "tenant": name.map(|name| &*name.tenant),
        "campaign": name.map(|name| &*name.campaign),
        "bytes": waiting.bytes,
        "received": state.received,
        "expires": state.expires,
        "attempts": state.attempts,
        "status": status,
        "state": kind,
        "until": until,
        "held_by": held_by,
        "why": waiting.why.as_deref(),
    })
}

fn suspension(entry: &QueueEntry) -> Value {
    let QueueEntry::Suspended { scope, until, reason } = entry else { return Value::Null };
    let (kind, name) = match scope {
        Scope::Tenant(name) => ("tenant", name),
        Scope::Campaign(name) => ("campaign", name),
        Scope::Domain(name) => ("domain", name),
        Scope::Site(name) => ("site", name),
    };
    let until = Some(*until).filter(|until| *until < Secs::MAX);
    json!({ "kind": kind, "name": &**name, "until": until, "reason": &**reason })
}

/// What stands in the notification of an operator's bounce; no client is told.
const GIVEN_UP: u16 = 554;
const REQUEST_BYTES_MAX: u64 = 64 << 10;
const CONNECTIONS_MAX: usize = 16;
/// Lines of an answer that wait to be written.
const LINES_MAX: usize = 256;
/// For a client that says or takes nothing.
const PATIENCE: Duration = Duration::from_secs(30);
const REASON_CHARS_MAX: usize = 200;
