//! The accept loop, shutdown.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Phase, PhaseNow, close};
use super::gate::Gate;
use super::listen::{Backlog, Bound, Listener, Reserve};
use super::session::{serve, sheltered_now};
use super::setup::{Certificate, Door, Offers, SetupError};
use super::stream::Stream;
use super::{Handler, Peer};
use crate::reply::Reply;
use crate::server::{Config, Protocol};
/// A server whose sockets listen and that serves nobody yet: [`ServerBuilder::bind`](super::ServerBuilder::bind). Dropping it closes them.
#[derive(Debug)]
pub struct BoundServer {
    pub(super) config: Config,
    pub(super) listeners: Vec<(Bound, Door)>,
    pub(super) certificate: Certificate,
    pub(super) backlog: Backlog,
    pub(super) max_connections: usize,
    pub(super) max_connections_per_address: usize,
}

impl BoundServer {
    /// Serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// `InvalidInput` without any listener, or with a [`SetupError`] inside; else the system refuses something that every server needs.
    pub fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        let backlog = self.backlog;
        if self.listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on"));
        }
        let offers = Offers::new(&self.certificate, self.listeners.iter().map(|(_, door)| *door));
        offers.check(&self.config).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (phase, receiver) = watch::channel(Phase::Running);
        let phase = Arc::new(phase);
        let shared = Arc::new(Shared {
            handler,
            configs: Arc::new(RwLock::new(Configs::new(self.config))),
            certificate: self.certificate,
            gate: Gate::new(self.max_connections, self.max_connections_per_address),
            reserve: Reserve::new()?,
            next_id: AtomicU64::new(1),
            rejecting: AtomicUsize::new(0),
            phase: receiver,
            _sender: Arc::clone(&phase),
            phase_now: Arc::new(PhaseNow::new(Phase::Running)),
        });
        let local_addrs: Vec<_> =
            self.listeners.iter().filter_map(|(bound, door)| Some((bound.local_addr()?, door.protocol))).collect();
        let protocols = local_addrs.iter().map(|(_, protocol)| *protocol).collect();
        let local_addrs = local_addrs.into_iter().map(|(address, _)| address).collect();
        let (configs, gate) = (Arc::clone(&shared.configs), Arc::clone(&shared.gate));
        let phase_now = Arc::clone(&shared.phase_now);
        let listeners: io::Result<Vec<_>> =
            self.listeners.into_iter().map(|(bound, door)| Ok((bound.into_listener()?, door))).collect();
        let accepting = listeners?
            .into_iter()
            .map(|(listener, door)| tokio::spawn(accept(listener, door, Arc::clone(&shared))))
            .collect();
        Ok(RunningServer { local_addrs, protocols, backlog, offers, configs, phase, phase_now, gate, accepting })
    }
}

/// A server at work. Dropping it lets it go on for as long as its runtime lives.
#[derive(Debug)]
pub struct RunningServer {
    local_addrs: Vec<SocketAddr>,
    /// Of each of them.
    protocols: Vec<Protocol>,
    backlog: Backlog,
    offers: Offers,
    configs: Arc<RwLock<Configs>>,
    phase: Arc<watch::Sender<Phase>>,
    phase_now: Arc<PhaseNow>,
    gate: Arc<Gate>,
    accepting: Vec<JoinHandle<()>>,
}

impl RunningServer {
    /// The TCP addresses it listens on, with the ports that were taken.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Where clients of `protocol` can connect over TCP, if anywhere.
    pub fn local_addr_for(&self, protocol: Protocol) -> Option<SocketAddr> {
        let found = self.protocols.iter().position(|listening| *listening == protocol)?;
        Some(self.local_addrs[found])
    }

    /// How many connections may wait to be accepted, and whether that is less than wanted.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.gate.total()
    }

    /// Puts host name, limits and policies of `config` in force for connections that begin from now on. Those that are
    /// open keep theirs; the listeners, their protocols and the numbers of connections stay as they are.
    ///
    /// # Errors
    /// As for the same settings at the start; what applied before still does.
    pub fn reconfigure(&self, config: Config) -> Result<(), SetupError> {
        self.offers.check(&config)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = Configs::new(config);
        Ok(())
    }

    fn enter(&self, phase: Phase) {
        // In this order: whom the second wakes finds the first.
        self.phase_now.set(phase);
        self.phase.send_replace(phase);
    }

    /// Stops in order: no more connections are taken, idle sessions are told 421 4.3.2 at once, those with an open
    /// transaction when it is done. What is left after `grace` is told the same in the middle of it, and a handler
    /// that is still at work a second later is dropped; its client never got a reply. Returns whether all sessions
    /// had ended within `grace`.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        const LAST_WORDS: Duration = Duration::from_secs(1);
        self.enter(Phase::Draining);
        for task in std::mem::take(&mut self.accepting) {
            // Fails only if the runtime is going down as well.
            let _ = task.await;
        }
        let in_time = timeout(grace, self.phase.closed()).await.is_ok();
        if !in_time {
            self.enter(Phase::Ending);
            let _ = timeout(LAST_WORDS, self.phase.closed()).await;
            self.enter(Phase::Gone);
            self.phase.closed().await;
        }
        in_time
    }
}

/// What applies to connections that begin now.
#[derive(Debug)]
struct Configs {
    smtp: Arc<Config>,
    lmtp: Arc<Config>,
}

impl Configs {
    fn new(config: Config) -> Self {
        let of = |protocol| Arc::new(Config { protocol, ..config.clone() });
        Self { smtp: of(Protocol::Smtp), lmtp: of(Protocol::Lmtp) }
    }
}

