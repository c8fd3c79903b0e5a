//! Steps before the first message: connection, greeting, EHLO, TLS, AUTH.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use posthaste_net::Stream;
use posthaste_smtp::client::{ClientError, Config, Machine, Step};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::link::Link;
use super::{Channel, Endpoint, Loss, SessionAuth, SessionOpenError, SessionSettings, SessionTls, TlsPolicy, steps};

pub(super) async fn connect(endpoint: &Endpoint, settings: &SessionSettings) -> Result<Stream, SessionOpenError> {
    settings.check_halt()?;
    settings.pulse.iter().for_each(|pulse| pulse.step(steps::CONNECTING));
    if let (Endpoint::Tcp(address), Some(proxy)) = (endpoint, &settings.proxy) {
        let stream = proxy.connect(*address, settings.source, settings.timeouts.connect).await?;
        return Ok(Stream::Tcp(stream));
    }
    let connecting = async {
        match endpoint {
            Endpoint::Tcp(address) => connect_tcp(*address, settings.source).await.map(Stream::Tcp),
            Endpoint::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix).map_err(not_connected),
        }
    };
    timeout(settings.timeouts.connect, connecting).await.map_err(|_| Loss::TimedOut(Step::Connect))?
}

async fn connect_tcp(address: SocketAddr, source: Option<IpAddr>) -> Result<TcpStream, SessionOpenError> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(not_connected)?;
    if let Some(source) = source {
        socket.bind(SocketAddr::new(source, 0)).map_err(SessionOpenError::Source)?;
    }
    let stream = socket.connect(address).await.map_err(not_connected)?;
    // Each write has whole commands.
    stream.set_nodelay(true).map_err(not_connected)?;
    Ok(stream)
}

fn not_connected(error: io::Error) -> SessionOpenError {
    Loss::Io { step: Step::Connect, error }.into()
}

/// Opens a session up to its first message; returns its protection, too.
pub(super) async fn establish(stream: Stream, settings: &SessionSettings) -> Result<(Link, Channel), SessionOpenError> {
    let config = Config {
        helo_name: settings.ehlo_name.clone(),
        protocol: settings.protocol,
        transfer: settings.transfer,
        eight_bit: settings.eight_bit,
    };
    let mut machine = Machine::new(config).map_err(Loss::Protocol)?;
    if let Some(witness) = &settings.witness {
        machine.set_witness(witness.clone());
    }
    let mut link = Link::new(machine, stream, settings);
    let channel = match &settings.tls {
        None => {
            link.until_ready().await?;
            Channel::Clear
        }
        Some(tls) if tls.is_implicit => {
            let channel = handshake(&mut link, tls, settings).await?;
            link.until_ready().await?;
            channel
        }
        Some(tls) => start_tls(&mut link, tls, settings).await?,
    };
    if let Some(auth) = &settings.auth {
        authenticate(&mut link, auth, channel).await?;
    }
    Ok((link, channel))
}

async fn start_tls(link: &mut Link, tls: &SessionTls, settings: &SessionSettings) -> Result<Channel, SessionOpenError> {
    link.until_ready().await?;
    let is_opportunistic = tls.policy == TlsPolicy::Opportunistic;
    if !link.machine.extensions().starttls {
        return if is_opportunistic { Ok(Channel::Clear) } else { Err(SessionOpenError::NoStartTls) };
    }
    link.machine.start_tls();
    match link.until_ready().await {
        Ok(()) => {}
        // It offered what it cannot do now; the session goes on as before (RFC 3207 section 4).
        Err(Loss::Protocol(ClientError::Tls(reply))) if is_opportunistic && reply.code() != 421 => {
            return Ok(Channel::Clear);
        }
        Err(loss) => return Err(tls_lost(loss, tls, settings, true)),
    }
    let channel = handshake(link, tls, settings).await?;
    link.machine.tls_started();
    link.until_ready().await.map_err(|loss| tls_lost(loss, tls, settings, false))?;
    Ok(channel)
}

/// A middlebox may have cut the connection, or the server's TLS does not work. A reply within TLS has another cause.
fn tls_lost(loss: Loss, tls: &SessionTls, settings: &SessionSettings, counts_421: bool) -> SessionOpenError {
    let is_421 = || loss.last_words().is_some_and(|(_, reply)| reply.code() == 421);
    let is_of_tls = loss.is_silent() || counts_421 && is_421();
    if may_retry_in_clear(tls, settings) && is_of_tls { SessionOpenError::TlsLost(loss) } else { loss.into() }
}

fn may_retry_in_clear(tls: &SessionTls, settings: &SessionSettings) -> bool {
    tls.policy == TlsPolicy::Opportunistic && settings.auth.is_none()
}

/// Does the handshake. The machine has dropped all cleartext input.
async fn handshake(link: &mut Link, tls: &SessionTls, settings: &SessionSettings) -> Result<Channel, SessionOpenError> {
    settings.check_halt()?;
    let stream = std::mem::replace(&mut link.stream, Stream::Gone);
    settings.pulse.iter().for_each(|pulse| pulse.step(steps::HANDSHAKE));
    let connecting = TlsConnector::from(Arc::clone(&tls.config)).connect(tls.name.clone(), stream);
    let shaken = match timeout(settings.timeouts.connect, connecting).await {
        Ok(shaken) => shaken,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    let may_retry_in_clear = may_retry_in_clear(tls, settings);
    let stream = shaken.map_err(|error| SessionOpenError::Handshake { error, may_retry_in_clear })?;
    link.stream = Stream::Tls(Box::new(stream.into()));
    Ok(if tls.policy == TlsPolicy::Verified { Channel::Verified } else { Channel::Encrypted })
}

async fn authenticate(link: &mut Link, auth: &SessionAuth, channel: Channel) -> Result<(), SessionOpenError> {
    if channel < auth.needs {
        return Err(SessionOpenError::Unprotected(channel));
    }
    if !link.machine.authenticate(&auth.credentials) {
        return Err(SessionOpenError::NoMechanism);
    }
    Ok(link.until_ready().await?)
}
