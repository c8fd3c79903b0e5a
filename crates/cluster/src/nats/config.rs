//! The engine's address and login.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The engine's address and login.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    /// `host:port` of each server.
    pub servers: Vec<String>,
    /// `host:port` of each server's HTTP monitoring: it has settings that clients cannot query.
    pub monitors: Vec<String>,
    /// Without it, servers must be on a loopback address.
    pub tls: Option<NatsTls>,
    /// Login at the servers. Without it, servers must be on a loopback address.
    pub login: Option<NatsLogin>,
    /// Begins the names of all streams: letters, digits and `-`.
    pub prefix: String,
    /// Replicas of each stream: 3, but for tests.
    pub replicas: u64,
    /// Limit of the log of a shard, in bytes.
    pub log_bytes_max: u64,
    /// Time after which a request without an answer counts as lost.
    pub timeout: Duration,
}

/// Certificates for the engine.
#[derive(Debug, Clone, Default)]
pub struct NatsTls {
    /// Authorities in PEM; default: those of the system.
    pub roots: Option<PathBuf>,
    /// Certificate and key of this node, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// User and password. Its debug output has no password.
#[derive(Clone)]
pub struct NatsLogin {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLogin").field("user", &self.user).finish_non_exhaustive()
    }
}
