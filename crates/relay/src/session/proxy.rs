//! Connections through a proxy: SOCKS5 (RFC 1928), or a PROXY protocol header that names the source.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use posthaste_net::ProxyHeader;
use posthaste_smtp::client::Step;
use posthaste_smtp::sasl::Credentials;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Loss, SessionOpenError};

/// Proxy for the connections of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// A SOCKS5 server, which chooses its local address.
    Socks5 {
        /// Its address.
        server: SocketAddr,
        /// Name and password (RFC 1929), if it wants them.
        login: Option<Credentials>,
    },
    /// A server that takes a PROXY protocol header, version 2, connects from the source in it to the destination in it,
    /// and passes the rest on.
    Header {
        /// Its address.
        server: SocketAddr,
    },
}

impl Proxy {
    /// Its address.
    pub fn server(&self) -> SocketAddr {
        match self {
            Self::Socks5 { server, .. } | Self::Header { server } => *server,
        }
    }

    /// Connects to `address`. A failure before the request to the proxy counts as a failure of the source.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
        source: Option<IpAddr>,
        patience: Duration,
    ) -> Result<TcpStream, SessionOpenError> {
        let asked = timeout(patience, self.ask(address, source)).await;
        let mut stream = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| {
            SessionOpenError::Source(io::Error::new(error.kind(), format!("proxy {}: {error}", self.server())))
        })?;
        if let Self::Socks5 { .. } = self {
            let answered = timeout(patience, answer(&mut stream)).await;
            let not_connected = |error| Loss::Io { step: Step::Connect, error };
            answered.map_err(|_| Loss::TimedOut(Step::Connect))?.map_err(not_connected)?;
        }
        Ok(stream)
    }

    async fn ask(&self, address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.server()).await?;
        stream.set_nodelay(true)?;
        match self {
            Self::Socks5 { login, .. } => {
                log_in(&mut stream, login.as_ref()).await?;
                stream.write_all(&connect_request(address)).await?;
            }
            Self::Header { .. } => {
                let unspecified = if address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
                let from = SocketAddr::new(source.unwrap_or(unspecified), 0);
                let header = ProxyHeader::encode(from, address);
                stream.write_all(&header.ok_or_else(|| bad("addresses of different families"))?).await?;
            }
        }
        Ok(stream)
    }
}

async fn log_in(stream: &mut TcpStream, login: Option<&Credentials>) -> io::Result<()> {
    let method = if login.is_some() { PASSWORD } else { NOTHING };
    stream.write_all(&[VERSION, 1, method]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    match (chosen, login) {
        ([VERSION, NOTHING], None) => Ok(()),
        ([VERSION, PASSWORD], Some(login)) => {
            let texts = [login.user.as_bytes(), login.password.as_bytes()];
            let mut request = vec![LOGIN_VERSION];
            for text in texts {
                request.push(u8::try_from(text.len()).map_err(|_| bad("a name or a password over 255 octets"))?);
                request.extend(text);
            }
            stream.write_all(&request).await?;
            let mut status = [0; 2];
            stream.read_exact(&mut status).await?;
            if status[1] == 0 { Ok(()) } else { Err(bad("it refuses the name or the password")) }
        }
        ([VERSION, _], _) => Err(bad("it wants another kind of login")),
        _ => Err(bad("it does not speak SOCKS5")),
    }
}

fn connect_request(address: SocketAddr) -> Vec<u8> {
    let mut request = vec![VERSION, CONNECT, 0];
    match address.ip() {
        IpAddr::V4(address) => {
            request.push(IPV4);
            request.extend(address.octets());
        }
        IpAddr::V6(address) => {
            request.push(IPV6);
            request.extend(address.octets());
        }
    }
    request.extend(address.port().to_be_bytes());
    request
}

/// Reads the reply to CONNECT and nothing after it, which belongs to the other host.
async fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, reply, _, kind] = head;
    if version != VERSION {
        return Err(bad("the proxy does not speak SOCKS5"));
    }
    if reply != 0 {
        let text = match reply {
            2 => "not allowed by its rules",
            3 => "network unreachable",
            4 => "host unreachable",
            5 => "connection refused",
            6 => "TTL expired",
            8 => "no addresses of this family",
            _ => "general failure",
        };
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("the proxy says: {text}")));
    }
    let octets = match kind {
        IPV4 => 4,
        IPV6 => 16,
        DOMAIN => usize::from(stream.read_u8().await?),
        _ => return Err(bad("the proxy returned an address of an unknown type")),
    };
    let mut bound = [0; 255 + 2];
    stream.read_exact(&mut bound[..octets + 2]).await?;
    Ok(())
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

const VERSION: u8 = 5;
const LOGIN_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const NOTHING: u8 = 0;
const PASSWORD: u8 = 2;
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;
