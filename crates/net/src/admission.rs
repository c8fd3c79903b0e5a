//! Admission to a listener: permitted networks, trusted proxies, connection limits.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::gate::{Excess, Gate, Permit};
use crate::networks::{IpNet, is_in};
use crate::proxy::ProxyError;
use crate::{GateLimits, Peer};

/// The reason why a client is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionRefusal {
    /// [`GateLimits::connections`], of all listeners or of this one.
    #[error("too many connections")]
    TooManyConnections,
    /// [`GateLimits::connections_per_address`].
    #[error("too many connections from this address")]
    TooManyFromAddress,
    /// [`NetworkLimits::connections`](crate::NetworkLimits::connections).
    #[error("too many connections from this network")]
    TooManyFromNetwork,
    /// The process has no file descriptor left.
    #[error("too many open files")]
    TooManyFiles,
    /// The client is not in [`Rules::allow`].
    #[error("clients of this address may not connect here")]
    NotAllowed,
    /// The listener is for [`Proxies`], and the client is none.
    #[error("not one of the proxies that may connect here")]
    NotAProxy,
    /// A proxy that does not name its client.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl From<Excess> for ConnectionRefusal {
    fn from(excess: Excess) -> Self {
        match excess {
            Excess::Total => Self::TooManyConnections,
            Excess::Address => Self::TooManyFromAddress,
            Excess::Network => Self::TooManyFromNetwork,
        }
    }
}

/// Rules for the clients of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Networks whose clients may connect; `None`: all. Clients of a UNIX socket have no address and may always: the
    /// socket's mode decides.
    pub allow: Option<Vec<IpNet>>,
    /// Trusted proxies. If set, only proxies connect here, no clients. Default: `None`.
    pub proxies: Option<Proxies>,
    /// Limits of these listeners, in addition to the common ones. Default: none.
    pub limits: GateLimits,
}

impl Default for Rules {
    fn default() -> Self {
        Self { allow: None, proxies: None, limits: GateLimits::NONE }
    }
}

/// Proxies that name the client of each connection with the PROXY protocol. The client's address then counts as the
/// peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxies {
    /// Networks of the proxies; nobody else may connect. Over a UNIX socket its mode decides.
    pub trusted: Vec<IpNet>,
    /// Timeout of a header.
    pub header_patience: Duration,
}

impl Proxies {
    /// Trusts these networks, with a timeout of 5 s for a header: longer than the retransmission of a lost packet.
    pub fn new(trusted: Vec<IpNet>) -> Self {
        Self { trusted, header_patience: Duration::from_secs(5) }
    }

    pub(crate) fn trust(&self, peer: &Peer) -> bool {
        peer.ip().is_none_or(|ip| is_in(&self.trusted, ip))
    }
}

/// The rules of one listener or several, replaceable while they serve, and the count of their connections.
#[derive(Debug)]
pub struct Admission {
    rules: RwLock<Arc<Rules>>,
    gate: Arc<Gate>,
}

impl Admission {
    /// Starts with these rules.
    pub fn new(rules: Rules) -> Arc<Self> {
        let gate = Gate::new(rules.limits.clone());
        Arc::new(Self { rules: RwLock::new(Arc::new(rules)), gate })
    }

    /// Replaces the rules for later connections.
    pub fn replace(&self, rules: Rules) {
        self.gate.replace(rules.limits.clone());
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a client here and with `all`.
    pub(crate) fn enter(&self, all: &Arc<Gate>, ip: Option<IpAddr>) -> Result<Permits, ConnectionRefusal> {
        Ok(Permits { all: all.enter(ip)?, own: self.gate.enter(ip)? })
    }
}

/// A connection counted globally and at its listener.
#[derive(Debug)]
pub(crate) struct Permits {
    all: Permit,
    own: Permit,
}

impl Permits {
    pub fn enter_from(&mut self, ip: IpAddr) -> Result<(), ConnectionRefusal> {
        self.all.enter_from(ip)?;
        Ok(self.own.enter_from(ip)?)
    }
}

impl Rules {
    /// Checks a client against the permitted networks; limits are not counted here.
    pub(crate) fn check(&self, peer: &Peer) -> Result<(), ConnectionRefusal> {
        let allowed = peer.ip().is_none_or(|ip| self.allow.as_ref().is_none_or(|allow| is_in(allow, ip)));
        if allowed { Ok(()) } else { Err(ConnectionRefusal::NotAllowed) }
    }
}
