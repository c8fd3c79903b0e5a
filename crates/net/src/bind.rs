//! Binding of sockets to the places that a configuration names.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::{Backlog, Bound, GateLimits, UnixAccess};

/// A place to listen.
#[derive(Debug)]
pub enum ListenPlace {
    /// `host:port`; port 0 takes a free one. A name with several addresses is bound at each.
    Tcp(String),
    /// A UNIX socket. A socket left behind by a dead server is replaced, any other file is an error. Our name is
    /// removed at the end unless another process has taken it over.
    Unix(PathBuf, UnixAccess),
    /// A socket that is already bound and listening.
    BoundTcp(std::net::TcpListener),
    /// A UNIX socket that is already bound and listening.
    BoundUnix(std::os::unix::net::UnixListener),
}

impl fmt::Display for ListenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path, _) => write!(f, "{}", path.display()),
            Self::BoundTcp(_) | Self::BoundUnix(_) => f.write_str("a socket that was handed over"),
        }
    }
}

/// Binds all places, so that clients may connect. Returns each socket with the value given for its place. Needs no
/// runtime, so a program can bind low ports, drop its privileges, and then start its threads. Resolving a host name may
/// block.
///
/// # Errors
/// [`ListenError`] names the place; then nothing stays bound.
pub fn bind<T: Clone>(places: Vec<(ListenPlace, T)>, limits: &GateLimits) -> Result<Vec<(Bound, T)>, ListenError> {
    let backlog = Backlog::for_connections(limits.connections);
    let mut tcp = Vec::new();
    let mut bound = Vec::new();
    for (at, with) in places {
        let place = at.to_string();
        let socket = match at {
            ListenPlace::Tcp(address) => match address.to_socket_addrs() {
                Ok(addresses) => {
                    tcp.push((place, addresses.collect::<Vec<_>>(), with));
                    continue;
                }
                Err(error) => Err(error),
            },
            ListenPlace::Unix(path, access) => Bound::unix(&path, access, backlog),
            ListenPlace::BoundTcp(listener) => Bound::from_tcp(listener, backlog),
            ListenPlace::BoundUnix(listener) => Bound::from_unix(listener, backlog),
        };
        bound.push((socket.map_err(|error| ListenError { place, error })?, with));
    }
    let all: Vec<SocketAddr> = tcp.iter().flat_map(|(_, addresses, _)| addresses).copied().collect();
    for (place, addresses, with) in tcp {
        let sockets = bind_each(&addresses, &all, backlog).map_err(|error| ListenError { place, error })?;
        bound.extend(sockets.into_iter().map(|socket| (socket, with.clone())));
    }
    Ok(bound)
}

/// Binds the addresses of one place. A host name such as `localhost` may have addresses that this machine lacks, such
/// as IPv6 ones: one is enough.
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

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
pub struct ListenError {
    /// Address or path of the listener.
    pub place: String,
    /// Error of the system call.
    pub error: io::Error,
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        Self::new(error.error.kind(), error)
    }
}
