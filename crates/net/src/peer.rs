//! Addresses of the two ends of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP.
    Tcp {
        /// The client.
        remote: SocketAddr,
        /// Our address of the connection.
        local: SocketAddr,
    },
    /// Over a UNIX socket; such clients have no address.
    Unix,
    /// A program on this machine that has passed something on without a connection; the kernel vouches for its user.
    Local {
        /// The user's number.
        uid: u32,
    },
    /// A program that has sent something by HTTP with a token.
    Token {
        /// The token's name.
        name: Arc<str>,
        /// The program's address; `None` over a UNIX socket.
        client: Option<IpAddr>,
    },
}

impl Peer {
    /// The client's IP address. An IPv4 address on an IPv6 socket is returned as IPv4.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp { remote, .. } => Some(remote.ip().to_canonical()),
            Self::Token { client, .. } => client.map(|client| client.to_canonical()),
            Self::Unix | Self::Local { .. } => None,
        }
    }

    /// Key of the limits for each client: the IPv4 address, or the /64 of the IPv6 address, which is one customer's.
    pub fn network(&self) -> Option<IpAddr> {
        self.ip().map(customer)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { remote, .. } => remote.fmt(f),
            Self::Unix => f.write_str("unix socket"),
            Self::Local { uid } => write!(f, "uid {uid}"),
            Self::Token { name, client: Some(client) } => write!(f, "{client} (token {name})"),
            Self::Token { name, client: None } => write!(f, "token {name}"),
        }
    }
}

/// The key of a client: one customer has a whole /64 of IPv6.
pub(crate) fn customer(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}
