//! HTTP on the listeners of `posthaste-net`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use hyper::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use posthaste_net::{
    Connection, ConnectionRefusal, CurrentCertificate, CurrentPhase, Goodbye, IpNet, Peer, Phase, Service,
};
use posthaste_units::Rate;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::answer;
use crate::ask;
use crate::body::BodyRoom;
use crate::client::is_unlisted_proxy;
use crate::connection::{Octets, TokioTimer};
use crate::heads::{FIELDS_MAX, HEAD_BYTES_MAX};
use crate::history::History;
use crate::live::LiveStreams;
use crate::page::Page;
use crate::rates::TokenRates;
use crate::routes;
use crate::session::{PageLinks, Sessions};
use crate::token::hash;
use crate::token_file::KnownTokens;
use crate::view::{Attention, QueueStatus, ServerStatus, ServerView, Urgency};
use crate::{ClientAddress, HostNames, InjectNetworks, Token, TokenFile};

/// The API and the page of one server. Clones share everything.
pub struct AdminApi<V>(Arc<Shared<V>>);

impl<V> Clone for AdminApi<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// State that all requests share.
pub(crate) struct Shared<V> {
    pub view: V,
    pub tokens: KnownTokens,
    pub sessions: Sessions,
    pub links: Arc<PageLinks>,
    pub history: History,
    pub page: Page,
    pub room: BodyRoom,
    pub rates: TokenRates,
    /// Turns of requests to the queue.
    pub asks: Arc<Semaphore>,
    pub streams: LiveStreams,
    /// True once a request has started a drain.
    pub is_drained: AtomicBool,
    names: RwLock<Arc<HostNames>>,
    status: Cached<ServerStatus>,
    /// Cached queue status by tenant. The empty name, which no tenant has, is the whole queue.
    queues: Mutex<HashMap<String, Arc<OneQueue>>>,
    seen: Seen,
}

/// Cached status of a queue, or of a tenant's part of it.
#[derive(Debug, Default)]
struct OneQueue {
    looks: Cached<QueueStatus>,
    seen: Seen,
}

/// Settings that all listeners share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Host names that browsers may use.
    pub names: HostNames,
    /// Requests of each token.
    pub token_rate: Rate,
}

impl<V: ServerView> AdminApi<V> {
    /// Serves `view` to holders of `tokens`. Concurrent request bodies use about `body_bytes` of memory.
    pub fn new(view: V, tokens: TokenFile, settings: HttpSettings, body_bytes: u64) -> Self {
        Self(Arc::new(Shared {
            view,
            sessions: Sessions::in_directory(tokens.dir()),
            links: Arc::default(),
            tokens: KnownTokens::new(tokens),
            history: History::default(),
            page: Page::new(),
            room: BodyRoom::new(body_bytes),
            rates: TokenRates::new(settings.token_rate),
            asks: Arc::new(Semaphore::new(ask::ASKS_MAX)),
            streams: LiveStreams::default(),
            is_drained: AtomicBool::default(),
            names: RwLock::new(Arc::new(settings.names)),
            status: Cached::default(),
            queues: Mutex::default(),
            seen: Seen::default(),
        }))
    }

    /// The server whose state is served.
    pub fn view(&self) -> &V {
        &self.0.view
    }

    /// Links that open the page.
    pub fn links(&self) -> &Arc<PageLinks> {
        &self.0.links
    }

    /// Applies new settings to later requests.
    pub fn set(&self, settings: HttpSettings) {
        self.0.rates.set(settings.token_rate);
        *self.0.names.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings.names);
    }

    /// Samples the server each second, for the graphs and for the start of each attention. Never ends.
    pub async fn watch(self) {
        let mut ticks = interval(Duration::from_secs(1));
        // Each look is of its own time.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            ticks.tick().await;
            self.0.history.add(std::time::Instant::now(), self.0.view.counters());
            if tick % STATUS_TICKS == 0 {
                self.0.status().await;
            }
        }
    }
}

/// Seconds between reads of the whole state while nobody asks for it.
const STATUS_TICKS: u64 = 10;

impl<V: ServerView> Shared<V> {
    pub fn names(&self) -> Arc<HostNames> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A token for the first password; `None` if the text is not that password.
    pub async fn of_password(self: &Arc<Self>, presented: &str) -> Option<Arc<Token>> {
        let (shared, presented) = (Arc::clone(self), presented.to_owned());
        let look = move || shared.view.is_first_password(&presented).then(|| Token::of_password(hash(&presented)));
        spawn_blocking(look).await.ok().flatten().map(Arc::new)
    }

