//! A server at work, and how its listeners hand it connections.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_net::{
    Admission, Backlog, Bound, ByNetwork, Certificate, CurrentCertificate, Goodbye, Limits, Listeners, Peer, Refusal,
    Service,
};

use super::connection::Connection;
use super::panics::sheltered_now;
use super::session::serve;
use super::setup::{Door, ListenerSettings, SetupError};
use super::{Handler, Session};
use crate::reply::Reply;
use crate::server::{Config, Protocol};

/// A server whose sockets listen and that serves nobody yet: [`ServerBuilder::bind`](super::ServerBuilder::bind). Dropping it closes them.
#[derive(Debug)]
pub struct BoundServer {
    /// Each with the index of its settings: a name may have several addresses.
    pub(super) sockets: Vec<(Bound, usize)>,
    /// Of each listener, in the order in which they were named.
    pub(super) settings: Vec<(Door, ListenerSettings)>,
    pub(super) certificate: Certificate,
    pub(super) backlog: Backlog,
    pub(super) limits: Limits,
}

impl BoundServer {
    /// Serves on the current tokio runtime until [`RunningServer::shutdown`].
    ///
    /// # Errors
    /// `InvalidInput` without any listener, or with a [`SetupError`] inside; else the system refuses something that every server needs.
    pub fn start<H: Handler>(self, handler: H) -> io::Result<RunningServer> {
        if self.sockets.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on"));
        }
        let certificate = self.certificate;
        let checked = self
            .settings
            .iter()
            .try_for_each(|(door, settings)| door.check(&settings.configs, &certificate_of(settings, &certificate)));
        let is_used = self.settings.iter().any(|(door, settings)| door.uses_server_certificate(settings));
        let checked = checked.and_then(|()| match certificate.is_there() && !is_used {
            true => Err(SetupError::CertificateUnused),
            false => Ok(()),
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

/// A server at work. Dropping it lets it go on for as long as its runtime lives.
#[derive(Debug)]
pub struct RunningServer {
    local_addrs: Vec<SocketAddr>,
    /// Of each of them.
    protocols: Vec<Protocol>,
    backlog: Backlog,
    /// Of listeners without one of their own.
    certificate: Certificate,
    entrances: Vec<Arc<Entrance>>,
    listeners: Listeners,
}

impl RunningServer {
    /// The TCP addresses it listens on, with the ports that were taken.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Where clients of `protocol` can connect over TCP, if anywhere.
    pub fn local_addr_for(&self, protocol: Protocol) -> Option<SocketAddr> {
        let found = self.protocols.iter().position(|listening| *listening == protocol)?;
        Some(self.local_addrs[found])
    }

    /// The number of connections that may wait to be accepted, granted and wanted.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.listeners.connections()
    }

    /// Puts host name, limits and policies of `config` in force on all listeners, for connections that begin from now on. Those that are
    /// open keep theirs; the listeners, their protocols, who may connect, and the numbers of connections stay as they are.
    ///
    /// # Errors
    /// As for the same settings at the start; what applied before still does.
    pub fn reconfigure(&self, config: Config) -> Result<(), SetupError> {
        let configs = ByNetwork::from(config);
        let check = |entrance: &Arc<Entrance>| entrance.door.check(&configs, &entrance.certificate.get());
        self.entrances.iter().try_for_each(check)?;
        self.entrances.iter().for_each(|entrance| entrance.set_configs(configs.clone()));
        Ok(())
    }

    /// Like [`reconfigure`](Self::reconfigure), for each listener by itself, in the order in which they were named; also the rules and the certificate, for handshakes that
    /// begin from now on. Which protocol is spoken stays as it is, and whether TLS is implicit.
    ///
    /// # Errors
    /// As for the same settings at the start; what applied before still does.
    ///
    /// # Panics
    /// When there are not as many as there are listeners.
    pub fn reconfigure_each(&self, settings: Vec<ListenerSettings>) -> Result<(), SetupError> {
        assert_eq!(settings.len(), self.entrances.len(), "settings for each listener");
        let mut all = self.entrances.iter().zip(&settings);
        all.try_for_each(|(entrance, settings)| {
            entrance.door.check(&settings.configs, &certificate_of(settings, &self.certificate))
        })?;
        for (entrance, settings) in self.entrances.iter().zip(settings) {
            let certificate = certificate_of(&settings, &self.certificate);
            // Before STARTTLS is offered. Without one, sessions to which it was offered have the old one still.
            if certificate.is_there() {
                entrance.certificate.set(certificate);
            }
            let ListenerSettings { configs, rules, .. } = settings;
            entrance.set_configs(configs);
            entrance.admission.replace(rules);
        }
        Ok(())
    }

    /// Puts other limits on connections in force; nobody who is connected is turned out.
    pub fn set_limits(&self, limits: Limits) {
        self.listeners.set_limits(limits);
    }

    /// Ready once a listener no longer accepts connections although nobody called [`shutdown`](Self::shutdown), which only a bug can cause.
    pub fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listeners.poll_failed(cx)
    }

    /// Its listeners, for who ends those of several protocols in one way.
    pub fn into_listeners(self) -> Listeners {
        self.listeners
    }

    /// Stops in order: no more connections are taken, idle sessions are told 421 4.3.2 at once, those with an open
    /// transaction when it is done. What is left after `grace` is told the same in the middle of it, and a handler
    /// that is still at work a second later is dropped; its client never got a reply. Returns whether all sessions
    /// had ended within `grace`.
    pub async fn shutdown(self, grace: Duration) -> bool {
        self.listeners.shutdown(grace).await
    }
}

/// A listener that was named, with whatever sockets it has.
#[derive(Debug)]
struct Entrance {
    door: Door,
    configs: RwLock<ByNetwork<Arc<Config>>>,
    certificate: CurrentCertificate,
    admission: Arc<Admission>,
}

/// The certificate of a listener, if it has its own, else the server's.
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

