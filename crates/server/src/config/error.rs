//! Why the server did not start, or ended.

use std::path::PathBuf;

use posthaste_consumer::StreamOpenError;
use posthaste_smtp::driver::ListenError;

use crate::config::privileges::{LOW_PORTS, PrivilegeError, is_low};
use posthaste_config::ConfigError;

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration is invalid; nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The spool cannot be used, for example because another server uses it.
    #[error("{}: {error}", dir.display())]
    Spool {
        /// Directory of the spool.
        dir: PathBuf,
        /// The error.
        error: posthaste_spool::OpenError,
    },
    /// The mail directory or a stream of the spool cannot be used.
    #[error("{}: {error}", dir.display())]
    Storage {
        /// The data directory.
        dir: PathBuf,
        /// The error.
        error: StreamOpenError,
    },
    /// The spool is new, and the table of mailboxes, which contains its first number, is unreadable.
    #[error(
        "{}: {error}; the spool is new, and its numbers must begin above those of this table: put the table or the spool back, or remove the table as well, \
         and each mailbox gets new UIDs",
        table.display()
    )]
    UnknownLsn {
        /// File of the table.
        table: PathBuf,
        /// The error.
        error: String,
    },
    /// The queue of mail for other hosts could not be opened.
    #[error("the relay: {0}")]
    Relay(StreamOpenError),
    /// The resolver of `[dns]`, or TLS, cannot be set up.
    #[error("the relay: {0}")]
    Dns(String),
    /// The settings for bounces cannot be used.
    #[error(transparent)]
    Bounces(#[from] posthaste_relay::sender::BouncesError),
    /// A fixed next hop of the relay cannot be used.
    #[error("relay.route: {0}")]
    Route(#[from] posthaste_relay::sender::RouteError),
    /// The limits for destinations cannot be used.
    #[error("relay.shaping: {0}")]
    Shaping(#[from] posthaste_shaping::ShapingError),
    /// The templates of notifications cannot be used.
    #[error("relay.notices.templates: {0}")]
    Wording(#[from] posthaste_notify::dsn::WordingError),
    /// Senders of forwarded mail cannot be rewritten.
    #[error("relay.srs: {0}")]
    Srs(#[from] posthaste_notify::secrets::SecretFileError),
    /// An address or path cannot be listened on; nothing was changed.
    #[error("cannot listen on {0}{hint}", hint = hint(.0))]
    Listen(#[from] ListenError),
    /// The cluster node cannot start; no mail was accepted.
    #[error("[cluster]: {0}")]
    Cluster(String),
    /// A signal arrived while the start waited for the cluster's engine; no mail was accepted.
    #[error("stopped before the cluster's engine answered")]
    Stopped,
    /// A certificate or its key is unusable; nothing was changed.
    #[error(transparent)]
    Certificate(#[from] crate::config::certificates::CertificateError),
    /// The file of passwords is unusable; nothing was changed.
    #[error("auth.file: {0}")]
    Logins(#[from] posthaste_accounts::LoginsError),
    /// The signing keys are unusable; nothing was changed.
    #[error(transparent)]
    Dkim(#[from] crate::config::dkim::DkimError),
    /// The server cannot run as the configured user; no mail was touched.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The descriptor for readiness is not writable; nothing was changed.
    #[error("--ready-fd {number}: {error}; give a descriptor that is open for writing, 3 or above")]
    ReadyFd {
        /// Number of the descriptor.
        number: u32,
        /// The system's error.
        error: std::io::Error,
    },
    /// A part of the server cannot start; no mail was accepted.
    #[error("{service}: {error}")]
    Service {
        /// Name of the service.
        service: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
    /// A service has ended unexpectedly, and stopped the server: a bug. The log may have details.
    #[error(
        "{service} ended by itself, which is a bug; acknowledged mail is in the spool, and the next start delivers it"
    )]
    Failed {
        /// Name of the service.
        service: &'static str,
    },
    /// The system denies a resource that every server needs.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn hint(error: &ListenError) -> String {
    let port = error.place.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let is_refused = error.error.kind() == std::io::ErrorKind::PermissionDenied;
    // Only a change of the group of a socket fails so: to bind in a directory of others is EACCES.
    if port.is_none() && error.error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) {
        return ": only root, and members of the listener's `group`, can give the socket to it; with systemd, set `SupplementaryGroups=`".to_owned();
    }
    if port.is_some() && error.error.kind() == std::io::ErrorKind::AddrInUse {
        return ": perhaps a server runs here already (`ss -ltnp` names the program); `address` below [[listener]] chooses another port".to_owned();
    }
    port.filter(|&port| is_refused && is_low(port)).map_or(String::new(), |_| format!(": {}", LOW_PORTS))
}
