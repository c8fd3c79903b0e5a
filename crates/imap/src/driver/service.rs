//! The service, its settings, and the traits that it calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_mailstore::{MailboxFiles, Mailstore};
use posthaste_net::{Certificate, CurrentCertificate, Grant, Peer};
use posthaste_scram::{ScramKeys, ScramProof};
use tokio::sync::Semaphore;

use super::logins::LoginSessions;
use super::timeouts::ImapTimeouts;
use crate::session::{ImapConfig, ImapCredentials, LoginRefusal, TextAnswer, TextKey};

/// Checks passwords.
pub trait Authenticator: Send + Sync + 'static {
    /// The login whose mailboxes the client gets, in the form of [`Mailstore::account`].
    ///
    /// # Errors
    /// Why the login is refused.
    fn login(
        &self,
        peer: &Peer,
        credentials: ImapCredentials,
    ) -> impl Future<Output = Result<Grant, LoginRefusal>> + Send;

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
    ) -> impl Future<Output = Result<Option<ScramKeys>, LoginRefusal>> + Send {
        let _ = (peer, user);
        async { Err(LoginRefusal::Wrong) }
    }

    /// Like [`login`](Self::login), for a client that proves its password by SCRAM-SHA-256.
    ///
    /// # Errors
    /// Why the login is refused.
    fn scram_login(&self, peer: &Peer, proof: &ScramProof) -> impl Future<Output = Result<Grant, LoginRefusal>> + Send {
        let _ = (peer, proof);
        async { Err(LoginRefusal::Wrong) }
    }
}

/// An index of the text of mail.
///
/// Its answers equal those of [`MailText`](posthaste_text::MailText) for the message's file. Messages missing in the
/// index are read, so answers do not depend on its progress.
pub trait TextSearch: Send + Sync + 'static {
    /// Searches texts in these messages. Answers are in the order of the keys; `None` if a key cannot be answered.
    fn find(
        &self,
        files: Arc<dyn MailboxFiles>,
        keys: Vec<TextKey>,
    ) -> Pin<Box<dyn Future<Output = Vec<Option<TextAnswer>>> + Send>>;
}

/// Memory for messages whose structure is being parsed, over all sessions of a service.
const STRUCTURE_KIB_MAX: usize = 128 << 10;
/// Memory of SORT and THREAD, over all sessions of a service.
const ORDER_KIB_MAX: usize = 64 << 10;

/// A service's configuration, which can be replaced for later sessions. Clones share it.
#[derive(Debug, Clone)]
pub struct CurrentImapConfig(Arc<RwLock<ImapSettings>>);

/// Settings of one session.
#[derive(Debug, Clone)]
pub(super) struct ImapSettings {
    pub(super) config: Arc<ImapConfig>,
    pub(super) timeouts: ImapTimeouts,
    /// Maximum sessions of a login; 0: any number.
    pub(super) connections_per_login: usize,
}

impl CurrentImapConfig {
    /// Starts with this configuration.
    pub fn new(config: ImapConfig) -> Self {
        let (config, timeouts) = (Self::of_driver(config), ImapTimeouts::default());
        Self(Arc::new(RwLock::new(ImapSettings { config, timeouts, connections_per_login: 0 })))
    }

    /// Replaces the configuration of later sessions.
    pub fn set(&self, config: ImapConfig) {
        self.change(|settings| settings.config = Self::of_driver(config));
    }

    /// Replaces the time limits of later sessions.
    pub fn set_timeouts(&self, timeouts: ImapTimeouts) {
        self.change(|settings| settings.timeouts = timeouts);
    }

    /// Limits the sessions of one login; 0: no limit. Open sessions continue.
    pub fn set_connections_per_login(&self, most: usize) {
        self.change(|settings| settings.connections_per_login = most);
    }

    fn change(&self, change: impl FnOnce(&mut ImapSettings)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn get(&self) -> ImapSettings {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Enables COMPRESS, which this driver supports.
    fn of_driver(config: ImapConfig) -> Arc<ImapConfig> {
        Arc::new(ImapConfig { compress: true, ..config })
    }
}

impl From<ImapConfig> for CurrentImapConfig {
    fn from(config: ImapConfig) -> Self {
        Self::new(config)
    }
}

/// Serves IMAP: one value for all connections of a listener.
pub struct ImapService<A> {
    pub(super) store: Arc<dyn Mailstore>,
    pub(super) authenticator: A,
    pub(super) text: Option<Arc<dyn TextSearch>>,
    pub(super) config: CurrentImapConfig,
    pub(super) sessions: LoginSessions,
    pub(super) implicit_tls: bool,
    pub(super) certificate: CurrentCertificate,
    /// Memory for structures, one permit for each KiB.
    pub(super) structures: Semaphore,
    /// Memory for the results of SORT and THREAD.
    pub(super) orders: Semaphore,
}

impl<A: Authenticator> ImapService<A> {
    /// A service without TLS.
    pub fn new(store: Arc<dyn Mailstore>, authenticator: A, config: impl Into<CurrentImapConfig>) -> Self {
        Self {
            store,
            authenticator,
            text: None,
            config: config.into(),
            sessions: LoginSessions::default(),
            implicit_tls: false,
            certificate: CurrentCertificate::default(),
            structures: Semaphore::new(STRUCTURE_KIB_MAX),
            orders: Semaphore::new(ORDER_KIB_MAX),
        }
    }

    /// Sets the time limits.
    #[must_use]
    pub fn with_timeouts(self, timeouts: ImapTimeouts) -> Self {
        self.config.set_timeouts(timeouts);
        self
    }

    /// Counts sessions of a login together with those of other services.
    #[must_use]
    pub fn with_sessions(mut self, sessions: LoginSessions) -> Self {
        self.sessions = sessions;
        self
    }

    /// Sets a text index: a search for text then reads only messages that are not indexed.
    #[must_use]
    pub fn with_text_search(mut self, text: Arc<dyn TextSearch>) -> Self {
        self.text = Some(text);
        self
    }

    /// Uses a certificate, which may be replaced later. The configuration decides if STARTTLS is offered; with
    /// `implicit`, sessions are encrypted from their first octet on.
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

impl<A> std::fmt::Debug for ImapService<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImapService").field("config", &self.config).finish_non_exhaustive()
    }
}
