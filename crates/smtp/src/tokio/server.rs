//! Listeners, the accept loop, shutdown.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::tokio::sync::watch;
use ::tokio::task::JoinHandle;
use ::tokio::time::{sleep, timeout};

use super::connection::{Connection, Phase, close};
use super::gate::Gate;
use super::listen::{Backlog, Listener, Reserve, UnixAccess};
use super::stream::Stream;
use super::{Handler, Peer};
use crate::limits::{BareNewlines, Limits, LongLines, NulOctets};
use crate::reply::Reply;
use crate::server::{Config, Protocol};

/// Where a server begins: [`Server::builder`].
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server with every setting at its default and no listener yet.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            config: Config::new("localhost"),
            places: Vec::new(),
            max_connections: ServerBuilder::MAX_CONNECTIONS,
            max_connections_per_address: usize::MAX,
        }
    }
}

/// Settings of a server to be.
#[derive(Debug)]
pub struct ServerBuilder {
    config: Config,
    places: Vec<Place>,
    max_connections: usize,
    max_connections_per_address: usize,
}

#[derive(Debug)]
enum Place {
    Tcp(String),
    Unix(PathBuf, UnixAccess),
    BoundTcp(std::net::TcpListener),
    BoundUnix(std::os::unix::net::UnixListener),
}

impl ServerBuilder {
    /// Connections that are served at once unless [`ServerBuilder::max_connections`] says otherwise.
    pub const MAX_CONNECTIONS: usize = 20_000;

    /// Our name in the greeting and in the reply to EHLO. Default `localhost`.
    pub fn host_name(mut self, name: impl Into<String>) -> Self {
        self.config.host_name = name.into();
        self
    }

    /// SMTP (the default) or LMTP.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.config.protocol = protocol;
        self
    }

    /// The bounds of each session.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// What to do about bare CR and LF. Default: refuse.
    pub fn bare_newlines(mut self, policy: BareNewlines) -> Self {
        self.config.bare_newlines = policy;
        self
    }

    /// What to do about NUL in messages. Default: refuse.
    pub fn nul_octets(mut self, policy: NulOctets) -> Self {
        self.config.nul_octets = policy;
        self
    }

    /// What to do about long text lines. Default: accept.
    pub fn long_lines(mut self, policy: LongLines) -> Self {
        self.config.long_lines = policy;
        self
    }

    /// Whether DSN is announced and its parameters are taken; see [`Config::dsn`]. Default: no.
    pub fn dsn(mut self, honoured: bool) -> Self {
        self.config.dsn = honoured;
        self
    }

    /// Connections served at once, over all listeners. Above it a client is accepted, told 421 4.3.2 and closed.
    /// Default [`ServerBuilder::MAX_CONNECTIONS`].
    pub fn max_connections(mut self, max: usize) -> Self {
        self.max_connections = max;
        self
    }

    /// Connections served at once for one IPv4 address or one IPv6 /64. Above it: 421 4.7.0. Default: no such limit.
    pub fn max_connections_per_address(mut self, max: usize) -> Self {
        self.max_connections_per_address = max;
        self
    }

    /// Listens on `host:port`; port 0 takes a free one. A name with several addresses listens on each.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.places.push(Place::Tcp(address.into()));
        self
    }

    /// Listens on a UNIX socket. A name left behind by a dead server is replaced; ours is removed at the end.
    /// Its owner and group may connect; see [`ServerBuilder::listen_unix_with`].
    pub fn listen_unix(self, path: impl Into<PathBuf>) -> Self {
        self.listen_unix_with(path, UnixAccess::default())
    }

    /// As [`ServerBuilder::listen_unix`], open to whom `access` says.
    pub fn listen_unix_with(mut self, path: impl Into<PathBuf>, access: UnixAccess) -> Self {
        self.places.push(Place::Unix(path.into(), access));
        self
    }

    /// Listens on a socket that is already bound and listening.
    pub fn listener(mut self, listener: std::net::TcpListener) -> Self {
        self.places.push(Place::BoundTcp(listener));
        self
    }

    /// Listens on a UNIX socket that is already bound and listening.
    pub fn unix_listener(mut self, listener: std::os::unix::net::UnixListener) -> Self {
        self.places.push(Place::BoundUnix(listener));
        self
    }

    /// Binds all listeners and serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// What binding reports; nothing listens then. Without any listener: `InvalidInput`.
    pub async fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        let backlog = Backlog::for_connections(self.max_connections);
        let mut listeners = Vec::new();
        for place in self.places {
            match place {
                Place::Tcp(address) => listeners.extend(Listener::bind_tcp(&address, backlog).await?),
                Place::Unix(path, access) => listeners.push(Listener::bind_unix(&path, access, backlog).await?),
                Place::BoundTcp(listener) => listeners.push(Listener::from_tcp(listener)?),
                Place::BoundUnix(listener) => listeners.push(Listener::from_unix(listener)?),
            }
        }
        if listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on"));
        }
        let (phase, receiver) = watch::channel(Phase::Running);
        let config = Arc::new(RwLock::new(Arc::new(self.config)));
        let shared = Arc::new(Shared {
            handler,
            config: Arc::clone(&config),
            gate: Gate::new(self.max_connections, self.max_connections_per_address),
            reserve: Reserve::new()?,
            next_id: AtomicU64::new(1),
            rejecting: AtomicUsize::new(0),
            phase: receiver,
        });
        let local_addrs = listeners.iter().filter_map(Listener::local_addr).collect();
        let gate = Arc::clone(&shared.gate);
        let accepting =
            listeners.into_iter().map(|listener| ::tokio::spawn(accept(listener, Arc::clone(&shared)))).collect();
        Ok(RunningServer { local_addrs, backlog, config, phase, gate, accepting })
    }
}

