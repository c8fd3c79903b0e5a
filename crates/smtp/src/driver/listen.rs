//! Sockets that wait for clients, and the descriptors kept back so that a client can be told when there are no more.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};

use super::Peer;
use super::stream::Stream;

/// How many connections may wait to be accepted. A burst beyond that meets a silent SYN timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// What the server would like: as many as it may have connections.
    pub wanted: u32,
    /// What the kernel grants: the whole of `net.core.somaxconn`.
    pub granted: u32,
}

impl Backlog {
    /// Whether `net.core.somaxconn` is the limit and ought to be raised to [`Backlog::wanted`].
    pub fn is_limited_by_somaxconn(&self) -> bool {
        self.granted < self.wanted
    }

    pub(super) fn for_connections(max_connections: usize) -> Self {
        const LINUX_DEFAULT: u32 = 4096;
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
        let granted = text.trim().parse().unwrap_or(LINUX_DEFAULT);
        Self { wanted: u32::try_from(max_connections).unwrap_or(u32::MAX), granted }
    }

    /// Whoever made `listener` has chosen a backlog of his own; listen(2) may be called again.
    fn apply(self, listener: &impl AsFd) -> io::Result<()> {
        Ok(rustix::net::listen(listener, i32::try_from(self.granted).unwrap_or(i32::MAX))?)
    }
}

/// Who may connect to a UNIX socket: the right to write decides (unix(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixAccess {
    /// Permission bits. Default 0o660.
    pub mode: u32,
    /// Number of the group that the socket is given to; `None` leaves it to the process's own.
    pub group: Option<u32>,
}

impl Default for UnixAccess {
    fn default() -> Self {
        Self { mode: 0o660, group: None }
    }
}

impl UnixAccess {
    fn apply(self, path: &Path) -> io::Result<()> {
        if self.group.is_some() {
            std::os::unix::fs::chown(path, None, self.group)?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode))
    }
}

#[derive(Debug)]
pub(super) enum Listener {
    Tcp {
        listener: TcpListener,
        /// Our address on every connection, unless it listens on all of them.
        local: Option<SocketAddr>,
    },
    Unix {
        listener: UnixListener,
        _name: SocketFile,
    },
}

/// The name of a UNIX socket, removed on drop if this server made it.
#[derive(Debug)]
pub(super) struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nothing is lost if it stays: the next start finds that nobody listens on it and replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// Listens on `address`, which is one of `all` that are listened on.
    pub fn bind_tcp(address: SocketAddr, all: &[SocketAddr], backlog: Backlog) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        if address.is_ipv6() && address.ip().is_unspecified() && all.contains(&any_v4) {
            // It would take the IPv4 clients as well, and nothing be left for the other to listen on (ipv6(7)).
            rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
        }
        socket.bind(address)?;
        Self::tcp(socket.listen(backlog.granted)?)
    }

    fn tcp(listener: TcpListener) -> io::Result<Self> {
        let local = Some(listener.local_addr()?).filter(|local| !local.ip().is_unspecified());
        Ok(Self::Tcp { listener, local })
    }

    pub async fn bind_unix(path: &Path, access: UnixAccess, backlog: Backlog) -> io::Result<Self> {
        let bind = || {
            let socket = UnixSocket::new_stream()?;
            socket.bind(path)?;
            // Before it listens, so that nobody connects who may not.
            let set = access.apply(path).and_then(|()| socket.listen(backlog.granted));
            if set.is_err() {
                // Ours, and of no use to anybody.
                let _ = std::fs::remove_file(path);
            }
            set
        };
        let listener = match bind() {
            // A name left behind by a server that died: nobody answers on it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path).await => {
                std::fs::remove_file(path)?;
                bind()?
            }
            other => other?,
        };
        Ok(Self::Unix { listener, _name: SocketFile(Some(path.to_owned())) })
    }

    pub fn from_tcp(listener: std::net::TcpListener, backlog: Backlog) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        backlog.apply(&listener)?;
        Self::tcp(TcpListener::from_std(listener)?)
    }

    pub fn from_unix(listener: std::os::unix::net::UnixListener, backlog: Backlog) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        backlog.apply(&listener)?;
        Ok(Self::Unix { listener: UnixListener::from_std(listener)?, _name: SocketFile(None) })
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp { listener, .. } => listener.local_addr().ok(),
            Self::Unix { .. } => None,
        }
    }

    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp { listener, local } => {
                let (stream, remote) = listener.accept().await?;
                // Replies are written whole; waiting to fill a segment would only delay them. A client that is already
                // gone makes these two fail; reading it will tell.
                let _ = stream.set_nodelay(true);
                let local = local.or_else(|| stream.local_addr().ok()).unwrap_or(remote);
                Ok((Stream::Tcp(stream), Peer::Tcp { remote, local }))
            }
            Self::Unix { listener, .. } => {
                listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), Peer::Unix))
            }
        }
    }
}

async fn is_stale(path: &Path) -> bool {
    matches!(UnixStream::connect(path).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Open descriptors that are given up when the process has no other left, so that a client can still be accepted, told
/// 421 and closed, instead of hanging in the backlog.
#[derive(Debug, Clone)]
pub(super) struct Reserve(Arc<Mutex<Vec<File>>>);

impl Reserve {
    const DESCRIPTORS: usize = 8;

    pub fn new() -> io::Result<Self> {
        let files = (0..Self::DESCRIPTORS).map(|_| Self::open()).collect::<io::Result<Vec<_>>>()?;
        Ok(Self(Arc::new(Mutex::new(files))))
    }

    fn open() -> io::Result<File> {
        File::open("/dev/null")
    }

    /// Frees one descriptor. `false`: all are in use already.
    pub fn give(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()
    }

    /// Takes back what can be had; `true` if that is all of it.
    pub fn refill(&self) -> bool {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while files.len() < Self::DESCRIPTORS {
            match Self::open() {
                Ok(file) => files.push(file),
                Err(_) => return false,
            }
        }
        true
    }
}
