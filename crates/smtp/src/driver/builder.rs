//! What a server is to be, and the binding of its listeners.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;

use rustix::io::Errno;

use super::Handler;
use super::listen::{Backlog, Bound, UnixAccess};
use super::server::{BoundServer, RunningServer};
use super::setup::{Certificate, Door};
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
            implicit_tls: false,
            certificate: Certificate::default(),
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
    implicit_tls: bool,
    certificate: Certificate,
}

/// A listener to be, and what is spoken there.
#[derive(Debug)]
struct Place {
    at: At,
    door: Door,
}

#[derive(Debug)]
enum At {
    Tcp(String),
    Unix(PathBuf, UnixAccess),
    BoundTcp(std::net::TcpListener),
    BoundUnix(std::os::unix::net::UnixListener),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path, _) => write!(f, "{}", path.display()),
            Self::BoundTcp(_) | Self::BoundUnix(_) => f.write_str("a socket that was handed over"),
        }
    }
}

impl ServerBuilder {
    /// Connections that are served at once unless [`ServerBuilder::max_connections`] says otherwise.
    pub const MAX_CONNECTIONS: usize = 20_000;

    /// Host name, limits, policies and protocol, STARTTLS and AUTH, and whether the handler is asked about hello and DATA. Default:
    /// those of [`Config::new`], under the name `localhost`. What cannot be kept to is a [`SetupError`](super::SetupError) at the start.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// SMTP or LMTP, on the listeners that are named from here on. Default: as [`ServerBuilder::config`] has it.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.config.protocol = protocol;
        self
    }

    /// The certificate for STARTTLS, which [`Config::starttls`] offers, and for [`ServerBuilder::implicit_tls`]. See
    /// [`tls::server_config`](crate::tls::server_config) for one from PEM files.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, config: Arc<rustls::ServerConfig>) -> Self {
        self.certificate.acceptor = Some(config.into());
        self
    }

    /// Whether sessions are encrypted from the first octet on (RFC 8314, port 465) on the listeners that are named from here on.
    /// Default: no.
    pub fn implicit_tls(mut self, implicit_tls: bool) -> Self {
        self.implicit_tls = implicit_tls;
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
    pub fn listen(self, address: impl Into<String>) -> Self {
        self.place(At::Tcp(address.into()))
    }

    /// Listens on a UNIX socket. A socket left behind by a dead server is replaced, any other file is an error; our name is removed
    /// at the end unless somebody else has it by then.
    /// Its owner and group may connect; see [`ServerBuilder::listen_unix_with`].
    pub fn listen_unix(self, path: impl Into<PathBuf>) -> Self {
        self.listen_unix_with(path, UnixAccess::default())
    }

    /// As [`ServerBuilder::listen_unix`], open to whom `access` says.
    pub fn listen_unix_with(self, path: impl Into<PathBuf>, access: UnixAccess) -> Self {
        self.place(At::Unix(path.into(), access))
    }

    /// Listens on a socket that is already bound and listening.
    pub fn listener(self, listener: std::net::TcpListener) -> Self {
        self.place(At::BoundTcp(listener))
    }

    /// Listens on a UNIX socket that is already bound and listening.
    pub fn unix_listener(self, listener: std::os::unix::net::UnixListener) -> Self {
        self.place(At::BoundUnix(listener))
    }

    fn place(mut self, at: At) -> Self {
        let door = Door { protocol: self.config.protocol, implicit_tls: self.implicit_tls };
        self.places.push(Place { at, door });
        self
    }

    /// Binds all listeners, so that clients may connect; they are served from [`BoundServer::start`] on. Needs no runtime, so a
    /// program can bind low ports, give up its privileges, and then start its threads. Resolving a host name may block.
    ///
    /// # Errors
    /// [`ListenError`] names the listener; then nothing is left bound.
    pub fn bind(self) -> Result<BoundServer, ListenError> {
        let Self { config, places, max_connections, max_connections_per_address, certificate, .. } = self;
        let backlog = Backlog::for_connections(max_connections);
        let mut tcp = Vec::new();
        let mut listeners = Vec::new();
        for Place { at, door } in places {
            let place = at.to_string();
            let bound = match at {
                At::Tcp(address) => match address.to_socket_addrs() {
                    Ok(addresses) => {
                        tcp.push((place, addresses.collect::<Vec<_>>(), door));
                        continue;
                    }
                    Err(error) => Err(error),
                },
                At::Unix(path, access) => Bound::unix(&path, access, backlog),
                At::BoundTcp(listener) => Bound::from_tcp(listener, backlog),
                At::BoundUnix(listener) => Bound::from_unix(listener, backlog),
            };
            listeners.push((bound.map_err(|error| ListenError { place, error })?, door));
        }
        let all: Vec<SocketAddr> = tcp.iter().flat_map(|(_, addresses, _)| addresses).copied().collect();
        for (place, addresses, door) in tcp {
            let bound = bind_each(&addresses, &all, backlog).map_err(|error| ListenError { place, error })?;
            listeners.extend(bound.into_iter().map(|bound| (bound, door)));
        }
        Ok(BoundServer { config, listeners, certificate, backlog, max_connections, max_connections_per_address })
    }

    /// Binds all listeners and serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// What binding reports, with the listener's name; nothing listens then. Without any listener, or with a [`SetupError`](super::SetupError) inside:
    /// `InvalidInput`.
    pub async fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        // Resolving a name may take its time.
        let bound = tokio::task::spawn_blocking(|| self.bind()).await.map_err(io::Error::from)??;
        bound.start(handler)
    }
}

/// Binds each address of one place. A host name such as `localhost` may have addresses that this machine has not, such as those of IPv6:
/// one is enough.
fn bind_each(addresses: &[SocketAddr], all: &[SocketAddr], backlog: Backlog) -> io::Result<Vec<Bound>> {
    let mut listeners = Vec::new();
    let mut not_here = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for &address in addresses {
        match Bound::tcp(address, all, backlog) {
            Ok(bound) => listeners.push(bound),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT)) => {
                not_here = error;
            }
            Err(error) => return Err(error),
        }
    }
    if listeners.is_empty() { Err(not_here) } else { Ok(listeners) }
}

/// A listener that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
pub struct ListenError {
    /// Its address or path.
    pub place: String,
    /// What the system said.
    pub error: io::Error,
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        Self::new(error.error.kind(), error)
    }
}
