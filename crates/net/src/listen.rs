//! Listening sockets.

use std::fs::{File, Metadata};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, UnixListener};

use crate::{Peer, Stream};

/// Limit on connections that wait to be accepted. A burst beyond it meets a silent SYN timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Requested backlog: the connection limit, at most 4096, which the server accepts in a moment.
    pub wanted: u32,
    /// Backlog that the kernel grants: the whole of `net.core.somaxconn`.
    pub granted: u32,
}

impl Backlog {
    /// True if `net.core.somaxconn` is the limit and ought to be raised to [`Backlog::wanted`].
    pub fn is_limited_by_somaxconn(&self) -> bool {
        self.granted < self.wanted
    }

    /// The backlog of a server with this many connections.
    pub fn for_connections(max_connections: usize) -> Self {
        const LINUX_DEFAULT: u32 = 4096;
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
        let granted = text.trim().parse().unwrap_or(LINUX_DEFAULT);
        Self { wanted: u32::try_from(max_connections).unwrap_or(u32::MAX).min(LINUX_DEFAULT), granted }
    }

    /// Sets the backlog again: listen(2) may be called repeatedly, and the maker of `listener` chose another value.
    fn apply(self, listener: &impl AsFd) -> io::Result<()> {
        Ok(rustix::net::listen(listener, i32::try_from(self.granted).unwrap_or(i32::MAX))?)
    }
}

/// Access to a UNIX socket: clients with write permission may connect (unix(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixAccess {
    /// Permission bits. Default 0o660.
    pub mode: u32,
    /// Number of the socket's group; `None` keeps the process's own.
    pub group: Option<u32>,
}

impl Default for UnixAccess {
    fn default() -> Self {
        Self { mode: 0o660, group: None }
    }
}

impl UnixAccess {
    /// Applies to the open file, whatever file has its name by now.
    fn apply(self, file: &File) -> io::Result<()> {
        if let Some(group) = self.group {
            rustix::fs::chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        }
        // Of a socket there is no other descriptor than one of its path, and fchmod(2) takes none of those.
        Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(self.mode))?)
    }
}

/// Binds a named socket to which nobody may connect yet; also opens its file.
fn bind_closed(path: &Path) -> io::Result<(OwnedFd, File)> {
    let socket = unix_socket()?;
    // What bind(2) makes has no more permission bits than the socket.
    rustix::fs::fchmod(&socket, Mode::empty())?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok((socket, open_closed(path)?))
}

/// Opens the file that was just made. Others with write permission to the directory could have replaced it, but not by
/// a file like this: a socket of ours that nobody may use.
fn open_closed(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    let is_it = found.file_type().is_socket()
        && found.mode() & 0o777 == 0
        && found.nlink() == 1
        && found.uid() == rustix::process::geteuid().as_raw();
    if is_it {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::AddrInUse, "another file has just taken this name"))
    }
}

/// A bound socket, so that clients may connect, without a runtime yet. Dropping it closes it.
#[derive(Debug)]
pub struct Bound(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpListener),
    Unix(Option<SocketFile>, std::os::unix::net::UnixListener),
}

impl Bound {
    /// Listens on `address`, one of `all` addresses of the server.
    pub(crate) fn tcp(address: SocketAddr, all: &[SocketAddr], backlog: Backlog) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, NEW_SOCKET, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        if address.is_ipv6() && address.ip().is_unspecified() && all.contains(&any_v4) {
            // It would take the IPv4 clients as well, and nothing be left for the other to listen on (ipv6(7)).
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        rustix::net::bind(&socket, &address)?;
        backlog.apply(&socket)?;
        Ok(Self(Socket::Tcp(socket.into())))
    }