/// A server at work. Dropping it lets it go on for as long as its runtime lives.
#[derive(Debug)]
pub struct RunningServer {
    local_addrs: Vec<SocketAddr>,
    backlog: Backlog,
    config: Arc<RwLock<Arc<Config>>>,
    phase: watch::Sender<Phase>,
    gate: Arc<Gate>,
    accepting: Vec<JoinHandle<()>>,
}

impl RunningServer {
    /// The TCP addresses it listens on, with the ports that were taken.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// How many connections may wait to be accepted, and whether that is less than wanted.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.gate.total()
    }

    /// Puts host name, limits and policies of `settings` in force for connections that begin from now on. Those that are
    /// open keep theirs; the protocol, the listeners and the numbers of connections stay as they are.
    pub fn reconfigure(&self, settings: ServerBuilder) {
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let protocol = config.protocol;
        *config = Arc::new(Config { protocol, ..settings.config });
    }

    /// Stops in order: no more connections are taken, idle sessions are told 421 4.3.2 at once, those with an open
    /// transaction when it is done. What is left after `grace` is told the same in the middle of it, and a handler
    /// that is still at work a second later is dropped; its client never got a reply. Returns whether all sessions
    /// had ended within `grace`.
    pub async fn shutdown(self, grace: Duration) -> bool {
        const LAST_WORDS: Duration = Duration::from_secs(1);
        self.phase.send_replace(Phase::Draining);
        for task in self.accepting {
            // Fails only if the runtime is going down as well.
            let _ = task.await;
        }
        let in_time = timeout(grace, self.phase.closed()).await.is_ok();
        if !in_time {
            self.phase.send_replace(Phase::Ending);
            let _ = timeout(LAST_WORDS, self.phase.closed()).await;
            self.phase.send_replace(Phase::Gone);
            self.phase.closed().await;
        }
        in_time
    }
}

struct Shared<H> {
    handler: H,
    config: Arc<RwLock<Arc<Config>>>,
    gate: Arc<Gate>,
    reserve: Reserve,
    next_id: AtomicU64,
    rejecting: AtomicUsize,
    /// Every task keeps one of these, so that a shutdown can tell when all have ended.
    phase: watch::Receiver<Phase>,
}

