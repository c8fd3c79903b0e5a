//! Rights of tokens.

use std::fmt;
use std::str::FromStr;

/// A right of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Inject mail by HTTP.
    Inject,
    /// Read the queue: counts, addresses, replies. No subject, no body.
    QueueRead,
    /// Change the queue: retry, hold, suspend, bounce, delete.
    QueueWrite,
    /// Divert mail of the queue to another host.
    Route,
    /// Read and change the suppression list.
    Suppression,
    /// Read the event log.
    EventsRead,
    /// Read messages.
    MailRead,
    /// Read logins, and clients that guess passwords.
    Accounts,
    /// Read the server's state: rates, streams, disks, configuration, log.
    ServerRead,
    /// Drain the server and stop it.
    ServerDrain,
    /// Read the metrics for Prometheus.
    Metrics,
}

/// All scopes, by their names.
const SCOPES: [(Scope, &str); 11] = [
    (Scope::Inject, "inject"),
    (Scope::QueueRead, "queue:read"),
    (Scope::QueueWrite, "queue:write"),
    (Scope::Route, "route"),
    (Scope::Suppression, "suppression"),
    (Scope::EventsRead, "events:read"),
    (Scope::MailRead, "mail:read"),
    (Scope::Accounts, "accounts"),
    (Scope::ServerRead, "server:read"),
    (Scope::ServerDrain, "server:drain"),
    (Scope::Metrics, "metrics"),
];

/// A name that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scope `{0}`; there are {all}", all = SCOPES.map(|(_, name)| name).join(", "))]
pub struct UnknownScope(pub String);

impl Scope {
    /// Name of the scope, as in `--scope` and in API answers.
    pub fn name(self) -> &'static str {
        SCOPES.iter().find(|(scope, _)| *scope == self).map_or("", |(_, name)| name)
    }

    /// True if a tenant's token may have the scope: its data can be separated by tenant.
    pub fn is_of_tenants(self) -> bool {
        match self {
            Self::Inject
            | Self::QueueRead
            | Self::QueueWrite
            | Self::Suppression
            | Self::EventsRead
            | Self::MailRead => true,
            Self::Route | Self::Accounts | Self::ServerRead | Self::ServerDrain | Self::Metrics => false,
        }
    }

    /// All scopes.
    pub fn all() -> impl Iterator<Item = Self> {
        SCOPES.into_iter().map(|(scope, _)| scope)
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        let found = SCOPES.iter().find(|(_, name)| *name == text).map(|(scope, _)| *scope);
        found.ok_or_else(|| UnknownScope(text.chars().take(100).collect()))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
