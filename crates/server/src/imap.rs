//! `posthaste serve --imap-preview`: users read their mail by IMAP. Nothing is changed yet.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use posthaste_accounts::{LoginFailure, PasswordClaim};
use posthaste_directory::Directory;
use posthaste_imap::driver::{Authenticator, ImapService};
use posthaste_imap::session::{ImapConfig, ImapCredentials, LoginRefusal};
use posthaste_mailstore::MaildirStore;
use posthaste_net::section::Socket;
use posthaste_net::{Admission, Bound, Certificate, Listeners, Peer, Place, bind};

use crate::certificates::TlsInForce;
use crate::config::{Config, Listener, ListenerTls};
use crate::error::ServeError;
use crate::listening::{connection_limits, rules};
use crate::receive::Receiver;
use crate::services::{Ending, OnFailure, Service, drain_listeners};

/// Ports that are tried, the one that was asked for first.
const PORTS_TRIED: u16 = 100;
/// TLS from the first octet on (RFC 8314).
const IMAPS: u16 = 993;

const NAME: &str = "IMAP preview";

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct BoundImap {
    socket: Bound,
    address: SocketAddr,
    tls: TlsInForce,
}

impl BoundImap {
    /// Listens at `address`, or at the next port that is free. Reads the certificate.
    ///
    /// # Errors
    /// [`ServeError::Certificate`], [`ServeError::Listen`].
    pub fn bind(address: SocketAddr, config: &Config) -> Result<Self, ServeError> {
        let tls = TlsInForce::load(&listener(address, config))?;
        let limits = connection_limits(config);
        let last = address.port().saturating_add(PORTS_TRIED - 1);
        let mut at = address;
        loop {
            match bind(vec![(Place::Tcp(at.to_string()), ())], &limits) {
                Ok(mut bound) => {
                    let (socket, ()) = bound.pop().expect("an address has one socket");
                    return Ok(Self { socket, address, tls });
                }
                Err(error) if error.error.kind() == io::ErrorKind::AddrInUse && at.port() < last => {
                    at.set_port(at.port() + 1);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr()
    }
}

/// The preview as a listener of the configuration would be: for its TLS, and for who may connect.
fn listener(address: SocketAddr, config: &Config) -> Listener {
    let socket = Socket { address: Some(address.to_string()), ..Socket::default() };
    let tls = (address.port() == IMAPS && config.tls != Default::default()).then_some(ListenerTls::Implicit);
    let mut listener = Listener { socket, tls, ..Listener::default() };
    listener.complete_tls(&config.tls);
    listener
}

/// IMAP at work.
pub(crate) struct ImapPreview {
    /// As it was asked for.
    address: SocketAddr,
    tls: TlsInForce,
    certificate: Arc<RwLock<Certificate>>,
    admission: Arc<Admission>,
    /// Until the drain.
    listeners: Option<Listeners>,
}

impl ImapPreview {
    /// Serves the mailboxes of a store.
    ///
    /// # Errors
    /// [`ServeError::Service`].
    pub fn start(
        bound: BoundImap,
        config: &Config,
        store: Arc<MaildirStore>,
        receiver: Receiver,
    ) -> Result<Self, ServeError> {
        let failed = |error| ServeError::Service { service: NAME, error };
        let BoundImap { socket, address, tls } = bound;
        let certificate = Arc::new(RwLock::new(tls.certificate.clone()));
        let imap_config =
            ImapConfig { starttls: tls.mode == ListenerTls::StartTls, ..ImapConfig::new(&config.host_name) };
        let service = ImapService::new(store, Passwords(receiver), imap_config)
            .with_tls(Arc::clone(&certificate), tls.mode == ListenerTls::Implicit);
        let admission = Admission::new(rules(config, &listener(address, config)));
        let at = socket.local_addr().map(|at| at.to_string());
        let mut listeners = Listeners::new(connection_limits(config)).map_err(failed)?;
        listeners.serve(socket.listen().map_err(failed)?, &admission, service);
        tracing::info!(address = at, "IMAP preview: read only");
        if config.auth.file().is_none() {
            tracing::warn!("IMAP preview: nobody can log in, as auth.file is not set");
        }
        Ok(Self { address, tls, certificate, admission, listeners: Some(listeners) })
    }
}

/// The passwords of `[auth]`.
struct Passwords(Receiver);

impl Authenticator for Passwords {
    async fn login(&self, peer: &Peer, credentials: ImapCredentials) -> Result<String, LoginRefusal> {
        let ImapCredentials { user, password, acts_for } = credentials;
        let checked = self.0.check_imap_login(peer, PasswordClaim { user, password, acts_for }).await;
        checked.map_err(|why| match why {
            LoginFailure::Wrong(_) => LoginRefusal::Wrong,
            LoginFailure::Blocked => LoginRefusal::Blocked,
            LoginFailure::Busy => LoginRefusal::Busy,
        })
    }
}

impl Service for ImapPreview {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("nobody can connect by IMAP")
    }

    /// For new connections. The users and passwords are those of the receiver.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let listener = listener(self.address, config);
        let kept = if self.tls.reload(&listener) { Vec::new() } else { vec!["the certificate of IMAP"] };
        // STARTTLS stays on offer, so a certificate stays too.
        if self.tls.certificate.is_there() {
            *self.certificate.write().unwrap_or_else(PoisonError::into_inner) = self.tls.certificate.clone();
        }
        self.admission.replace(rules(config, &listener));
        if let Some(listeners) = &self.listeners {
            listeners.set_limits(connection_limits(config));
        }
        kept
    }

    fn drain(&mut self, deadline: tokio::time::Instant) -> Ending<'_> {
        drain_listeners(self.listeners.take(), deadline, "open sessions of IMAP were ended in the middle of a command")
    }

    fn stop(mut self: Box<Self>, deadline: tokio::time::Instant) -> Ending<'static> {
        Box::pin(async move { self.drain(deadline).await })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listeners.as_mut().map_or(Poll::Pending, |listeners| listeners.poll_failed(cx))
    }
}
