//! Sessions over sockets, with feature `tokio`: an [`ImapService`] for the listeners of `posthaste-net`.

mod ahead;
mod binary;
mod changes;
mod connection;
mod deflate;
mod logins;
mod mail;
mod messages;
mod octets;
mod serve;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use posthaste_mailstore::{MailboxFiles, Mailstore};
use posthaste_net::{Certificate, Connection, ConnectionRefusal, CurrentCertificate, Goodbye, Grant, Peer, Service};
use posthaste_scram::{ScramKeys, ScramProof};
use tokio::sync::Semaphore;

pub use self::logins::LoginSessions;
use crate::session::{ImapConfig, ImapCredentials, LoginRefusal, TextAnswer, TextKey};

/// Checks passwords.
pub trait Authenticator: Send + Sync + 'static {
    /// The login whose mailboxes the client gets, in the form of [`Mailstore::account`].
    ///
    /// # Errors
    /// Why there is none.
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
    /// Why there are none.
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
    /// Why there is none.
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

/// Time limits of a session (decision 16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImapTimeouts {
    /// From the connection to the login, handshake included. Default 60 s.
    pub login: Duration,
    /// Timeout without a command. IDLE is unlimited. Default 30 min.
    pub idle: Duration,
    /// Longest stall of the client: output that it does not read, or an APPEND without a new octet. Default 2 min.
    pub write: Duration,
    /// Timeout of one search. Default 10 s.
    pub search: Duration,
    /// Timeout of one SORT or THREAD, which read the headers of all messages. Default 60 s.
    pub order: Duration,
    /// Interval of progress responses during these. Default 10 s.
    pub progress: Duration,
    /// Interval between two signs of life in IDLE. Default 2 min.
    pub still_here: Duration,
    /// Interval of checks of the mailbox in IDLE, besides the store's own notifications. Default 30 s.
    pub idle_look: Duration,
    /// Time for which the client's octets are read after the last response. Default 1 s.
    pub linger: Duration,
}

impl Default for ImapTimeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            login: secs(60),
            idle: secs(30 * 60),
            write: secs(120),
            search: secs(10),
            order: secs(60),
            progress: secs(10),
            still_here: secs(120),
            idle_look: secs(30),
            linger: secs(1),
        }
    }
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
struct ImapSettings {
    config: Arc<ImapConfig>,
    timeouts: ImapTimeouts,
    /// 0: any number.
    connections_per_login: usize,
}

impl CurrentImapConfig {
    /// Starts with this configuration.
    pub fn new(config: ImapConfig) -> Self {
        let (config, timeouts) = (Self::of_driver(config), ImapTimeouts::default());
        Self(Arc::new(RwLock::new(ImapSettings { config, timeouts, connections_per_login: 0 })))
    }

    /// Replaces it for later sessions.
    pub fn set(&self, config: ImapConfig) {
        self.change(|settings| settings.config = Self::of_driver(config));
    }

    /// Replaces the time limits of later sessions.
    pub fn set_timeouts(&self, timeouts: ImapTimeouts) {
        self.change(|settings| settings.timeouts = timeouts);
    }

    /// Limits the sessions of one login; 0 for any number. Open ones stay.
    pub fn set_connections_per_login(&self, most: usize) {
        self.change(|settings| settings.connections_per_login = most);
    }

    fn change(&self, change: impl FnOnce(&mut ImapSettings)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn get(&self) -> ImapSettings {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The driver compresses.
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
    store: Arc<dyn Mailstore>,
    authenticator: A,
    text: Option<Arc<dyn TextSearch>>,
    config: CurrentImapConfig,
    sessions: LoginSessions,
    implicit_tls: bool,
    certificate: CurrentCertificate,
    /// Memory for structures, one permit for each KiB.
    structures: Semaphore,
    /// Memory for the results of SORT and THREAD.
    orders: Semaphore,
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

    /// With a certificate, which may be replaced later. The configuration decides if STARTTLS is offered; with
    /// `implicit`, sessions are encrypted from their first octet on.
    #[must_use]
    pub fn with_tls(mut self, certificate: CurrentCertificate, implicit: bool) -> Self {
        self.certificate = certificate;
        self.implicit_tls = implicit;
        self
    }

    fn certificate(&self) -> Certificate {
        self.certificate.get()
    }
}

impl<A: Authenticator> Service for ImapService<A> {
    async fn serve(&self, connection: Connection) {
        serve::serve(self, connection).await;
    }

    fn refuse(&self, _: &Peer, why: &ConnectionRefusal) -> Goodbye {
        // Under implicit TLS the client could not read it.
        if self.implicit_tls { Goodbye::default() } else { goodbye_to(why) }
    }
}

/// Sends no goodbye to an invalid proxy, or to a proxy that does not name its client.
fn goodbye_to(why: &ConnectionRefusal) -> Goodbye {
    let line: &[u8] = match why {
        ConnectionRefusal::NotAProxy | ConnectionRefusal::Proxy(_) => return Goodbye::default(),
        ConnectionRefusal::NotAllowed => b"* BYE Clients of your address may not connect here\r\n",
        _ => b"* BYE [UNAVAILABLE] Too many connections, try again later\r\n",
    };
    Goodbye::new(line)
}

impl<A> std::fmt::Debug for ImapService<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImapService").field("config", &self.config).finish_non_exhaustive()
    }
}
