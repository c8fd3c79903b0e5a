//! HTTP on the listeners of `posthaste-net`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use hyper::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use posthaste_net::{Connection, ConnectionRefusal, CurrentCertificate, Goodbye, IpNet, Peer, Phase, Service};
use posthaste_units::Rate;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::answer;
use crate::arrival::Arrival;
use crate::body::BodyRoom;
use crate::connection::{Octets, TokioTimer};
use crate::guard::HostNames;
use crate::heads::{FIELDS_MAX, HEAD_BYTES_MAX};
use crate::history::History;
use crate::inject_from::InjectNetworks;
use crate::looks::{Cached, Seen};
use crate::page::Page;
use crate::rates::TokenRates;
use crate::routes;
use crate::session::{PageLinks, Sessions};
use crate::shared::{ASKS_MAX, Shared};
use crate::streams::LiveStreams;
use crate::token_file::{KnownTokens, TokenFile};
use crate::view::ServerView;

/// The API and the page of one server. Clones share everything.
pub struct AdminApi<V>(Arc<Shared<V>>);

impl<V> Clone for AdminApi<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Settings shared by all HTTP listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Host names under which browsers may reach the server.
    pub names: HostNames,
    /// Maximum request rate of each token.
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
            asks: Arc::new(Semaphore::new(ASKS_MAX)),
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

    /// Unused links to the page.
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

/// State of one listener. A reload replaces its parts.
#[derive(Debug, Clone)]
pub struct HttpListener {
    /// TLS from the first octet, if configured.
    pub certificate: Option<CurrentCertificate>,
    /// Sends Strict-Transport-Security (RFC 6797): the listener has port 443 and a certificate of an authority.
    pub is_strict: Arc<AtomicBool>,
    /// True if only this machine can connect.
    pub is_loopback: bool,
    /// True if every host may connect without TLS: answers contain no secrets.
    pub is_public: bool,
    /// Proxies that name their clients in `Forwarded` or `X-Forwarded-For`.
    pub proxies: Arc<RwLock<Arc<Vec<IpNet>>>>,
    /// Networks whose clients inject mail without a token.
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
/// Timeout for a complete head, and for the next request of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Time for a client to read its last answer.
const LINGER: Duration = Duration::from_secs(1);
