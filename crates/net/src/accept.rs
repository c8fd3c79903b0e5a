//! The accept loop: admission, refusal and shutdown.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::admission::Permits;
use crate::gate::Gate;
use crate::phase::{PhaseWatch, Phases};
use crate::proxy::take_header;
use crate::reserve::Reserve;
use crate::{
    Admission, ConnectionRefusal, CurrentPhase, GateLimits, ListeningSocket, Peer, Phase, ProxyError, Rules, Stream,
    close,
};

/// A protocol. One value serves all connections of a listener.
pub trait Service: Send + Sync + 'static {
    /// Serves a connection until it ends. The future must check [`Connection::phase`] whenever it waits, and is polled when the phase
    /// changes. At [`Phase::Gone`] it is dropped, finished or not.
    fn serve(&self, connection: Connection) -> impl Future<Output = ()> + Send;

    /// The last bytes for a client that is refused. Must not block.
    fn refuse(&self, peer: &Peer, why: &ConnectionRefusal) -> Goodbye;
}

/// An admitted client.
#[derive(Debug)]
pub struct Connection {
    /// Counts from 1 over all listeners of one [`Listeners`].
    pub id: u64,
    /// The connection's bytes, in both directions.
    pub stream: Stream,
    /// The client's address; behind a proxy, the one that the proxy reported.
    pub peer: Peer,
    /// The phase of the server's shutdown.
    pub phase: Arc<CurrentPhase>,
}

/// The last bytes for a refused client. They must fit any socket buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Goodbye {
    /// Bytes sent before closing. If empty, the connection is closed at once.
    pub bytes: Vec<u8>,
    /// Time for which the client's data is still read: a reset could discard these bytes before the client reads them.
    pub linger: Duration,
}

impl Goodbye {
    /// A goodbye of these bytes, with a linger time of one second.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), linger: Duration::from_secs(1) }
    }
}

/// All listeners of a server, of one protocol or several. They share connection limits and shutdown. Dropping this
/// value does not stop them: they run as long as their runtime.
#[derive(Debug)]
pub struct Listeners {
    shared: Arc<Shared>,
    phases: Phases,
    accepting: Vec<JoinHandle<()>>,
}

impl Listeners {
    /// Starts without listeners.
    ///
    /// # Errors
    /// No file descriptors are left for the reserve, which lets the server still refuse clients properly at the descriptor limit.
    pub fn new(limits: GateLimits) -> io::Result<Self> {
        let phases = Phases::new();
        let shared = Shared {
            gate: Gate::new(limits),
            reserve: Reserve::new()?,
            next_id: AtomicU64::new(1),
            rejecting: AtomicUsize::new(0),
            phase: phases.watch(),
            phases: phases.clone(),
        };
        Ok(Self { shared: Arc::new(shared), phases, accepting: Vec::new() })
    }

    /// Serves `listener` on the current tokio runtime until [`Listeners::shutdown`]. Listeners may share `admission`.
    pub fn serve(&mut self, listener: ListeningSocket, admission: &Arc<Admission>, service: impl Service) {
        let shared = Arc::clone(&self.shared);
        let door = Arc::new(Door { shared, admission: Arc::clone(admission), service });
        self.accepting.push(tokio::spawn(accept(listener, door)));
    }

    /// Replaces the limits. Open connections stay.
    pub fn set_limits(&self, limits: GateLimits) {
        self.shared.gate.replace(limits);
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.gate.total()
    }

    /// Ready once a listener no longer accepts although nobody shut it down, which only a panic can cause.
    pub fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ended = self.accepting.iter_mut().position(|task| pin!(task).poll(cx).is_ready());
        ended.map_or(Poll::Pending, |index| {
            // A task that has ended may not be polled again, which the shutdown would do.
            drop(self.accepting.swap_remove(index));
            Poll::Ready(())
        })
    }

    /// Shuts down: stops accepting and enters [`Phase::Draining`]; after `grace` enters [`Phase::Ending`], and a second later drops the
    /// remaining connections. Returns whether all ended within `grace`.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        self.phases.enter(Phase::Draining);
        for task in std::mem::take(&mut self.accepting) {
            // Fails only if the runtime is going down as well.
            let _ = task.await;
        }
        let Self { shared, phases, .. } = self;
        // Everything that still runs has it too.
        drop(shared);
        phases.end(grace).await
    }
}

#[derive(Debug)]
struct Shared {
    gate: Arc<Gate>,
    reserve: Reserve,
    next_id: AtomicU64,
    rejecting: AtomicUsize,
    /// Every task holds a clone, so that a shutdown knows when all have ended.
    phase: PhaseWatch,
    /// Keeps the sender alive when [`Listeners`] is dropped; without it every wait for a phase would end.
    phases: Phases,
}

/// State of one listener.
struct Door<S> {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    service: S,
}

/// Maximum clients that linger after a refusal; above it they are closed without waiting for them to read the reason.
const REJECTING_MAX: usize = 256;

