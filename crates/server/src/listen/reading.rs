//! Mail reading by IMAP and POP3: sockets, certificates, logins. The sessions are in `posthaste-imap` and
//! `posthaste-pop3`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_accounts::{LoginFailure, PasswordClaim};
use posthaste_config::{Config, Imap, Listener, ListenerProtocol, ListenerTls, MailboxNames};
use posthaste_directory::Directory;
use posthaste_imap::driver::{Authenticator, CurrentImapConfig, ImapService, ImapTimeouts, LoginSessions};
use posthaste_imap::session::{ImapConfig, ImapCredentials, LoginRefusal, NameForm};
use posthaste_mailstore::MaildirLogins;
use posthaste_net::{Admission, Bound, Grant, Listeners, Peer};
use posthaste_pop3::driver::{Pop3Authenticator, Pop3Service};
use posthaste_pop3::session::{Pop3Config, Pop3Credentials, Pop3LoginRefusal};
use posthaste_smtp::sasl::scram::{ScramKeys, ScramProof};

use crate::config::error::ServeError;
use crate::lifecycle::{Ending, OnFailure, Service, drain_listeners};
use crate::listen::bound::{BoundListeners, ServedListener};
use crate::listen::rules::connection_limits;
use crate::listen::text_search::IndexSearch;
use crate::receive::handler::Receiver;

const NAME: &str = "IMAP and POP3";

/// The TCP addresses for reading mail, each with its protocol.
pub(crate) fn addresses(bound: &BoundListeners, config: &Config) -> Vec<(ListenerProtocol, SocketAddr)> {
    let each = config.reading_listeners().zip(&bound.0);
    let of = each.flat_map(|(listener, (sockets, _))| {
        sockets.iter().filter_map(Bound::local_addr).map(|address| (listener.protocol, address))
    });
    of.collect()
}

/// All listeners of IMAP and POP3, which end together.
pub(crate) struct ReadingService {
    each: Vec<(ServedListener, CurrentImapConfig)>,
    /// Until the drain.
    listeners: Option<Listeners>,
}

impl ReadingService {
    /// Serves the mailboxes of `store` to clients.
    ///
    /// # Errors
    /// [`ServeError::Service`].
    pub fn start(
        bound: BoundListeners,
        config: &Config,
        store: Arc<MaildirLogins>,
        receiver: &Receiver,
    ) -> Result<Self, ServeError> {
        let failed = |error| ServeError::Service { service: NAME, error };
        let mut listeners = Listeners::new(connection_limits(config)).map_err(failed)?;
        let mut each = Vec::new();
        let sessions = LoginSessions::default();
        let text = IndexSearch::new(&config.search, &config.storage.mail);
        for (listener, (sockets, tls)) in config.reading_listeners().zip(bound.0) {
            let served = ServedListener::new(config, listener, tls);
            let imap = CurrentImapConfig::new(imap_config(config, listener, &served));
            bound_sessions(&imap, config);
            let text = text.as_ref();
            let sessions = &sessions;
            let door = Door { config, listener, served: &served, imap: &imap, sessions, store: &store, text, receiver };
            for socket in sockets {
                door.open(socket, &mut listeners).map_err(failed)?;
            }
            each.push((served, imap));
        }
        Ok(Self { each, listeners: Some(listeners) })
    }
}

/// A listener that is about to serve.
struct Door<'a> {
    config: &'a Config,
    listener: &'a Listener,
    served: &'a ServedListener,
    imap: &'a CurrentImapConfig,
    sessions: &'a LoginSessions,
    store: &'a Arc<MaildirLogins>,
    text: Option<&'a IndexSearch>,
    receiver: &'a Receiver,
}

impl Door<'_> {
    fn open(&self, socket: Bound, listeners: &mut Listeners) -> io::Result<()> {
        let mode = self.served.tls_mode();
        let implicit = mode == ListenerTls::Implicit;
        let store = Arc::clone(self.store);
        let users = Passwords(self.receiver.clone());
        let certificate = self.served.certificate.clone();
        let (socket, admission): (_, &Arc<Admission>) = (socket.listen()?, &self.served.admission);
        match self.listener.protocol {
            ListenerProtocol::Pop3 => {
                let stls = is_starttls(mode);
                let needs_tls = needs_tls(self.listener, mode);
                let config = Pop3Config { stls, needs_tls, ..Pop3Config::new(&self.config.host_name) };
                let service = Pop3Service::new(store, users, config).with_tls(certificate, implicit);
                listeners.serve(socket, admission, service);
            }
            _ => {
                let service = ImapService::new(store, users, self.imap.clone()).with_tls(certificate, implicit);
                let mut service = service.with_sessions(self.sessions.clone());
                if let Some(text) = self.text {
                    service = service.with_text_search(Arc::new(text.clone()));
                }
                listeners.serve(socket, admission, service);
            }
        }
        Ok(())
    }
}

