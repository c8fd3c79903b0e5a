//! A server at work, and how its listeners hand it connections.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use posthaste_net::{Backlog, Bound, Certificate, Goodbye, Limits, Listeners, Peer, Refusal, Service};

use super::Handler;
use super::connection::Connection;
use super::session::{serve, sheltered_now};
use super::setup::{Door, Offers, SetupError};
use crate::reply::Reply;
use crate::server::{Config, Protocol};

/// A server whose sockets listen and that serves nobody yet: [`ServerBuilder::bind`](super::ServerBuilder::bind). Dropping it closes them.
#[derive(Debug)]
pub struct BoundServer {
    pub(super) config: Config,
    pub(super) listeners: Vec<(Bound, Door)>,
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
        if self.listeners.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on"));
        }
        let offers = Offers::new(&self.certificate, self.listeners.iter().map(|(_, door)| *door));
        offers.check(&self.config).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let configs = Arc::new(RwLock::new(Configs::new(self.config)));
        let shared = Arc::new(Shared { handler, configs: Arc::clone(&configs), certificate: self.certificate });
        let local_addrs: Vec<_> =
            self.listeners.iter().filter_map(|(bound, door)| Some((bound.local_addr()?, door.protocol))).collect();
        let protocols = local_addrs.iter().map(|(_, protocol)| *protocol).collect();
        let local_addrs = local_addrs.into_iter().map(|(address, _)| address).collect();
        let mut listeners = Listeners::new(self.limits)?;
        let bound: io::Result<Vec<_>> =
            self.listeners.into_iter().map(|(bound, door)| Ok((bound.listen()?, door))).collect();
        for (listener, door) in bound? {
            listeners.serve(listener, Mail { shared: Arc::clone(&shared), door });
        }
        Ok(RunningServer { local_addrs, protocols, backlog: self.backlog, offers, configs, listeners })
    }
}

/// A server at work. Dropping it lets it go on for as long as its runtime lives.
#[derive(Debug)]
pub struct RunningServer {
    local_addrs: Vec<SocketAddr>,
    /// Of each of them.
    protocols: Vec<Protocol>,
    backlog: Backlog,
    offers: Offers,
    configs: Arc<RwLock<Configs>>,
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

    /// How many connections may wait to be accepted, and whether that is less than wanted.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.listeners.connections()
    }

    /// Puts host name, limits and policies of `config` in force for connections that begin from now on. Those that are
    /// open keep theirs; the listeners, their protocols and the numbers of connections stay as they are.
    ///
    /// # Errors
    /// As for the same settings at the start; what applied before still does.
    pub fn reconfigure(&self, config: Config) -> Result<(), SetupError> {
        self.offers.check(&config)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = Configs::new(config);
        Ok(())
    }

    /// Stops in order: no more connections are taken, idle sessions are told 421 4.3.2 at once, those with an open
    /// transaction when it is done. What is left after `grace` is told the same in the middle of it, and a handler
    /// that is still at work a second later is dropped; its client never got a reply. Returns whether all sessions
    /// had ended within `grace`.
    pub async fn shutdown(self, grace: Duration) -> bool {
        self.listeners.shutdown(grace).await
    }
}

/// What applies to connections that begin now.
#[derive(Debug)]
struct Configs {
    smtp: Arc<Config>,
    lmtp: Arc<Config>,
}

impl Configs {
    fn new(config: Config) -> Self {
        let of = |protocol| Arc::new(Config { protocol, ..config.clone() });
        Self { smtp: of(Protocol::Smtp), lmtp: of(Protocol::Lmtp) }
    }
}

struct Shared<H> {
    handler: H,
    configs: Arc<RwLock<Configs>>,
    certificate: Certificate,
}

impl<H> Shared<H> {
    fn config(&self, protocol: Protocol) -> Arc<Config> {
        let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(match protocol {
            Protocol::Smtp => &configs.smtp,
            Protocol::Lmtp => &configs.lmtp,
        })
    }
}

/// SMTP or LMTP, as one listener speaks it.
struct Mail<H> {
    shared: Arc<Shared<H>>,
    door: Door,
}

impl<H: Handler> Service for Mail<H> {
    async fn serve(&self, connection: posthaste_net::Connection) {
        let posthaste_net::Connection { id, stream, peer, phase } = connection;
        let config = self.shared.config(self.door.protocol);
        let connection = Connection::new(stream, config, phase, self.door);
        serve(connection, &self.shared.handler, id, peer, &self.shared.certificate).await;
    }

    /// Where TLS is implicit nobody would understand a reply, and a handshake is too much for one who is turned away.
    fn refuse(&self, peer: &Peer, why: &Refusal) -> Goodbye {
        let reply = reply_to(why);
        sheltered_now("turned_away", || self.shared.handler.turned_away(peer, &reply));
        if self.door.implicit_tls {
            return Goodbye::default();
        }
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        Goodbye { bytes, linger: self.shared.config(self.door.protocol).limits.timeouts.linger }
    }
}

fn reply_to(why: &Refusal) -> Reply {
    match why {
        Refusal::TooManyFromAddress => {
            Reply::new(421, "4.7.0", "Too many connections from your address, try again later")
        }
        Refusal::TooManyFiles => Reply::new(421, "4.3.2", "Too many open files, try again later"),
        _ => Reply::new(421, "4.3.2", "Too many connections, try again later"),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_net::Stream;

    use super::*;
    use crate::command::RcptTo;
    use crate::driver::{Body, Session};
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
        let shared = Shared {
            handler: Heavy,
            configs: Arc::new(RwLock::new(Configs::new(Config::new("mx")))),
            certificate: Certificate::default(),
        };
        let door = Door { protocol: Protocol::Smtp, implicit_tls: false };
        let mail = Mail { shared: Arc::new(shared), door };
        let (stream, _other) = tokio::net::UnixStream::pair().unwrap();
        let stream = Stream::Unix(stream);
        let session = mail.serve(posthaste_net::Connection { id: 1, stream, peer: Peer::Unix, phase: Arc::default() });
        assert!(size_of_val(&session) <= 4096, "{} octets", size_of_val(&session));
    }
}