    /// `None` if the server gives none.
    pub async fn status(self: &Arc<Self>) -> Option<Arc<ServerStatus>> {
        let shared = Arc::clone(self);
        let look = move || {
            let mut status = shared.view.status();
            shared.seen.date(&mut status.attention, unix_secs());
            status
        };
        self.status.get(look).await
    }

    /// The queue, or a tenant's part of it; of all nodes of a cluster. There are no more of them than tenants of tokens. `None`: the server does not say.
    pub async fn queue(self: &Arc<Self>, tenant: Option<&str>) -> Option<Arc<QueueStatus>> {
        self.look_at_queue(tenant.unwrap_or_default(), tenant, V::whole_queue).await
    }

    /// The queue of this server for a scrape. It never waits for work that grows with the queue. If the last look took
    /// long, its result is returned, and the next look starts in the background.
    pub async fn queue_for_scrape(self: &Arc<Self>) -> Option<Arc<QueueStatus>> {
        // A server that is no node has one look for pages and scrapes.
        let name = if self.view.is_node() { THIS_NODE } else { "" };
        let Some(last) = self.queue_of(name).looks.last_if_long() else {
            return self.look_at_queue(name, None, V::queue).await;
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move { shared.look_at_queue(name, None, V::queue).await });
        Some(last)
    }

    async fn look_at_queue(
        self: &Arc<Self>,
        name: &str,
        tenant: Option<&str>,
        look: fn(&V, Option<&str>) -> QueueStatus,
    ) -> Option<Arc<QueueStatus>> {
        let one = self.queue_of(name);
        let (shared, looking, tenant) = (Arc::clone(self), Arc::clone(&one), tenant.map(str::to_owned));
        let look = move || {
            let mut queue = look(&shared.view, tenant.as_deref());
            looking.seen.date(&mut queue.attention, unix_secs());
            queue
        };
        one.looks.get(look).await
    }

    fn queue_of(&self, name: &str) -> Arc<OneQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(name.to_owned()).or_default())
    }
}

/// The name of the looks at this node's part of the queue. No tenant has it.
const THIS_NODE: &str = "\0";

/// A look at the server that all pages share.
#[derive(Debug)]
struct Cached<T> {
    last: Mutex<Option<Look<T>>>,
    /// The running read, and its start.
    running: AsyncMutex<Option<(Instant, JoinHandle<T>)>>,
}

#[derive(Debug)]
struct Look<T> {
    at: Instant,
    took: Duration,
    found: Arc<T>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { last: Mutex::new(None), running: AsyncMutex::new(None) }
    }
}

