//! Settings of a server, and the binding of its listeners.

use std::io;
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;

use posthaste_net::{Backlog, Certificate, GateLimits, ListenError, ListenPlace, UnixAccess, bind};

use super::Handler;
use super::server::{BoundServer, RunningServer};
use super::setup::{Door, ListenerSettings};
use crate::server::{Config, Protocol};

/// Entry point of a server: [`Server::builder`].
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server with default settings and no listener.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            next: ListenerSettings::from(Config::new("localhost")),
            places: Vec::new(),
            limits: GateLimits::default(),
            implicit_tls: false,
            certificate: Certificate::default(),
        }
    }
}

/// Settings of a future server.
#[derive(Debug)]
pub struct ServerBuilder {
    /// Settings of the listeners named from here on.
    next: ListenerSettings,
    places: Vec<(ListenPlace, Door, ListenerSettings)>,
    limits: GateLimits,
    implicit_tls: bool,
    certificate: Certificate,
}

impl ServerBuilder {
    /// Default of [`ServerBuilder::max_connections`].
    pub const MAX_CONNECTIONS: usize = 20_000;

    /// Sets host name, limits, policies, protocol, STARTTLS and AUTH for the listeners added after this call. The
    /// handler is always asked about hello and DATA. Default: [`Config::new`] with the name `localhost`. Impossible settings
    /// are a [`ServerSetupError`](super::ServerSetupError) at the start.
    pub fn config(self, config: Config) -> Self {
        let settings = ListenerSettings { configs: config.into(), ..self.next.clone() };
        self.settings(settings)
    }

    /// Sets all settings that can differ between listeners, for listeners added after this call.
    pub fn settings(mut self, settings: ListenerSettings) -> Self {
        self.next = settings;
        self
    }

    /// SMTP or LMTP, for the listeners named from here on. Default: that of [`ServerBuilder::config`].
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.next.configs = self.next.configs.map(|config| Config { protocol, ..config });
        self
    }

    /// The certificate for STARTTLS, which [`Config::starttls`] offers, and for [`ServerBuilder::implicit_tls`]. By
    /// itself it offers nothing. If no listener has one of the two, the start fails with
    /// [`ServerSetupError::CertificateUnused`](super::ServerSetupError::CertificateUnused).
    /// [`tls::server_config`](crate::tls::server_config) makes one from PEM files.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, config: Arc<rustls::ServerConfig>) -> Self {
        self.certificate = Certificate::new(config);
        self
    }

    /// Encrypts sessions from the first octet on (RFC 8314, port 465), for the listeners named from here on. Default:
    /// no.
    pub fn implicit_tls(mut self, implicit_tls: bool) -> Self {
        self.implicit_tls = implicit_tls;
        self
    }

    /// Limits of concurrent connections over all listeners: in total, per address, per network. Default:
    /// [`GateLimits::default`].
    pub fn limits(mut self, limits: GateLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Concurrent connections over all listeners. Above it a client is accepted, gets 421 4.3.2, and is closed. Default
    /// [`ServerBuilder::MAX_CONNECTIONS`].
    pub fn max_connections(mut self, max: usize) -> Self {
        self.limits.connections = max;
        self
    }

    /// Concurrent connections of one IPv4 address or one IPv6 /64. Above it: 421 4.7.0. Default: no limit.
    pub fn max_connections_per_address(mut self, max: usize) -> Self {
        self.limits.connections_per_address = max;
        self
    }

    /// Listens on `host:port`; port 0 takes a free one. For a name with several addresses, listens on each.
    pub fn listen(self, address: impl Into<String>) -> Self {
        self.place(ListenPlace::Tcp(address.into()))
    }

    /// Listens on a UNIX socket. Replaces a socket left by a dead server; any other file is an error. The name is
    /// removed at the end unless another process has taken it. Owner and group may connect; see
    /// [`ServerBuilder::listen_unix_with`].
    pub fn listen_unix(self, path: impl Into<PathBuf>) -> Self {
        self.listen_unix_with(path, UnixAccess::default())
    }

    /// Like [`ServerBuilder::listen_unix`], with the given access.
    pub fn listen_unix_with(self, path: impl Into<PathBuf>, access: UnixAccess) -> Self {
        self.place(ListenPlace::Unix(path.into(), access))
    }

    /// Listens on a socket that is already bound and listening.
    pub fn listener(self, listener: std::net::TcpListener) -> Self {
        self.place(ListenPlace::BoundTcp(listener))
    }

    /// Listens on a UNIX socket that is already bound and listening.
    pub fn unix_listener(self, listener: std::os::unix::net::UnixListener) -> Self {
        self.place(ListenPlace::BoundUnix(listener))
    }

    fn place(mut self, at: ListenPlace) -> Self {
        let door = Door { protocol: self.next.configs.get(None).protocol, implicit_tls: self.implicit_tls };
        self.places.push((at, door, self.next.clone()));
        self
    }

    /// Binds all listeners, so that clients may connect; [`BoundServer::start`] serves them. Needs no runtime: a
    /// program can bind low ports, drop its privileges, and then start its threads. Resolving a host name may block.
    ///
    /// # Errors
    /// [`ListenError`] names the listener; then nothing is left bound.
    pub fn bind(self) -> Result<BoundServer, ListenError> {
        let Self { places, limits, certificate, .. } = self;
        let backlog = Backlog::for_connections(limits.connections);
        let mut at = Vec::new();
        let mut settings = Vec::new();
        for (index, (place, door, own)) in places.into_iter().enumerate() {
            at.push((place, index));
            settings.push((door, own));
        }
        Ok(BoundServer { sockets: bind(at, &limits)?, settings, certificate, backlog, limits })
    }

    /// Binds all listeners and serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// A binding error, with the listener's name; then nothing listens. `InvalidInput` without any listener, or with a
    /// [`ServerSetupError`](super::ServerSetupError) inside.
    pub async fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        // Resolving a name may be slow.
        let bound = tokio::task::spawn_blocking(|| self.bind()).await.map_err(io::Error::from)??;
        bound.start(handler)
    }
}
