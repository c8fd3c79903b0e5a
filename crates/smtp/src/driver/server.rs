//! A running server, and the path of connections from its listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_net::{
    Admission, Backlog, Bound, ByNetwork, Certificate, ConnectionRefusal, CurrentCertificate, GateLimits, Goodbye,
    Listeners, Peer, Service,
};

use super::connection::Connection;
use super::panics::sheltered_now;
use super::session::serve;
use super::setup::{Door, ListenerSettings, ServerSetupError};
use super::{Handler, Session};
use crate::reply::Reply;
use crate::server::{Config, Protocol};

/// A server whose sockets listen, but which does not accept connections so far:
/// [`ServerBuilder::bind`](super::ServerBuilder::bind). Dropping it closes the sockets.
#[derive(Debug)]
pub struct BoundServer {
    /// Sockets with the index of their settings: a name may have several addresses.
    pub(super) sockets: Vec<(Bound, usize)>,
    /// Settings of each listener, in the order of naming.
    pub(super) settings: Vec<(Door, ListenerSettings)>,
    pub(super) certificate: Certificate,
    pub(super) backlog: Backlog,
    pub(super) limits: GateLimits,
}

impl BoundServer {
    /// Serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// `InvalidInput` with a [`ServerSetupError`] inside; other errors of the system.
    pub fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        let certificate = self.certificate;
        let checked = self
            .settings
            .iter()
            .try_for_each(|(door, settings)| door.check(&settings.configs, &certificate_of(settings, &certificate)));
        let is_used = self.settings.iter().any(|(door, settings)| door.uses_server_certificate(settings));
        let checked = checked.and_then(|()| {
            if certificate.is_there() && !is_used { Err(ServerSetupError::CertificateUnused) } else { Ok(()) }
        });
        checked.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let handler = Arc::new(handler);
        let new = |(door, settings)| Entrance::new(door, settings, &certificate);
        let entrances: Vec<Arc<Entrance>> = self.settings.into_iter().map(new).collect();
        let local_addrs =
            |(bound, index): &(Bound, usize)| Some((bound.local_addr()?, entrances[*index].door.protocol));
        let (local_addrs, protocols) = self.sockets.iter().filter_map(local_addrs).unzip();
        let mut listeners = Listeners::new(self.limits)?;
        let sockets: io::Result<Vec<_>> =
            self.sockets.into_iter().map(|(bound, index)| Ok((bound.listen()?, index))).collect();
        for (socket, index) in sockets? {
            let entrance = Arc::clone(&entrances[index]);
            let mail = Mail { handler: Arc::clone(&handler), listener: index, entrance };
            listeners.serve(socket, &entrances[index].admission, mail);
        }
        Ok(RunningServer { local_addrs, protocols, backlog: self.backlog, certificate, entrances, listeners })
    }
}

/// A running server. Dropping it leaves it running while its runtime lives.
#[derive(Debug)]
pub struct RunningServer {
    local_addrs: Vec<SocketAddr>,
    /// Protocols of the listeners.
    protocols: Vec<Protocol>,
    backlog: Backlog,
    /// Certificate of listeners without their own.
    certificate: Certificate,
    entrances: Vec<Arc<Entrance>>,
    listeners: Listeners,
}

impl RunningServer {
    /// TCP addresses of the listeners, with the actual ports.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// A TCP address for clients of `protocol`, if there is one.
    pub fn local_addr_for(&self, protocol: Protocol) -> Option<SocketAddr> {
        let found = self.protocols.iter().position(|listening| *listening == protocol)?;
        Some(self.local_addrs[found])
    }

    /// Granted and wanted length of the accept queue.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.listeners.connections()
    }

    /// Applies host name, limits and policies of `config` to new connections on all listeners. Open ones keep theirs.
    /// The listeners, their protocols, rules for clients, and limits of connections stay.
    ///
    /// # Errors
    /// As for the same settings at the start; the old ones stay in force.
    pub fn reconfigure(&self, config: Config) -> Result<(), ServerSetupError> {
        let configs = ByNetwork::from(config);
        let check = |entrance: &Arc<Entrance>| entrance.door.check(&configs, &entrance.certificate.get());
        self.entrances.iter().try_for_each(check)?;
        self.entrances.iter().for_each(|entrance| entrance.set_configs(configs.clone()));
        Ok(())
    }

    /// Like [`reconfigure`](Self::reconfigure), for each listener separately, in the order of naming. Also replaces the
    /// rules, and the certificate for new handshakes. The protocol and implicit TLS stay.
    ///
    /// # Errors
    /// As for the same settings at the start; the old ones stay in force.
    ///
    /// # Panics
    /// If the number of settings differs from that of listeners.
    pub fn reconfigure_each(&self, settings: Vec<ListenerSettings>) -> Result<(), ServerSetupError> {
        assert_eq!(settings.len(), self.entrances.len(), "settings for each listener");
        let mut all = self.entrances.iter().zip(&settings);
        all.try_for_each(|(entrance, settings)| {
            entrance.door.check(&settings.configs, &certificate_of(settings, &self.certificate))
        })?;
        for (entrance, settings) in self.entrances.iter().zip(settings) {
            let certificate = certificate_of(&settings, &self.certificate);
            // Before STARTTLS is offered. Without a new one, sessions that were offered STARTTLS keep the old one.
            if certificate.is_there() {
                entrance.certificate.set(certificate);
            }
            let ListenerSettings { configs, rules, .. } = settings;
            entrance.set_configs(configs);
            entrance.admission.replace(rules);
        }
        Ok(())
    }

    /// Replaces the limits of connections; open ones stay.
    pub fn set_limits(&self, limits: GateLimits) {
        self.listeners.set_limits(limits);
    }

    /// Ready once a listener has stopped accepting connections without [`shutdown`](Self::shutdown), which only a bug
    /// can cause.
    pub fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listeners.poll_failed(cx)
    }

    /// Returns the listeners, so that those of several protocols can be ended together.
    pub fn into_listeners(self) -> Listeners {
        self.listeners
    }

    /// Shuts down in order: takes no more connections, and sends 421 4.3.2 to idle sessions at once, to those with an
    /// open transaction when it is done. Sessions left after `grace` get it in the middle. A handler that still works a
    /// second later is dropped, and its client gets no reply. Returns true if all sessions had ended within `grace`.
    pub async fn shutdown(self, grace: Duration) -> bool {
        self.listeners.shutdown(grace).await
    }
}

