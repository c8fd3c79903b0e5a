//! The control socket and its sessions.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use posthaste_admin::AskRefusal;
use posthaste_config::Config;
use posthaste_control::{ClusterOrder, Request, SOCKET, SentRequest};
use posthaste_directory::Directory;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::account::{self, ControlMailboxes};
use super::answering::{OpenRequest, Outcome, PATIENCE, REQUEST_BYTES_MAX, answer};
use super::asker::Asker;
use super::dispatch::perform;
use super::queues::relay_of;
use super::{acme, cluster, everywhere, import, trace};
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
            let asker = Asker { uid, ..Asker::default() };
            let open = OpenRequest { request: &request, asker: &asker, receiver: &receiver, answer };
            perform(open).map_err(|refusal| match refusal {
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

/// Clients at a time.
const CONNECTIONS_MAX: usize = 16;
