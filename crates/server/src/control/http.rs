//! The HTTP service: sockets, tokens, certificates. API and page are in `posthaste-admin`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use posthaste_acme::Challenges;
use posthaste_admin::{
    AdminApi, AdminService, HostNames, HttpListener, HttpSettings, InjectNetworks, PageLinks, TokenFile,
};
use posthaste_directory::Directory;
use posthaste_net::{IpNet, Listeners};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::config::error::ServeError;
use crate::control::overview::Overview;
use crate::lifecycle::{Ending, OnFailure, Service, drain_listeners};
use crate::listen::bound::{BoundListeners, ServedListener};
use crate::listen::rules::connection_limits;
use crate::receive::handler::Receiver;
use crate::services::inject::InjectKeys;
use posthaste_config::{Config, Listener, ListenerTls, Network};

const NAME: &str = "HTTP";

type NamingProxies = Arc<RwLock<Arc<Vec<IpNet>>>>;
type Injecting = Arc<RwLock<Arc<InjectNetworks>>>;

/// All HTTP listeners, which end together.
pub(crate) struct HttpService {
    api: AdminApi<Overview>,
    each: Vec<OneListener>,
    watching: JoinHandle<()>,
    /// Listeners; `None` once drained.
    listeners: Option<Listeners>,
}

/// The parts of a listener that a reload replaces.
struct OneListener {
    served: ServedListener,
    /// Proxies that name their clients.
    proxies: NamingProxies,
    is_strict: Arc<AtomicBool>,
    /// Networks whose clients inject mail without a token.
    inject_from: Injecting,
}

impl HttpService {
    /// Links that open the page.
    pub fn links(&self) -> Arc<PageLinks> {
        Arc::clone(self.api.links())
    }
}

impl HttpService {
    /// Serves HTTP clients. `None` without an HTTP listener.
    ///
    /// # Errors
    /// [`ServeError::Service`]: also if others can read the file of tokens.
    pub async fn start(
        bound: BoundListeners,
        config: &Config,
        receiver: Receiver,
        keys: InjectKeys,
        challenges: Challenges,
    ) -> Result<Option<Self>, ServeError> {
        let failed = |error| ServeError::Service { service: NAME, error };
        if bound.0.is_empty() {
            return Ok(None);
        }
        let tokens = TokenFile::in_directory(&config.storage.data);
        let checked = tokens.clone();
        let checked = spawn_blocking(move || checked.read().map(drop).map_err(io::Error::other)).await;
        checked.map_err(io::Error::from).flatten().map_err(failed)?;
        let body_bytes = config.limits.process.memory_bytes / 2;
        let api =
            AdminApi::new(Overview::new(receiver, keys, config, challenges), tokens, settings(config), body_bytes);
        let mut listeners = Listeners::new(connection_limits(config)).map_err(failed)?;
        let mut each = Vec::new();
        for (listener, (sockets, tls)) in config.http_listeners().zip(bound.0) {
            let served = ServedListener::new(config, listener, tls);
            let proxies = Arc::new(RwLock::new(Arc::new(proxies(listener))));
            let is_strict = Arc::new(AtomicBool::new(is_strict(config, listener)));
            let inject_from = Arc::new(RwLock::new(Arc::new(inject_from(config, listener))));
            for socket in sockets {
                let at = HttpListener {
                    certificate: (served.tls_mode() == ListenerTls::Implicit).then(|| served.certificate.clone()),
                    is_strict: Arc::clone(&is_strict),
                    is_loopback: listener.is_local() && listener.socket.proxies.is_none(),
                    is_public: listener.is_public(),
                    proxies: Arc::clone(&proxies),
                    inject_from: Arc::clone(&inject_from),
                };
                let service = AdminService::new(api.clone(), at);
                listeners.serve(socket.listen().map_err(failed)?, &served.admission, service);
            }
            each.push(OneListener { served, proxies, is_strict, inject_from });
        }
        let watching = tokio::spawn(api.clone().watch());
        Ok(Some(Self { api, each, watching, listeners: Some(listeners) }))
    }
}

fn settings(config: &Config) -> HttpSettings {
    let names = config.http.names.iter().cloned().chain([config.host_name.clone()]);
    HttpSettings { names: HostNames::new(names), token_rate: config.http.token_rate }
}

/// True if HSTS is sent: on port 443, with a certificate of an authority.
fn is_strict(config: &Config, listener: &Listener) -> bool {
    let is_usual = listener.socket.address.as_ref().is_some_and(|address| address.ends_with(":443"));
    let configured = listener.certificate_files().into_iter().map(|files| files.chain).next();
    let first = configured.or_else(|| crate::config::acme::files(config).next());
    is_usual && first.is_some_and(|file| crate::config::expiry::is_of_authority(&file))
}

/// Proxies that name their clients in a field of the request.
fn proxies(listener: &Listener) -> Vec<IpNet> {
    let proxies = listener.socket.proxies.as_ref().filter(|_| !listener.socket.proxy_protocol);
    proxies.map(|proxies| proxies.0.clone()).unwrap_or_default()
}

/// Networks whose clients inject mail without a token, each for the tenant of its `[[network]]`.
fn inject_from(config: &Config, listener: &Listener) -> InjectNetworks {
    let allowed = listener.inject_from.as_ref().map(|networks| networks.0.clone()).unwrap_or_default();
    let tenants = config.networks.iter().flat_map(Network::each).map(|(network, of)| (network, of.tenant.clone()));
    InjectNetworks::new(allowed, tenants)
}

impl Service for HttpService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("nobody can ask by HTTP, and the page shows nothing")
    }

    /// Applies to new connections.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let mut kept = Vec::new();
        self.api.set(settings(config));
        self.api.view().reload(config);
        for (listener, one) in config.http_listeners().zip(&mut self.each) {
            if one.served.reload(config, listener) {
                one.is_strict.store(is_strict(config, listener), Ordering::Relaxed)
            } else {
                kept.push("a certificate of HTTP")
            }
            *one.proxies.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(proxies(listener));
            *one.inject_from.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(inject_from(config, listener));
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
    use std::path::Path;

    use super::*;

    #[test]
    fn hsts_needs_port_443_and_a_trusted_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let named = |name: &str| {
            let mut params = rcgen::CertificateParams::new(vec!["mx.example.org".to_owned()]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params
        };
        let (of_authority, own) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let authority = rcgen::Issuer::new(named("Authority"), of_authority);
        let keep = |name: &str, certificate: rcgen::Certificate| {
            std::fs::write(dir.path().join(name), certificate.pem()).unwrap();
        };
        keep("own", named("mx.example.org").self_signed(&own).unwrap());
        keep("trusted", named("mx.example.org").signed_by(&own, &authority).unwrap());
        let check = |address: &str, certificate: &str, expected: bool| {
            let file = dir.path().join(certificate);
            let text = format!(
                "[[listener]]\naddress = '{address}'\nprotocol = 'http'\ntls = 'implicit'\ncertificate = {file:?}\nkey = 'k'\n"
            );
            let config = Config::parse(Path::new("x"), &text).unwrap();
            let listener = config.http_listeners().next().unwrap();
            assert_eq!(is_strict(&config, listener), expected, "{address} {certificate}");
        };
        check("[::]:443", "trusted", true);
        check("[::]:443", "own", false);
        check("[::]:8443", "trusted", false);
        check("[::]:443", "absent", false);
    }
}
