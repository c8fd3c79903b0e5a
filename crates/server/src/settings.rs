//! What a reload replaces while sessions go on.

use std::sync::Arc;

use posthaste_directory::Directory;
use posthaste_smtp::driver::{ByNetwork, Peer, Session};

use crate::config::{Config, Limits, Listener, Network};
use crate::shares::Allowance;

/// What a reload replaces while sessions go on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub host_name: String,
    pub directory: Arc<Directory>,
    /// For each listener, in their order.
    limits: Vec<ByNetwork<MessageLimits>>,
    /// For what programs on this machine hand over.
    local: MessageLimits,
}

/// The limits of a message that the smtp crate does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLimits {
    pub hops: usize,
    pub allowance: Allowance,
}

impl From<Limits> for MessageLimits {
    fn from(limits: Limits) -> Self {
        Self { hops: limits.receive.hops, allowance: (&limits).into() }
    }
}

impl Settings {
    /// `directory` is that of `config`.
    pub fn new(config: &Config, directory: Arc<Directory>) -> Self {
        let limits = config.listeners.iter().map(|listener| limits(config, listener).map(Into::into));
        let local = config.limits.clone().into();
        Self { host_name: config.host_name.clone(), directory, limits: limits.collect(), local }
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