struct Shared<H> {
    handler: H,
    configs: Arc<RwLock<Configs>>,
    certificate: Certificate,
    gate: Arc<Gate>,
    reserve: Reserve,
    next_id: AtomicU64,
    rejecting: AtomicUsize,
    /// Every task keeps one of these, so that a shutdown can tell when all have ended.
    phase: watch::Receiver<Phase>,
    /// Without one every wait for a phase would end; [`RunningServer`] may be dropped.
    _sender: Arc<watch::Sender<Phase>>,
    phase_now: Arc<PhaseNow>,
}

impl<H> Shared<H> {
    fn config(&self, protocol: Protocol) -> Arc<Config> {
        let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(match protocol {
            Protocol::Smtp => &configs.smtp,
            Protocol::Lmtp => &configs.lmtp,
        })
    }
}

/// Clients that are being turned away at once; above it they are closed without waiting for them to read why.
const REJECTING_MAX: usize = 256;

async fn accept<H: Handler>(listener: Listener, door: Door, shared: Arc<Shared<H>>) {
    let mut phase = shared.phase.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(&shared, stream, peer, door),
            Err(error) => accept_failed(&listener, door, &shared, &error).await,
        }
    }
}

fn admit<H: Handler>(shared: &Arc<Shared<H>>, stream: Stream, peer: Peer, door: Door) {
    match shared.gate.enter(peer.ip()) {
        Ok(permit) => {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                session(&shared, stream, peer, door).await;
                drop(permit);
            });
        }
        Err(reply) => reject(shared, stream, &peer, &reply, door),
    }
}

async fn session<H: Handler>(shared: &Shared<H>, stream: Stream, peer: Peer, door: Door) {
    let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
    let mut phase = shared.phase.clone();
    let mut gone = pin!(phase.wait_for(|phase| *phase >= Phase::Gone));
    let config = shared.config(door.protocol);
    let connection = Connection::new(stream, config, Arc::clone(&shared.phase_now), door);
    let mut serving = pin!(serve(connection, &shared.handler, id, peer, &shared.certificate));
    let mut listens = false;
    poll_fn(|cx| {
        // The first look leaves this task's waker, which stays the same, and while the server runs nothing takes it away; so it
        // is not asked again before the phase has moved, and from then on always, as each change takes the waker away. Before the
        // connection looks at the phase, so that no change falls between the two.
        if (!listens || shared.phase_now.reached(Phase::Draining)) && gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        listens = true;
        serving.as_mut().poll(cx)
    })
    .await
}

/// Tells a client why it is not served. The reply fits any socket buffer, so nothing has to wait for it to be written.
/// Where TLS is implicit nobody would understand it, and a handshake is too much for one who is turned away: closed at once.
fn reject<H: Handler>(shared: &Arc<Shared<H>>, stream: Stream, peer: &Peer, reply: &Reply, door: Door) {
    sheltered_now("turned_away", || shared.handler.turned_away(peer, reply));
    if door.implicit_tls {
        return;
    }
    let mut last = Vec::new();
    reply.write(&mut last);
    if shared.rejecting.fetch_add(1, Ordering::Relaxed) >= REJECTING_MAX {
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        // The client may be gone already; there is nobody else to tell.
        let _ = stream.try_write(&last);
        return;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        close(stream, last, shared.config(Protocol::Smtp).limits.timeouts.linger).await;
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        shared.reserve.refill();
    });
}

/// Out of descriptors: one of the reserve lets the next client in to be told. Other errors concern one client only.
async fn accept_failed<H: Handler>(listener: &Listener, door: Door, shared: &Arc<Shared<H>>, error: &io::Error) {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const PAUSE: Duration = Duration::from_millis(10);
    if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        // ECONNABORTED and its like, or no memory: taking a breath is right for the latter and harmless else.
        return sleep(PAUSE).await;
    }
    if !shared.reserve.give() {
        sleep(PAUSE).await;
        shared.reserve.refill();
        return;
    }
    let accepted = timeout(PAUSE, listener.accept()).await;
    let recovered = shared.reserve.refill();
    match accepted {
        Ok(Ok((stream, peer))) if recovered => admit(shared, stream, peer, door),
        Ok(Ok((stream, peer))) => {
            let reply = Reply::new(421, "4.3.2", "Too many open files, try again later");
            reject(shared, stream, &peer, &reply, door)
        }
        // Nobody was waiting after all: without descriptors accept fails before it looks.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::RcptTo;
    use crate::driver::{Body, Session};
    use crate::server::{Envelope, MessageOutcome};

    struct Heavy;

    impl Handler for Heavy {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
            let ballast = [0_u8; 1 << 16];
            let _first = body.chunk().await;
            MessageOutcome::accepted(format!("{}", ballast.len()))
        }
    }

    #[tokio::test]
    async fn an_idle_session_does_not_carry_its_handlers_futures() {
        let (phase, receiver) = watch::channel(Phase::Running);
        let shared = Shared {
            handler: Heavy,
            configs: Arc::new(RwLock::new(Configs::new(Config::new("mx")))),
            certificate: Certificate::default(),
            gate: Gate::new(1, 1),
            reserve: Reserve::new().unwrap(),
            next_id: AtomicU64::new(1),
            rejecting: AtomicUsize::new(0),
            phase: receiver,
            _sender: Arc::new(phase),
            phase_now: Arc::new(PhaseNow::new(Phase::Running)),
        };
        let (stream, _other) = tokio::net::UnixStream::pair().unwrap();
        let door = Door { protocol: Protocol::Smtp, implicit_tls: false };
        let session = session(&shared, Stream::Unix(stream), Peer::Unix, door);
        assert!(size_of_val(&session) <= 4096, "{} octets", size_of_val(&session));
    }
}
