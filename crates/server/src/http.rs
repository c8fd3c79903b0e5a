//! HTTP at work: sockets, tokens, certificates; the API and the page are those of `posthaste-admin`.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant as StdInstant};

use posthaste_admin::{AdminApi, AdminService, HostNames, HttpListener, TokenFile};
use posthaste_directory::Directory;
use posthaste_net::{Admission, Bound, Certificate, IpNet, ListenError, Listeners, Place, bind};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::certificates::TlsInForce;
use crate::config::{Config, Listener, ListenerTls};
use crate::error::ServeError;
use crate::listening::{connection_limits, rules, unix_access};
use crate::overview::Overview;
use crate::receive::Receiver;
use crate::services::{Ending, OnFailure, Service, drain_listeners};

const NAME: &str = "HTTP";
/// Ports that the page tries where no listener is configured, its own first.
const PORTS_TRIED: u16 = 100;

/// Sockets that listen, for each listener of HTTP in their order.
#[derive(Debug)]
pub(crate) struct BoundHttp(Vec<(Vec<Bound>, TlsInForce)>);

impl BoundHttp {
    /// Listens at the configured places. `tls`: of each, in their order. A predecessor that is being ended is waited for until `deadline`; where the
    /// configuration names no listener, the next free port is taken in place of one that is busy.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn bind(config: &Config, tls: Vec<TlsInForce>, deadline: StdInstant) -> Result<Self, ServeError> {
        let gives_way = config.has_default_listeners();
        let bound = config.http_listeners().zip(tls).map(|(listener, tls)| {
            let sockets = match gives_way {
                true => bind_next(config, default_address(listener))?,
                false => bind_by(config, listener, deadline)?,
            };
            Ok((sockets, tls))
        });
        bound.collect::<Result<_, ServeError>>().map(Self)
    }

    /// The TCP addresses, each with whether it has TLS.
    pub fn addresses(&self) -> Vec<(SocketAddr, bool)> {
        let each = self.0.iter().flat_map(|(sockets, tls)| sockets.iter().map(move |socket| (socket, tls)));
        each.filter_map(|(socket, tls)| Some((socket.local_addr()?, tls.mode == ListenerTls::Implicit))).collect()
    }
}

fn bind_by(config: &Config, listener: &Listener, deadline: StdInstant) -> Result<Vec<Bound>, ListenError> {
    loop {
        match bind_at(config, place(config, listener)) {
            Err(error) if is_busy(&error) && StdInstant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            bound => return bound,
        }
    }
}

fn default_address(listener: &Listener) -> SocketAddr {
    let address = listener.socket.address.as_deref().and_then(|address| address.parse().ok());
    address.expect("the default is an address")
}

fn bind_next(config: &Config, mut at: SocketAddr) -> Result<Vec<Bound>, ListenError> {
    let last = at.port().saturating_add(PORTS_TRIED - 1);
    loop {
        match bind_at(config, Place::Tcp(at.to_string())) {
            Err(error) if is_busy(&error) && at.port() < last => at.set_port(at.port() + 1),
            bound => return bound,
        }
    }
}

fn is_busy(error: &ListenError) -> bool {
    error.error.kind() == io::ErrorKind::AddrInUse
}

fn bind_at(config: &Config, place: Place) -> Result<Vec<Bound>, ListenError> {
    let bound = bind(vec![(place, ())], &connection_limits(config))?;
    Ok(bound.into_iter().map(|(socket, ())| socket).collect())
}

fn place(config: &Config, listener: &Listener) -> Place {
    match (&listener.socket.address, &listener.socket.unix) {
        (Some(address), _) => Place::Tcp(address.clone()),
        (None, Some(path)) => Place::Unix(path.clone(), unix_access(config, listener)),
        (None, None) => panic!("an unchecked configuration: a listener that listens nowhere"),
    }
}

/// All listeners of HTTP, which end together.
pub(crate) struct HttpService {
    api: AdminApi<Overview>,
    each: Vec<Served>,
    watching: JoinHandle<()>,
    /// Until the drain.
    listeners: Option<Listeners>,
}

/// The parts of one listener that a reload replaces.
struct Served {
    tls: TlsInForce,
    certificate: Option<Arc<RwLock<Certificate>>>,
    proxies: Arc<RwLock<Arc<Vec<IpNet>>>>,
    admission: Arc<Admission>,
}