/// A named listener, with all its sockets.
#[derive(Debug)]
struct Entrance {
    door: Door,
    configs: RwLock<ByNetwork<Arc<Config>>>,
    certificate: CurrentCertificate,
    admission: Arc<Admission>,
}

/// The certificate of a listener: its own, else the server's.
fn certificate_of(settings: &ListenerSettings, servers: &Certificate) -> Certificate {
    if settings.certificate.is_there() { settings.certificate.clone() } else { servers.clone() }
}

impl Entrance {
    fn new(door: Door, settings: ListenerSettings, certificate: &Certificate) -> Arc<Self> {
        let certificate = CurrentCertificate::new(certificate_of(&settings, certificate));
        let ListenerSettings { configs, rules, .. } = settings;
        let configs = RwLock::new(with_protocol(configs, door.protocol));
        Arc::new(Self { door, configs, certificate, admission: Admission::new(rules) })
    }

    fn set_configs(&self, configs: ByNetwork<Config>) {
        let configs = with_protocol(configs, self.door.protocol);
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
    }

    /// The settings for a new connection.
    fn config(&self, peer: &Peer) -> Arc<Config> {
        Arc::clone(self.configs.read().unwrap_or_else(PoisonError::into_inner).get(peer.ip()))
    }
}

fn with_protocol(configs: ByNetwork<Config>, protocol: Protocol) -> ByNetwork<Arc<Config>> {
    // The handler is always asked: the server cannot know if it wants to be, and its defaults say yes.
    configs.map(|config| Arc::new(Config { protocol, asks_hello: true, asks_data: true, ..config }))
}

/// SMTP or LMTP on one listener.
struct Mail<H> {
    handler: Arc<H>,
    listener: usize,
    entrance: Arc<Entrance>,
}

impl<H: Handler> Service for Mail<H> {
    async fn serve(&self, connection: posthaste_net::Connection) {
        let posthaste_net::Connection { id, stream, peer, phase } = connection;
        let config = self.entrance.config(&peer);
        let session = Session::new(id, self.listener, peer, config.protocol);
        let connection = Connection::new(stream, config, phase, self.entrance.door);
        serve(connection, &*self.handler, session, &self.entrance.certificate).await;
    }

    /// With implicit TLS nobody would understand a reply, and a handshake is too much for a refused client.
    fn refuse(&self, peer: &Peer, why: &ConnectionRefusal) -> Goodbye {
        sheltered_now(0, "turned_away", || self.handler.turned_away(self.listener, peer, why));
        let Some(reply) = reply_to(why).filter(|_| !self.entrance.door.implicit_tls) else { return Goodbye::default() };
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        Goodbye { bytes, linger: self.entrance.config(peer).limits.timeouts.linger }
    }
}

/// The reply to a client; `None` if the peer is not a client.
fn reply_to(why: &ConnectionRefusal) -> Option<Reply> {
    Some(match why {
        ConnectionRefusal::TooManyFromAddress => {
            Reply::new(421, "4.7.0", "Too many connections from your address, try again later")
        }
        ConnectionRefusal::TooManyFromNetwork => {
            Reply::new(421, "4.7.0", "Too many connections from your network, try again later")
        }
        ConnectionRefusal::TooManyFiles => Reply::new(421, "4.3.2", "Too many open files, try again later"),
        ConnectionRefusal::NotAllowed => Reply::new(554, "5.7.1", "Clients of your address may not connect here"),
        ConnectionRefusal::NotAProxy | ConnectionRefusal::Proxy(_) => return None,
        _ => Reply::new(421, "4.3.2", "Too many connections, try again later"),
    })
}

#[cfg(test)]
mod tests {
    use posthaste_net::Stream;

    use super::*;
    use crate::command::RcptTo;
    use crate::driver::IncomingBody;
    use crate::server::{Envelope, MessageOutcome};

    struct Heavy;

    impl Handler for Heavy {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
            let ballast = [0_u8; 1 << 16];
            let _first = body.chunk().await;
            MessageOutcome::accepted(format!("{}", ballast.len()))
        }
    }

    #[tokio::test]
    async fn an_idle_session_does_not_carry_its_handlers_futures() {
        let door = Door { protocol: Protocol::Smtp, implicit_tls: false };
        let entrance = Entrance::new(door, Config::new("mx").into(), &Certificate::default());
        let mail = Mail { handler: Arc::new(Heavy), listener: 0, entrance };
        let (stream, _other) = tokio::net::UnixStream::pair().unwrap();
        let stream = Stream::Unix(stream);
        let session = mail.serve(posthaste_net::Connection { id: 1, stream, peer: Peer::Unix, phase: Arc::default() });
        assert!(size_of_val(&session) <= 4096, "{} octets", size_of_val(&session));
    }
}
