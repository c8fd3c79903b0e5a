//! Settings of a session.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::client::{EightBit, Step, Transfer};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::{Protocol, Witness};
use posthaste_watch::Pulse;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::{Channel, Loss, Proxy};

/// One address of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// A UNIX socket, for LMTP servers.
    Unix(PathBuf),
}

/// Settings of a session.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Our name in EHLO or LHLO: that of the source.
    pub ehlo_name: String,
    /// The address to connect from; `None` leaves it to the system.
    pub source: Option<IpAddr>,
    /// The proxy that makes TCP connections, from `source` if it can choose one. `None`: direct.
    pub proxy: Option<Proxy>,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Transfer of bodies.
    pub transfer: Transfer,
    /// Handling of messages with BODY=8BITMIME for a server that does not offer it.
    pub eight_bit: EightBit,
    /// `None`: never encrypted.
    pub tls: Option<SessionTls>,
    /// `None`: no AUTH.
    pub auth: Option<SessionAuth>,
    /// Most messages in one session. MAILMAX of LIMITS (RFC 9422) may be less.
    pub messages_max: u64,
    /// Timeouts.
    pub timeouts: SessionTimeouts,
    /// Receives the dialogue.
    pub witness: Option<Arc<dyn Witness>>,
    /// Receives the session's step, of [`STEPS`](super::STEPS).
    pub pulse: Option<Pulse>,
    /// Checked before connecting, the TLS handshake and each write. `None`: nothing halts the session.
    pub halt: Option<Halt>,
}

impl SessionSettings {
    /// SMTP with DATA, in the clear, without AUTH, any number of messages, default timeouts.
    pub fn new(ehlo_name: impl Into<String>) -> Self {
        Self {
            ehlo_name: ehlo_name.into(),
            source: None,
            proxy: None,
            protocol: Protocol::Smtp,
            transfer: Transfer::Data,
            eight_bit: EightBit::Send,
            tls: None,
            auth: None,
            messages_max: u64::MAX,
            timeouts: SessionTimeouts::default(),
            witness: None,
            pulse: None,
            halt: None,
        }
    }

    /// True if the caller may go on in the clear where TLS fails.
    pub fn is_opportunistic(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.policy == TlsPolicy::Opportunistic) && self.auth.is_none()
    }

    /// # Errors
    /// [`Loss::Halted`].
    pub(super) fn check_halt(&self) -> Result<(), Loss> {
        if self.halt.as_ref().is_some_and(Halt::is_set) { Err(Loss::Halted) } else { Ok(()) }
    }
}

/// A condition that ends sessions at once, at any step: nothing more is written, not even QUIT. A message whose end is
/// not written by then is not sent.
#[derive(Clone)]
pub struct Halt(Arc<dyn Fn() -> bool + Send + Sync>);

impl Halt {
    /// `is_set` is asked often, and must not block.
    pub fn new(is_set: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_set))
    }

    pub(super) fn is_set(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Halt").field(&self.is_set()).finish()
    }
}

/// Encryption of a session.
#[derive(Debug, Clone)]
pub struct SessionTls {
    /// The demand.
    pub policy: TlsPolicy,
    /// TLS from the first octet on (RFC 8314), as on port 465, without STARTTLS.
    pub is_implicit: bool,
    /// Trust, client certificate, versions. It must verify under [`TlsPolicy::Verified`] and must not under
    /// [`TlsPolicy::Opportunistic`]: see [`client_config`](posthaste_net::tls::client_config).
    pub config: Arc<ClientConfig>,
    /// The name for SNI, which a verified certificate must have.
    pub name: ServerName<'static>,
    /// TLSA records of the host demand TLS (RFC 7672). `config` verifies by them, unless none is usable.
    pub is_dane: bool,
}

/// A session's demand on TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsPolicy {
    /// Encrypted if offered, without verifying the server (RFC 7435). If TLS fails, the caller may reconnect in the
    /// clear: [`SessionOpenError::may_retry_in_clear`](super::SessionOpenError::may_retry_in_clear).
    Opportunistic,
    /// Encrypted, without verifying the server.
    Required,
    /// Encrypted, with a certificate that `config` trusts and that has `name`.
    Verified,
}

/// Credentials for the server.
#[derive(Debug, Clone)]
pub struct SessionAuth {
    /// Name and password.
    pub credentials: Credentials,
    /// The least protection for sending them.
    pub needs: Channel,
}

/// Timeouts of a session: RFC 5321 section 4.5.3.2, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTimeouts {
    /// Time for the connection, and for a TLS handshake. Default 30 s.
    pub connect: Duration,
    /// For the greeting. Default 5 minutes.
    pub greeting: Duration,
    /// For the replies to EHLO, STARTTLS and AUTH. Default 5 minutes.
    pub hello: Duration,
    /// For the reply to MAIL, and to RSET before it. Default 5 minutes.
    pub mail: Duration,
    /// For the reply to RCPT. Default 5 minutes.
    pub rcpt: Duration,
    /// For the reply to DATA. Default 2 minutes.
    pub data: Duration,
    /// For the server to take some of the output. Default 3 minutes.
    pub block: Duration,
    /// For the verdict on a message. Default 10 minutes.
    pub verdict: Duration,
    /// For the next message. Default 10 s; not from the RFC.
    pub idle: Duration,
    /// For the reply to QUIT, which may be missing. Default 5 s.
    pub quit: Duration,
}

impl Default for SessionTimeouts {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            connect: Duration::from_secs(30),
            greeting: minutes(5),
            hello: minutes(5),
            mail: minutes(5),
            rcpt: minutes(5),
            data: minutes(2),
            block: minutes(3),
            verdict: minutes(10),
            idle: Duration::from_secs(10),
            quit: Duration::from_secs(5),
        }
    }
}

impl SessionTimeouts {
    /// The timeout of the awaited reply.
    pub(super) fn of(&self, step: Step) -> Duration {
        match step {
            Step::Connect | Step::Handshake => self.connect,
            Step::Greeting => self.greeting,
            Step::Reset | Step::Mail => self.mail,
            Step::Rcpt => self.rcpt,
            Step::Data => self.data,
            Step::Body => self.verdict,
            Step::Idle => self.idle,
            Step::Quit => self.quit,
            _ => self.hello,
        }
    }
}