impl<T: Send + Sync + 'static> Cached<T> {
    /// Returns the cached result if it is recent, else reads it again. One read runs at a time, and reads take at most
    /// a hundredth of the time. `None` on a timeout: the read continues, and the next caller gets it. So a hanging disk
    /// blocks only one thread.
    async fn get(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<Arc<T>> {
        timeout(LOOK_PATIENCE, async {
            let mut under_way = self.running.lock().await;
            if under_way.is_none()
                && let Some(Look { at, took, found }) = &*self.last()
                && at.elapsed() < (*took * LOOK_SHARE).clamp(LOOK_AGE, LOOK_AGE_MAX)
            {
                return Some(Arc::clone(found));
            }
            let (at, running) = under_way.get_or_insert_with(|| (Instant::now(), spawn_blocking(look)));
            let (at, found) = (*at, running.await);
            *under_way = None;
            // Fails only by a panic, which the log has.
            let found = Arc::new(found.ok()?);
            *self.last() = Some(Look { at, took: at.elapsed(), found: Arc::clone(&found) });
            Some(found)
        })
        .await
        .ok()
        .flatten()
    }

    /// The cached result of any age, if reading it took long; else `None`. Does not wait.
    fn last_if_long(&self) -> Option<Arc<T>> {
        self.last().as_ref().filter(|look| look.took > LONG_LOOK).map(|look| Arc::clone(&look.found))
    }

    fn last(&self) -> MutexGuard<'_, Option<Look<T>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Some thousand destinations.
const LONG_LOOK: Duration = Duration::from_millis(2);
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Pages ask each second.
const LOOK_AGE: Duration = Duration::from_millis(900);
const LOOK_SHARE: u32 = 100;
/// Maximum age of a result that took long to read, such as from a slow disk.
const LOOK_AGE_MAX: Duration = Duration::from_secs(60);

/// The time at which each attention was first seen.
#[derive(Debug, Default)]
struct Seen(Mutex<HashMap<(Urgency, String), u64>>);

impl Seen {
    /// Sets `since` of each attention to the time it was first seen without a gap. `now` is in seconds since 1970.
    fn date(&self, found: &mut [Attention], now: u64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        for attention in found {
            let key = (attention.urgency, attention.about.clone());
            let since = before.get(&key).copied().unwrap_or(now);
            attention.since = Some(since);
            seen.insert(key, since);
        }
    }
}

/// State of one listener. A reload replaces its parts.
#[derive(Debug, Clone)]
pub struct HttpListener {
    /// TLS from the first octet, if configured.
    pub certificate: Option<CurrentCertificate>,
    /// Sends Strict-Transport-Security (RFC 6797): the listener has port 443 and a certificate of an authority.
    pub is_strict: Arc<AtomicBool>,
    /// Only this machine can connect.
    pub is_loopback: bool,
    /// True if it serves everybody without TLS: it answers only without secrets.
    pub is_public: bool,
    /// Proxies that name their clients in `Forwarded` or `X-Forwarded-For`.
    pub proxies: Arc<RwLock<Arc<Vec<IpNet>>>>,
    /// Clients that bring mail without a token.
    pub inject_from: Arc<RwLock<Arc<InjectNetworks>>>,
}

/// HTTP as a service of a listener.
pub struct AdminService<V> {
    api: AdminApi<V>,
    listener: HttpListener,
}

impl<V: ServerView> AdminService<V> {
    /// Serves `api` at one listener.
    pub fn new(api: AdminApi<V>, listener: HttpListener) -> Self {
        Self { api, listener }
    }
}

/// The connection of a request.
pub(crate) struct Arrival {
    peer: Peer,
    proxies: Arc<Vec<IpNet>>,
    inject_from: Arc<InjectNetworks>,
    phase: Arc<CurrentPhase>,
    pub is_loopback: bool,
    pub is_public: bool,
    is_encrypted: bool,
}

impl Arrival {
    pub fn client(&self, headers: &HeaderMap) -> ClientAddress {
        ClientAddress::of(&self.peer, headers, &self.proxies)
    }

    /// True if a proxy that is none of `proxies` sent this.
    pub fn is_of_unlisted_proxy(&self, headers: &HeaderMap) -> bool {
        is_unlisted_proxy(&self.peer, headers, &self.proxies)
    }

    /// The client's address where it gives rights; `None` if nobody knows it.
    pub fn known_client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        self.client(headers).0.filter(|_| !self.is_of_unlisted_proxy(headers))
    }

    /// The token of a client that may inject without one, by its network. A proxy that names no client, or is none of
    /// ours, has none.
    pub fn of_network(&self, headers: &HeaderMap) -> Option<Arc<Token>> {
        let client = self.known_client(headers)?;
        let is_proxy = self.proxies.iter().any(|network| network.contains(&client.to_canonical()));
        self.inject_from.token_of(client).filter(|_| !is_proxy)
    }

    pub fn phase(&self) -> Arc<CurrentPhase> {
        Arc::clone(&self.phase)
    }

    pub fn is_draining(&self) -> bool {
        self.phase.reached(Phase::Draining)
    }

    /// True if a browser accepts a secure cookie: over TLS, which a proxy in front may terminate.
    pub fn takes_cookies(&self) -> bool {
        self.is_encrypted || !self.is_loopback
    }
}

impl<V: ServerView> Service for AdminService<V> {
    async fn serve(&self, connection: Connection) {
        let Connection { mut stream, peer, phase, .. } = connection;
        if let Some(certificate) = &self.listener.certificate {
            match timeout(HANDSHAKE_PATIENCE, certificate.get().accept(stream)).await {
                Ok(Ok((encrypted, _))) => stream = encrypted,
                // It spoke no TLS, or was too slow.
                _ => return,
            }
        }
        let proxies = Arc::clone(&self.listener.proxies.read().unwrap_or_else(PoisonError::into_inner));
        let inject_from = Arc::clone(&self.listener.inject_from.read().unwrap_or_else(PoisonError::into_inner));
        let HttpListener { is_loopback, is_public, .. } = self.listener;
        let is_encrypted = self.listener.certificate.is_some();
        let of_connection = Arc::clone(&phase);
        let arrival =
            Arrival { peer, proxies, inject_from, phase: of_connection, is_loopback, is_public, is_encrypted };
        let arrival = Arc::new(arrival);
        let shared = &self.api.0;
        let is_strict = is_encrypted && self.listener.is_strict.load(Ordering::Relaxed);
        let serve = service_fn(move |request| {
            let (shared, arrival) = (Arc::clone(shared), Arc::clone(&arrival));
            Box::pin(async move {
                let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
                let mut answer = routes::serve(&shared, &arrival, request).await;
                if is_strict {
                    answer.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(A_YEAR));
                }
                let is_last = is_chunked || arrival.is_draining();
                Ok::<_, Infallible>(if is_last { answer::last(answer) } else { answer })
            })
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer).header_read_timeout(HEAD_PATIENCE).max_headers(FIELDS_MAX).max_buf_size(HEAD_BYTES_MAX);
        let mut serving = http.serve_connection(Octets::new(stream), serve);
        let mut is_told = false;
        poll_fn(|cx| {
            if !is_told && phase.reached(Phase::Draining) {
                is_told = true;
                Pin::new(&mut serving).graceful_shutdown();
            }
            // Whatever a client does wrong is answered.
            serving.poll_without_shutdown(cx).map(drop)
        })
        .await;
        let octets = serving.into_parts().io;
        let last = octets.refused_at_once().map_or_else(Vec::new, |refusal| {
            answer::octets(answer::last(answer::refused(refusal.status(), &refusal.to_string())))
        });
        // A client that still sends would lose its answer with a reset.
        posthaste_net::close(octets.into_stream(), last, LINGER).await;
    }