    /// Listens on a UNIX socket. A socket at `path` without a listener is replaced; any other file stays.
    pub(crate) fn unix(path: &Path, access: UnixAccess, backlog: Backlog) -> io::Result<Self> {
        let bind = || -> io::Result<Self> {
            let (socket, file) = bind_closed(path)?;
            let name = SocketFile { path: path.to_owned(), inode: inode_of(&file.metadata()?) };
            // Before it listens, so that nobody connects who may not.
            access.apply(&file)?;
            backlog.apply(&socket)?;
            Ok(Self(Socket::Unix(Some(name), socket.into())))
        };
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_dead_socket(path)?;
                bind()
            }
            other => other,
        }
    }

    pub(crate) fn from_tcp(listener: std::net::TcpListener, backlog: Backlog) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        backlog.apply(&listener)?;
        Ok(Self(Socket::Tcp(listener)))
    }

    pub(crate) fn from_unix(listener: std::os::unix::net::UnixListener, backlog: Backlog) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        backlog.apply(&listener)?;
        Ok(Self(Socket::Unix(None, listener)))
    }

    /// The TCP address of the socket, with the assigned port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }

    /// Registers the socket with the current runtime.
    ///
    /// # Errors
    /// Errors of the system, such as too many open files.
    pub fn listen(self) -> io::Result<ListeningSocket> {
        Ok(ListeningSocket(match self.0 {
            Socket::Tcp(listener) => {
                let local = Some(listener.local_addr()?).filter(|local| !local.ip().is_unspecified());
                Accepting::Tcp { listener: TcpListener::from_std(listener)?, local }
            }
            Socket::Unix(name, listener) => {
                Accepting::Unix { _name: name, listener: UnixListener::from_std(listener)? }
            }
        }))
    }
}

const NEW_SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn unix_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, NEW_SOCKET, None)?)
}

/// A socket that accepts clients.
#[derive(Debug)]
pub struct ListeningSocket(Accepting);

#[derive(Debug)]
enum Accepting {
    Tcp {
        listener: TcpListener,
        /// Our address on every connection, unless it listens on all addresses.
        local: Option<SocketAddr>,
    },
    Unix {
        /// Removed before the socket is closed: until then no other socket can have the same inode.
        _name: Option<SocketFile>,
        listener: UnixListener,
    },
}

/// The name of a UNIX socket made by this server. Removed on drop, unless another file has the name by then.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

/// Identity of a file whatever its name: device and inode number.
fn inode_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| inode_of(&found) == self.inode) {
            // Nothing is lost if it stays: the next start finds that nobody listens on it and replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a dead server.
///
/// # Errors
/// `AlreadyExists`: another kind of file has the name, or another type of socket. `AddrInUse`: another process listens.
/// Nothing was removed.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        let what = "a file that is not a socket has this name; it is not replaced";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    match rustix::net::connect(unix_socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => {}
        // It answers, or its queue is full.
        Ok(()) | Err(Errno::AGAIN) => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens on this socket"));
        }
        Err(Errno::PROTOTYPE) => {
            let what = "a program uses a socket of another type with this name; it is not replaced";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        Err(error) => return Err(error.into()),
    }
    // Another server that is starting may have replaced it meanwhile.
    if inode_of(&std::fs::symlink_metadata(path)?) != inode_of(&found) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server has just taken this socket"));
    }
    std::fs::remove_file(path)
}

impl ListeningSocket {
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.0 {
            Accepting::Tcp { listener, local } => {
                let (stream, remote) = listener.accept().await?;
                // Replies are written whole; waiting to fill a segment would only delay them. A client that is already
                // gone makes these two fail; reading it will tell.
                let _ = stream.set_nodelay(true);
                let local = local.or_else(|| stream.local_addr().ok()).unwrap_or(remote);
                Ok((Stream::Tcp(stream), Peer::Tcp { remote, local }))
            }
            Accepting::Unix { listener, .. } => {
                listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), Peer::Unix))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_closed_to_all_until_it_has_its_group_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lmtp");
        let mode = || std::fs::symlink_metadata(&path).unwrap().mode() & 0o777;
        let (_socket, file) = bind_closed(&path).unwrap();
        assert_eq!(mode(), 0);
        let group = rustix::process::getegid().as_raw();
        // More than the umask of this process may allow.
        UnixAccess { mode: 0o666, group: Some(group) }.apply(&file).unwrap();
        assert_eq!((mode(), std::fs::symlink_metadata(&path).unwrap().gid()), (0o666, group));
    }

    #[test]
    fn a_socket_of_another_type_stays_while_it_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let listen = || Bound::unix(&path, UnixAccess::default(), Backlog { wanted: 1, granted: 1 });
        let error = listen().unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::AlreadyExists && error.to_string().contains("of another type"),
            "{error}"
        );
        drop(datagrams);
        listen().expect("nobody uses it any more");
    }

    #[test]
    fn what_took_the_name_of_a_socket_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lmtp");
        let (_socket, file) = bind_closed(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let precious = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let before = std::fs::symlink_metadata(&path).unwrap().mode();
        // Too late for one who looked before, and refused to one who looks now.
        UnixAccess { mode: 0o606, group: None }.apply(&file).unwrap();
        assert_eq!(open_closed(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode(), before);
        drop(precious);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert_eq!(open_closed(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