impl<H> Shared<H> {
    /// What applies to a connection that begins now.
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Clients that are being turned away at once; above it they are closed without waiting for them to read why.
const REJECTING_MAX: usize = 256;

async fn accept<H: Handler>(listener: Listener, shared: Arc<Shared<H>>) {
    let mut phase = shared.phase.clone();
    loop {
        let accepted = ::tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(&shared, stream, peer),
            Err(error) => accept_failed(&listener, &shared, &error).await,
        }
    }
}

fn admit<H: Handler>(shared: &Arc<Shared<H>>, stream: Stream, peer: Peer) {
    match shared.gate.enter(peer.ip()) {
        Ok(permit) => {
            let shared = Arc::clone(shared);
            ::tokio::spawn(async move {
                session(&shared, stream, peer).await;
                drop(permit);
            });
        }
        Err(reply) => reject(shared, stream, &reply),
    }
}

async fn session<H: Handler>(shared: &Shared<H>, stream: Stream, peer: Peer) {
    let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
    let mut phase = shared.phase.clone();
    let connection = Connection::new(stream, shared.config(), shared.phase.clone());
    ::tokio::select! {
        // First, so that it waits for a change of phase before the connection looks at the phase: every change wakes this
        // task, and both are polled.
        biased;
        _ = phase.wait_for(|phase| *phase >= Phase::Gone) => {}
        () = connection.serve(&shared.handler, id, peer) => {}
    }
}

/// Tells a client why it is not served. The reply fits any socket buffer, so nothing has to wait for it to be written.
fn reject<H: Handler>(shared: &Arc<Shared<H>>, stream: Stream, reply: &Reply) {
    let mut last = Vec::new();
    reply.write(&mut last);
    if shared.rejecting.fetch_add(1, Ordering::Relaxed) >= REJECTING_MAX {
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        // The client may be gone already; there is nobody else to tell.
        let _ = stream.try_write(&last);
        return;
    }
    let shared = Arc::clone(shared);
    ::tokio::spawn(async move {
        close(stream, last, shared.config().limits.timeouts.linger, true).await;
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        shared.reserve.refill();
    });
}

/// Out of descriptors: one of the reserve lets the next client in to be told. Other errors concern one client only.
async fn accept_failed<H: Handler>(listener: &Listener, shared: &Arc<Shared<H>>, error: &io::Error) {
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
        Ok(Ok((stream, peer))) if recovered => admit(shared, stream, peer),
        Ok(Ok((stream, _))) => {
            reject(shared, stream, &Reply::new(421, "4.3.2", "Too many open files, try again later"))
        }
        // Nobody was waiting after all: without descriptors accept fails before it looks.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::RcptTo;
    use crate::server::{Envelope, MessageOutcome};
    use crate::tokio::{Body, Session};

    struct Heavy;

    impl Handler for Heavy {
        async fn rcpt(&self, _: &Session, _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &Session, _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
            let ballast = [0_u8; 1 << 16];
            let _first = body.chunk().await;
            MessageOutcome::accepted(format!("{}", ballast.len()))
        }
    }

    #[tokio::test]
    async fn an_idle_session_does_not_carry_its_handlers_futures() {
        let (_phase, receiver) = watch::channel(Phase::Running);
        let shared = Shared {
            handler: Heavy,
            config: Arc::new(RwLock::new(Arc::new(Config::new("mx")))),
            gate: Gate::new(1, 1),
            reserve: Reserve::new().unwrap(),
            next_id: AtomicU64::new(1),
            rejecting: AtomicUsize::new(0),
            phase: receiver,
        };
        let (stream, _other) = ::tokio::net::UnixStream::pair().unwrap();
        let session = session(&shared, Stream::Unix(stream), Peer::Unix);
        assert!(size_of_val(&session) <= 4096, "{} octets", size_of_val(&session));
    }
}
