//! Limits and access rules of a listener's connections.

use posthaste_config::{Config, Listener, Network};
use posthaste_net::section::ConnectionLimitOverrides;
use posthaste_smtp::driver::{ConnectionLimits, NetworkLimits, Proxies, Rules, UnixAccess};

/// Access rights of a UNIX socket: the server's future group may connect, too.
pub(crate) fn unix_access(config: &Config, listener: &Listener) -> UnixAccess {
    let access = listener.unix_access();
    let mut access = access.unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
    access.group = access.group.or_else(|| crate::config::privileges::group_to_be(config));
    access
}

/// Numbers of connections over all listeners.
pub(crate) fn connection_limits(config: &Config) -> ConnectionLimits {
    let networks = config.networks.iter().flat_map(Network::each).map(|(network, own)| {
        let ConnectionLimitOverrides { connections, connections_per_address } = own.limits.connections;
        (network, NetworkLimits { connections, connections_per_address })
    });
    let posthaste_net::section::ConnectionLimits { connections, connections_per_address } = config.limits.connections;
    ConnectionLimits { connections, connections_per_address, networks: networks.collect() }
}

/// Rules for connections to a listener.
pub(crate) fn rules(config: &Config, listener: &Listener) -> Rules {
    // A network with a number of its own has it everywhere.
    let networks = config.networks.iter().flat_map(Network::each).map(|(network, own)| {
        let connections_per_address = own.limits.connections.connections_per_address;
        (network, NetworkLimits { connections: None, connections_per_address })
    });
    let limits = ConnectionLimits {
        connections: listener.limits.connections.connections.unwrap_or(usize::MAX),
        connections_per_address: listener.limits.connections.connections_per_address.unwrap_or(usize::MAX),
        networks: networks.collect(),
    };
    let proxies = listener.socket.proxies.as_ref().map(|proxies| proxies.0.clone()).unwrap_or_default();
    Rules {
        allow: listener.socket.allow.as_ref().map(|allow| allow.0.clone()),
        proxies: listener.socket.proxy_protocol.then(|| Proxies::new(proxies)),
        limits,
    }
}
