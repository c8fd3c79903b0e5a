//! The service and its settings.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use posthaste_mailstore::Mailstore;
use posthaste_net::{Certificate, CurrentCertificate, Grant, Peer};
use posthaste_scram::{ScramKeys, ScramProof};

use crate::session::{Pop3Config, Pop3Credentials, Pop3LoginRefusal};

/// Checks passwords.
pub trait Pop3Authenticator: Send + Sync + 'static {
    /// The login whose INBOX the client gets, in the form of [`Mailstore::account`].
    ///
    /// # Errors
    /// Why the login is refused.
    fn login(
        &self,
        peer: &Peer,
        credentials: Pop3Credentials,
    ) -> impl Future<Output = Result<Grant, Pop3LoginRefusal>> + Send;

    /// True if SCRAM-SHA-256 is offered to a client that connects now, since some login has keys.
    fn offers_scram(&self) -> bool {
        false
    }

    /// The SCRAM keys of `user`. For an unknown name, return invented keys ([`ScramKeys::of_nobody`]) with the rounds
    /// of real ones: a client sees the rounds, and must not learn which names exist. `None` if no login has keys.
    ///
    /// # Errors
    /// Why there are no keys.
    fn scram_keys(
        &self,
        peer: &Peer,
        user: &str,
    ) -> impl Future<Output = Result<Option<ScramKeys>, Pop3LoginRefusal>> + Send {
        let _ = (peer, user);
        async { Err(Pop3LoginRefusal::Wrong) }
    }

    /// Like [`login`](Self::login), for a client that proves its password by SCRAM-SHA-256.
    ///
    /// # Errors
    /// Why the login is refused.
    fn scram_login(
        &self,
        peer: &Peer,
        proof: &ScramProof,
    ) -> impl Future<Output = Result<Grant, Pop3LoginRefusal>> + Send {
        let _ = (peer, proof);
        async { Err(Pop3LoginRefusal::Wrong) }
    }
}

/// Time limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pop3Timeouts {
    /// From the connection to the login, handshake included. Default 60 s.
    pub login: Duration,
    /// Without a command. Default 10 min, the least that RFC 1939 section 3 allows.
    pub idle: Duration,
    /// Timeout of a write during which the client takes no octet. Default 2 min.
    pub write: Duration,
    /// Time for which the client's octets are read after the last reply. Default 1 s.
    pub linger: Duration,
}

impl Default for Pop3Timeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { login: secs(60), idle: secs(10 * 60), write: secs(120), linger: secs(1) }
    }
}

/// Serves POP3: one value for all connections of a listener.
///
/// A session uses the list of INBOX at its login. It takes no exclusive lock (RFC 1939 section 8): other sessions,
/// including IMAP, work concurrently.
pub struct Pop3Service<A> {
    pub(super) store: Arc<dyn Mailstore>,
    pub(super) authenticator: A,
    pub(super) config: Arc<Pop3Config>,
    pub(super) timeouts: Pop3Timeouts,
    pub(super) implicit_tls: bool,
    pub(super) certificate: CurrentCertificate,
}

impl<A: Pop3Authenticator> Pop3Service<A> {
    /// A service without TLS.
    pub fn new(store: Arc<dyn Mailstore>, authenticator: A, config: Pop3Config) -> Self {
        Self {
            store,
            authenticator,
            config: Arc::new(config),
            timeouts: Pop3Timeouts::default(),
            implicit_tls: false,
            certificate: CurrentCertificate::default(),
        }
    }

    /// Sets the time limits.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Pop3Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Uses a certificate, which may be replaced later. The configuration decides if STLS is offered; with `implicit`,
    /// sessions are encrypted from their first octet on.
    #[must_use]
    pub fn with_tls(mut self, certificate: CurrentCertificate, implicit: bool) -> Self {
        self.certificate = certificate;
        self.implicit_tls = implicit;
        self
    }

    pub(super) fn certificate(&self) -> Certificate {
        self.certificate.get()
    }
}

impl<A> std::fmt::Debug for Pop3Service<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pop3Service").field("config", &self.config).finish_non_exhaustive()
    }
}