    fn refuse(&self, _: &Peer, why: &ConnectionRefusal) -> Goodbye {
        // TLS has not begun, and a proxy or a network that may not connect is told nothing.
        match why {
            ConnectionRefusal::NotAllowed | ConnectionRefusal::NotAProxy | ConnectionRefusal::Proxy(_) => {
                Goodbye::default()
            }
            _ if self.listener.certificate.is_some() => Goodbye::default(),
            _ => Goodbye::new(BUSY),
        }
    }
}

const BUSY: &str =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n";
const A_YEAR: &str = "max-age=31536000";
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// For a whole head, and for the next request of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// For a client to read its last answer.
const LINGER: Duration = Duration::from_secs(1);

/// The wall clock, in seconds since 1970.
pub(crate) fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_somebody_is_dated_from_when_it_was_first_seen() {
        let seen = Seen::default();
        let check = |names: &[&str], now, expected: &[u64]| {
            let mut found: Vec<_> = names
                .iter()
                .map(|name| Attention::new(Urgency::Warning, name, format!("{name} at {now}"), ""))
                .collect();
            seen.date(&mut found, now);
            assert_eq!(found.iter().filter_map(|found| found.since).collect::<Vec<_>>(), expected);
        };
        check(&["a", "b"], 1, &[1, 1]);
        check(&["b", "c"], 2, &[1, 2]);
        check(&["a", "b"], 3, &[3, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_takes_long_is_taken_seldom() {
        let cached = Cached::default();
        let look = |number: u32| move || number;
        assert_eq!(cached.get(look(1)).await.as_deref(), Some(&1));
        assert_eq!(cached.get(look(2)).await.as_deref(), Some(&1), "all pages share it");
        tokio::time::advance(LOOK_AGE).await;
        assert_eq!(cached.get(look(3)).await.as_deref(), Some(&3));
        let took = Duration::from_millis(500);
        *cached.last() = Some(Look { at: Instant::now(), took, found: Arc::new(4) });
        tokio::time::advance(took * LOOK_SHARE - Duration::from_secs(1)).await;
        assert_eq!(cached.get(look(5)).await.as_deref(), Some(&4));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cached.get(look(6)).await.as_deref(), Some(&6));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_look_a_scrape_waits_for_none() {
        let cached = Cached::default();
        assert_eq!(cached.last_if_long(), None);
        let looked = |took| Some(Look { at: Instant::now(), took, found: Arc::new(1) });
        *cached.last() = looked(LONG_LOOK);
        assert_eq!(cached.last_if_long(), None, "a short one is taken anew");
        *cached.last() = looked(LONG_LOOK * 2);
        let _under_way = cached.running.lock().await;
        tokio::time::advance(LOOK_AGE_MAX * 2).await;
        assert_eq!(cached.last_if_long().as_deref(), Some(&1), "while the next is under way");
    }

    #[tokio::test]
    async fn a_look_that_hangs_holds_one_thread() {
        let cached = Arc::new(Cached::default());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let begun = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let first = begun.clone();
        let hanging = move || {
            first.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let _ = released.recv();
            1
        };
        assert!(timeout(Duration::from_millis(50), cached.get(hanging)).await.is_err(), "whoever asked has gone");
        for _ in 0..3 {
            let more = begun.clone();
            let another = move || more.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(timeout(Duration::from_millis(20), cached.get(another)).await.is_err());
        }
        release.send(()).unwrap();
        assert_eq!(cached.get(|| 2).await.as_deref(), Some(&1), "the look under way is everybody's");
        assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