fn imap_config(config: &Config, listener: &Listener, served: &ServedListener) -> ImapConfig {
    let mode = served.tls_mode();
    let starttls = is_starttls(mode);
    let needs_tls = needs_tls(listener, mode);
    let names = match config.imap.names {
        MailboxNames::Slash => NameForm::Slash,
        MailboxNames::Dot => NameForm::Dot,
        MailboxNames::DotBelowInbox => NameForm::DotBelowInbox,
    };
    let mut imap = ImapConfig { starttls, needs_tls, names, ..ImapConfig::new(&config.host_name) };
    // RFC822.SIZE has 32 bits. 0: messages have no limit.
    imap.limits.append_bytes = match config.limits.session.message_bytes {
        0 => u32::MAX.into(),
        bytes => bytes.min(u32::MAX.into()),
    };
    imap
}

fn bound_sessions(imap: &CurrentImapConfig, config: &Config) {
    let Imap { connections_per_login, idle_secs, search_secs, .. } = config.imap;
    let (usual, search) = (ImapTimeouts::default(), Duration::from_secs(search_secs));
    let order = usual.order.max(search);
    imap.set_timeouts(ImapTimeouts { idle: Duration::from_secs(idle_secs), search, order, ..usual });
    imap.set_connections_per_login(connections_per_login);
}

/// A proxy may be on another machine, whatever its client's address.
fn needs_tls(listener: &Listener, mode: ListenerTls) -> bool {
    mode == ListenerTls::Required || listener.socket.proxy_protocol
}

fn is_starttls(mode: ListenerTls) -> bool {
    matches!(mode, ListenerTls::StartTls | ListenerTls::Required)
}

/// The passwords of `[auth]`.
struct Passwords(Receiver);

impl Authenticator for Passwords {
    async fn login(&self, peer: &Peer, credentials: ImapCredentials) -> Result<Grant, LoginRefusal> {
        let ImapCredentials { user, password, acts_for } = credentials;
        let checked = self.0.check_reader(peer, "IMAP", PasswordClaim { user, password, acts_for }).await;
        checked.map_err(imap_refusal)
    }

    fn offers_scram(&self) -> bool {
        self.0.offers_readers_scram()
    }

    async fn scram_keys(&self, peer: &Peer, user: &str) -> Result<Option<ScramKeys>, LoginRefusal> {
        self.0.reader_scram_keys(peer, "IMAP", user).await.map_err(imap_refusal)
    }

    async fn scram_login(&self, peer: &Peer, proof: &ScramProof) -> Result<Grant, LoginRefusal> {
        self.0.check_reader_scram(peer, "IMAP", proof).await.map_err(imap_refusal)
    }
}

fn imap_refusal(why: LoginFailure) -> LoginRefusal {
    match why {
        LoginFailure::Wrong(_) => LoginRefusal::Wrong,
        LoginFailure::Blocked => LoginRefusal::Blocked,
        LoginFailure::Busy => LoginRefusal::Busy,
    }
}

impl Pop3Authenticator for Passwords {
    async fn login(&self, peer: &Peer, credentials: Pop3Credentials) -> Result<Grant, Pop3LoginRefusal> {
        let Pop3Credentials { user, password, acts_for } = credentials;
        let checked = self.0.check_reader(peer, "POP3", PasswordClaim { user, password, acts_for }).await;
        checked.map_err(pop3_refusal)
    }

    fn offers_scram(&self) -> bool {
        self.0.offers_readers_scram()
    }

    async fn scram_keys(&self, peer: &Peer, user: &str) -> Result<Option<ScramKeys>, Pop3LoginRefusal> {
        self.0.reader_scram_keys(peer, "POP3", user).await.map_err(pop3_refusal)
    }

    async fn scram_login(&self, peer: &Peer, proof: &ScramProof) -> Result<Grant, Pop3LoginRefusal> {
        self.0.check_reader_scram(peer, "POP3", proof).await.map_err(pop3_refusal)
    }
}

fn pop3_refusal(why: LoginFailure) -> Pop3LoginRefusal {
    match why {
        LoginFailure::Wrong(_) => Pop3LoginRefusal::Wrong,
        LoginFailure::Blocked => Pop3LoginRefusal::Blocked,
        LoginFailure::Busy => Pop3LoginRefusal::Busy,
    }
}

impl Service for ReadingService {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("nobody can connect by IMAP and POP3")
    }

    /// Applies to new connections. Users and passwords are the receiver's.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let mut kept = Vec::new();
        for (listener, (served, imap)) in config.reading_listeners().zip(&mut self.each) {
            imap.set(imap_config(config, listener, served));
            bound_sessions(imap, config);
            if !served.reload(config, listener) {
                kept.push("a certificate of IMAP or POP3");
            }
        }
        if let Some(listeners) = &self.listeners {
            listeners.set_limits(connection_limits(config));
        }
        kept
    }

    fn drain(&mut self, deadline: tokio::time::Instant) -> Ending<'_> {
        drain_listeners(
            self.listeners.take(),
            deadline,
            "open sessions of IMAP and POP3 were ended in the middle of a command",
        )
    }

    fn stop(mut self: Box<Self>, deadline: tokio::time::Instant) -> Ending<'static> {
        Box::pin(async move { self.drain(deadline).await })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.listeners.as_mut().map_or(Poll::Pending, |listeners| listeners.poll_failed(cx))
    }
}
