//! What a reload replaces while sessions go on.

use std::sync::Arc;

use posthaste_directory::Directory;
use posthaste_smtp::driver::{ByNetwork, Peer, Session};

use crate::config::{Config, Limits, Listener, Network};
use crate::maps::Maps;
use crate::shares::Allowance;
use crate::tenants::Tenants;

/// What a reload replaces while sessions go on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub host_name: String,
    pub directory: Arc<Directory>,
    /// Whose mail to any domain is taken.
    relay_networks: ByNetwork<bool>,
    relay_local: bool,
    /// Domains for which everybody's is.
    relay_domains: Vec<String>,
    pub tenants: Tenants,
    pub maps: Maps,
    /// For each listener, in their order.
    limits: Vec<ByNetwork<MessageLimits>>,
    /// For what programs on this machine hand over.
    local: MessageLimits,
}

/// The limits of a message that the smtp crate does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLimits {
    pub hops: usize,
    /// How long a message may be held back.
    pub future_release_secs: u64,
    pub allowance: Allowance,
}

impl From<Limits> for MessageLimits {
    fn from(limits: Limits) -> Self {
        Self {
            hops: limits.receive.hops,
            future_release_secs: limits.session.future_release_secs,
            allowance: (&limits).into(),
        }
    }
}

impl Settings {
    /// `directory` is that of `config`.
    pub fn new(config: &Config, directory: Arc<Directory>) -> Self {
        let limits = config.listeners.iter().map(|listener| limits(config, listener).map(Into::into));
        let mut local: MessageLimits = config.limits.clone().into();
        local.future_release_secs = posthaste_units::A_YEAR;
        let networks = config.relay.networks.0.iter().map(|network| (*network, true)).collect();
        let relay_domains = config.relay.domains.iter().map(|domain| domain.to_lowercase()).collect();
        Self {
            host_name: config.host_name.clone(),
            directory,
            relay_networks: ByNetwork::new(false, networks),
            relay_local: config.relay.local_users,
            relay_domains,
            tenants: Tenants::new(config),
            maps: Maps::new(&config.relay),
            limits: limits.collect(),
            local,
        }
    }

    /// Whether mail of this session for any domain is sent on.
    pub fn is_trusted(&self, session: &Session) -> bool {
        match session.peer {
            Peer::Local { .. } => self.relay_local,
            _ => *self.relay_networks.get(session.peer.ip()),
        }
    }

    /// Whether mail of this session for a domain that is not ours is sent on.
    pub fn may_relay(&self, session: &Session, domain: &str) -> bool {
        self.is_trusted(session) || self.relay_domains.iter().any(|open| open.eq_ignore_ascii_case(domain))
    }

    /// Those of the listener that `session` came to, and of its client's network.
    pub fn limits(&self, session: &Session) -> MessageLimits {
        match session.peer {
            Peer::Local { .. } => self.local,
            _ => *self.limits[session.listener].get(session.peer.ip()),
        }
    }
}

/// What applies to the sessions of a listener, by the client's network.
fn limits(config: &Config, listener: &Listener) -> ByNetwork<Limits> {
    let limits = listener.limits.over(&config.limits);
    let networks = config.networks.iter().flat_map(Network::each);
    let networks = networks.map(|(network, own)| (network, own.limits.over(&limits))).collect();
    ByNetwork::new(limits, networks)
}
