//! The accept loop: who is served, who is turned away, and the end.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::admission::Permits;
use crate::gate::Gate;
use crate::phase::{PhaseWatch, Phases};
use crate::proxy::take_header;
use crate::reserve::Reserve;
use crate::{Admission, Limits, Listener, Peer, Phase, PhaseNow, ProxyError, Refusal, Rules, Stream, close};

/// A protocol, as its listeners see it. One value serves all connections of a listener.
pub trait Service: Send + Sync + 'static {
    /// Serves a connection to its end. The future is dropped half way when a shutdown has come to [`Phase::Gone`]; until then it looks at
    /// [`Connection::phase`] whenever it waits, and is polled when the phase changes.
    fn serve(&self, connection: Connection) -> impl Future<Output = ()> + Send;

    /// A client is turned away: what it is told. It must not block.
    fn refuse(&self, peer: &Peer, why: &Refusal) -> Goodbye;
}

/// A client that has been let in.
#[derive(Debug)]
pub struct Connection {
    /// Counts up from 1 over all [`Listeners`] of one value.
    pub id: u64,
    /// What the client sends and is sent.
    pub stream: Stream,
    /// Who it is: behind a proxy, the client that the proxy named.
    pub peer: Peer,
    /// Whether there is a shutdown.
    pub phase: Arc<PhaseNow>,
}

/// What a client is told that is turned away. It has to fit any socket buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Goodbye {
    /// The last octets; none: it is closed at once.
    pub bytes: Vec<u8>,
    /// How long what the client sends is still read, so that these octets are not lost to a reset.
    pub linger: Duration,
}

impl Goodbye {
    /// These octets, and a second to read them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), linger: Duration::from_secs(1) }
    }
}

/// All listeners of a server, of one protocol or several: what they accept is counted together and ends together. Dropping it lets them go on for
/// as long as their runtime lives.
#[derive(Debug)]
pub struct Listeners {
    shared: Arc<Shared>,
    phases: Phases,
    accepting: Vec<JoinHandle<()>>,
}

impl Listeners {
    /// None yet.
    ///
    /// # Errors
    /// There are no descriptors to keep back for clients that are to be told so when there are no more.
    pub fn new(limits: Limits) -> io::Result<Self> {
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

    /// Serves who connects to `listener` on the current tokio runtime, until [`Listeners::shutdown`]. Listeners may share `admission`.
    pub fn serve(&mut self, listener: Listener, admission: &Arc<Admission>, service: impl Service) {
        let shared = Arc::clone(&self.shared);
        let door = Arc::new(Door { shared, admission: Arc::clone(admission), service });
        self.accepting.push(tokio::spawn(accept(listener, door)));
    }

    /// Puts other limits in force; nobody who is connected is turned out.
    pub fn set_limits(&self, limits: Limits) {
        self.shared.gate.replace(limits);
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.shared.gate.total()
    }

    /// Stops in order: no more connections are taken, and those that are open hear of [`Phase::Draining`]. After `grace` it is
    /// [`Phase::Ending`], and a second later what is left is dropped. Returns whether all had ended within `grace`.
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
    /// Every task keeps this, so that a shutdown can tell when all have ended.
    phase: PhaseWatch,
    /// Without the sender in it every wait for a phase would end; [`Listeners`] may be dropped.
    phases: Phases,
}

/// A listener's own.
struct Door<S> {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    service: S,
}

/// Clients that are being turned away at once; above it they are closed without waiting for them to read why.
const REJECTING_MAX: usize = 256;

async fn accept<S: Service>(listener: Listener, door: Arc<Door<S>>) {
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
        Some(proxies) if !proxies.trust(&peer) => Err(Refusal::NotAProxy),
        // Its client is counted once it is known.
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

/// Serves a connection that a proxy passes on, once it has said whose.
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
    let entered = header.map_err(Refusal::from).and_then(|header| {
        // Without addresses it is the proxy's own connection, and has its address.
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
        // The first look leaves this task's waker, which stays the same, and while the server runs nothing takes it away; so it
        // is not asked again before the phase has moved, and from then on always, as each change takes the waker away. Before the
        // connection looks at the phase, so that no change falls between the two.
        if (!listens || now.reached(Phase::Draining)) && gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        listens = true;
        serving.as_mut().poll(cx)
    })
    .await
}

/// Tells a client why it is not served. What it is told fits any socket buffer, so nothing has to wait for it to be written.
fn reject<S: Service>(door: &Arc<Door<S>>, stream: Stream, peer: &Peer, why: &Refusal) {
    let refused = catch_unwind(AssertUnwindSafe(|| door.service.refuse(peer, why)));
    let Goodbye { bytes, linger } = refused.unwrap_or_else(|_| {
        tracing::error!("a listener's protocol panicked as it turned a client away");
        Goodbye::default()
    });
    if bytes.is_empty() {
        return;
    }
    let shared = &door.shared;
    if shared.rejecting.fetch_add(1, Ordering::Relaxed) >= REJECTING_MAX {
        shared.rejecting.fetch_sub(1, Ordering::Relaxed);
        // The client may be gone already; there is nobody else to tell.
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

/// Out of descriptors: one of the reserve lets the next client in to be told. Other errors concern one client only.
async fn accept_failed<S: Service>(listener: &Listener, door: &Arc<Door<S>>, error: &io::Error) {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const PAUSE: Duration = Duration::from_millis(10);
    if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        // ECONNABORTED and its like, or no memory: taking a breath is right for the latter and harmless else.
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
        Ok(Ok((stream, peer))) => reject(door, stream, &peer, &Refusal::TooManyFiles),
        // Nobody was waiting after all: without descriptors accept fails before it looks.
        _ => {}
    }
}