async fn accept<S: Service>(listener: ListeningSocket, door: Arc<Door<S>>) {
    let mut phase = door.shared.phase.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(&door, stream, peer),
            Err(error) => accept_failed(&listener, &door, &error).await,
        }
    }
}

fn admit<S: Service>(door: &Arc<Door<S>>, stream: Stream, peer: Peer) {
    let rules = door.admission.rules();
    let entered = match &rules.proxies {
        Some(proxies) if !proxies.trust(&peer) => Err(ConnectionRefusal::NotAProxy),
        // The client is counted once the proxy has named it.
        Some(_) => door.admission.enter(&door.shared.gate, None),
        None => rules.check(&peer).and_then(|()| door.admission.enter(&door.shared.gate, peer.ip())),
    };
    let permits = match entered {
        Ok(permits) => permits,
        Err(why) => return reject(door, stream, &peer, &why),
    };
    let door = Arc::clone(door);
    if rules.proxies.is_some() {
        tokio::spawn(passed_on(door, rules, permits, stream, peer));
        return;
    }
    tokio::spawn(async move {
        serve(&door, stream, peer).await;
        drop(permits);
    });
}

/// Serves a connection from a proxy, after reading its PROXY header.
async fn passed_on<S: Service>(
    door: Arc<Door<S>>,
    rules: Arc<Rules>,
    mut permits: Permits,
    stream: Stream,
    mut peer: Peer,
) {
    let mut phase = door.shared.phase.clone();
    let patience = rules.proxies.as_ref().map(|proxies| proxies.header_patience).unwrap_or_default();
    let header = tokio::select! {
        biased;
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => return,
        header = timeout(patience, take_header(&stream)) => header.unwrap_or(Err(ProxyError::TimedOut)),
    };
    let entered = header.map_err(ConnectionRefusal::from).and_then(|header| {
        // Without addresses it is the proxy's own connection, such as a health check.
        if let Some((remote, local)) = header.addresses {
            peer = Peer::Tcp { remote, local };
        }
        rules.check(&peer)?;
        peer.ip().map_or(Ok(()), |ip| permits.enter_from(ip))
    });
    match entered {
        Ok(()) => serve(&door, stream, peer).await,
        Err(why) => reject(&door, stream, &peer, &why),
    }
    drop(permits);
}

async fn serve<S: Service>(door: &Door<S>, stream: Stream, peer: Peer) {
    let shared = &door.shared;
    let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
    let now = Arc::clone(shared.phases.now());
    let mut phase = shared.phase.clone();
    let mut gone = pin!(phase.wait_for(|phase| *phase >= Phase::Gone));
    let connection = Connection { id, stream, peer, phase: Arc::clone(&now) };
    let mut serving = pin!(door.service.serve(connection));
    let mut listens = false;
    poll_fn(|cx| {
        // The first poll registers this task's waker, which stays registered until the phase changes. From the first change on, poll
        // every time, as each change removes the waker. This comes before the connection reads the phase, so no change is missed.
        if (!listens || now.reached(Phase::Draining)) && gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        listens = true;
        serving.as_mut().poll(cx)
    })
    .await
}

/// Refuses a client. The reason fits any socket buffer, so writing it never waits.
fn reject<S: Service>(door: &Arc<Door<S>>, stream: Stream, peer: &Peer, why: &ConnectionRefusal) {
    let refused = catch_unwind(AssertUnwindSafe(|| door.service.refuse(peer, why)));
    let Goodbye { bytes, linger } = refused.unwrap_or_else(|_| {
        tracing::error!("a protocol panicked while refusing a client");
        Goodbye::default()
    });
    if bytes.is_empty() {
        return;
    }
    let shared = &door.shared;
    if shared.rejecting.fetch_add(1, Ordering::Relaxed) >= REJECTING_MAX {
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        // The client may be gone already; nothing else can be done.
        let _ = stream.try_write(&bytes);
        return;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        close(stream, bytes, linger).await;
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        shared.reserve.refill();
    });
}

/// Handles a failed accept. Out of descriptors: a reserved one admits the next client, to refuse it properly. Other errors concern one client only.
async fn accept_failed<S: Service>(listener: &ListeningSocket, door: &Arc<Door<S>>, error: &io::Error) {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const PAUSE: Duration = Duration::from_millis(10);
    if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        // ECONNABORTED and similar, or no memory: a pause helps the latter and does no harm otherwise.
        return sleep(PAUSE).await;
    }
    let reserve = &door.shared.reserve;
    if !reserve.give() {
        sleep(PAUSE).await;
        reserve.refill();
        return;
    }
    let accepted = timeout(PAUSE, listener.accept()).await;
    let recovered = reserve.refill();
    match accepted {
        Ok(Ok((stream, peer))) if recovered => admit(door, stream, peer),
        Ok(Ok((stream, peer))) => reject(door, stream, &peer, &ConnectionRefusal::TooManyFiles),
        // No client was waiting: without descriptors accept fails before it checks.
        _ => {}
    }
}