    /// The settings for a connection that begins now.
    fn config(&self, peer: &Peer) -> Arc<Config> {
        Arc::clone(self.configs.read().unwrap_or_else(PoisonError::into_inner).get(peer.ip()))
    }
}

fn with_protocol(configs: ByNetwork<Config>, protocol: Protocol) -> ByNetwork<Arc<Config>> {
    // The handler is always asked: whether it wants to be is not known, and its defaults say yes.
    configs.map(|config| Arc::new(Config { protocol, asks_hello: true, asks_data: true, ..config }))
}

/// SMTP or LMTP, as one listener speaks it.
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

    /// Where TLS is implicit nobody would understand a reply, and a handshake is too much for one who is turned away.
    fn refuse(&self, peer: &Peer, why: &Refusal) -> Goodbye {
        sheltered_now(0, "turned_away", || self.handler.turned_away(self.listener, peer, why));
        let Some(reply) = reply_to(why).filter(|_| !self.entrance.door.implicit_tls) else { return Goodbye::default() };
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        Goodbye { bytes, linger: self.entrance.config(peer).limits.timeouts.linger }
    }
}

/// The reply to a client; `None` if the peer is no client.
fn reply_to(why: &Refusal) -> Option<Reply> {
    Some(match why {
        Refusal::TooManyFromAddress => {
            Reply::new(421, "4.7.0", "Too many connections from your address, try again later")
        }
        Refusal::TooManyFromNetwork => {
            Reply::new(421, "4.7.0", "Too many connections from your network, try again later")
        }
        Refusal::TooManyFiles => Reply::new(421, "4.3.2", "Too many open files, try again later"),
        Refusal::NotAllowed => Reply::new(554, "5.7.1", "Clients of your address may not connect here"),
        Refusal::NotAProxy | Refusal::Proxy(_) => return None,
        _ => Reply::new(421, "4.3.2", "Too many connections, try again later"),
    })
}

#[cfg(test)]
mod tests {
    use posthaste_net::Stream;

    use super::*;
    use crate::command::RcptTo;
    use crate::driver::Body;
    use crate::server::{Envelope, MessageOutcome};

    struct Heavy;

    impl Handler for Heavy {
        type State = ();
        type Transaction = ();

        async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
            Ok(())
        }
        async fn message(&self, _: &mut Session, _: (), _: Envelope, body: &mut Body<'_>) -> MessageOutcome {
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