impl HttpService {
    /// Serves those who connect. `None`: no listener speaks HTTP.
    ///
    /// # Errors
    /// [`ServeError::Service`]: also if others can read the file of tokens.
    pub async fn start(bound: BoundHttp, config: &Config, receiver: Receiver) -> Result<Option<Self>, ServeError> {
        let failed = |error| ServeError::Service { service: NAME, error };
        if bound.0.is_empty() {
            return Ok(None);
        }
        let tokens = TokenFile::in_directory(&config.storage.data);
        let checked = tokens.clone();
        let checked = spawn_blocking(move || checked.read().map(drop).map_err(io::Error::other)).await;
        checked.map_err(io::Error::from).flatten().map_err(failed)?;
        let body_bytes = config.limits.process.memory_bytes / 2;
        let api = AdminApi::new(Overview::new(receiver, config), tokens, host_names(config), body_bytes);
        let mut listeners = Listeners::new(connection_limits(config)).map_err(failed)?;
        let mut each = Vec::new();
        for (listener, (sockets, tls)) in config.http_listeners().zip(bound.0) {
            let certificate =
                (tls.mode == ListenerTls::Implicit).then(|| Arc::new(RwLock::new(tls.certificate.clone())));
            let proxies = Arc::new(RwLock::new(Arc::new(proxies(listener))));
            let admission = Admission::new(rules(config, listener));
            for socket in sockets {
                let at = HttpListener {
                    certificate: certificate.clone(),
                    is_loopback: listener.is_local() && listener.socket.proxies.is_none(),
                    proxies: Arc::clone(&proxies),
                };
                let service = AdminService::new(api.clone(), at);
                listeners.serve(socket.listen().map_err(failed)?, &admission, service);
            }
            each.push(Served { tls, certificate, proxies, admission });
        }
        let watching = tokio::spawn(api.clone().watch());
        Ok(Some(Self { api, each, watching, listeners: Some(listeners) }))
    }
}

/// Names by which browsers may ask.
fn host_names(config: &Config) -> HostNames {
    HostNames::new(config.http.names.iter().cloned().chain([config.host_name.clone()]))
}

/// Proxies that name their clients in a field of the request.
fn proxies(listener: &Listener) -> Vec<IpNet> {
    let proxies = listener.socket.proxies.as_ref().filter(|_| !listener.socket.proxy_protocol);
    proxies.map(|proxies| proxies.0.clone()).unwrap_or_default()
}

impl Service for HttpService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("nobody can ask by HTTP, and the page shows nothing")
    }

    /// For new connections.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let mut kept = Vec::new();
        self.api.set_names(host_names(config));
        self.api.view().reload(config);
        for (listener, served) in config.http_listeners().zip(&mut self.each) {
            if !served.tls.reload(listener) {
                kept.push("a certificate of HTTP");
            }
            if let Some(certificate) = served.certificate.as_ref().filter(|_| served.tls.certificate.is_there()) {
                *certificate.write().unwrap_or_else(PoisonError::into_inner) = served.tls.certificate.clone();
            }
            *served.proxies.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(proxies(listener));
            served.admission.replace(rules(config, listener));
        }
        if let Some(listeners) = &self.listeners {
            listeners.set_limits(connection_limits(config));
        }
        kept
    }

    fn drain(&mut self, deadline: tokio::time::Instant) -> Ending<'_> {
        drain_listeners(self.listeners.take(), deadline, "open requests of HTTP were ended without an answer")
    }

    fn stop(mut self: Box<Self>, deadline: tokio::time::Instant) -> Ending<'static> {
        Box::pin(async move {
            self.watching.abort();
            self.drain(deadline).await
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listeners.as_mut().map_or(Poll::Pending, |listeners| listeners.poll_failed(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_gives_way_where_no_listener_is_configured() {
        assert!(Config::default().has_default_listeners());
        let named = Config::parse(std::path::Path::new("x"), "[[listener]]\naddress = '127.0.0.1:2525'\n").unwrap();
        assert!(!named.has_default_listeners() && named.http_listeners().count() == 0);
        let config = Config::default();
        // Not the last of its range, so that others come after it.
        let busy = bind_next(&config, ([127, 0, 0, 1], 18_025).into()).unwrap();
        let at = busy[0].local_addr().unwrap();
        let next = bind_next(&config, at).unwrap()[0].local_addr().unwrap();
        assert!(next.port() > at.port() && next.port() < at.port() + PORTS_TRIED, "{next} after {at}");
    }
}
