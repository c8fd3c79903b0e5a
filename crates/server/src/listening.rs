//! From the configuration to sockets, and to what applies at each of them.

use std::time::{Duration, Instant};

use posthaste_smtp::driver::{
    BoundServer, ByNetwork, ConnectionLimits, ListenError, ListenerSettings, NetworkLimits, Proxies, Rules,
    Server as SmtpServer, ServerBuilder,
};
use posthaste_smtp::server::Config as SmtpConfig;

use crate::config::{Config, Limits, Listener, Network};

/// Listens. A predecessor that was killed has its sockets until the kernel has taken it apart, so this waits a little.
pub(crate) fn bind_when_free(config: &Config) -> Result<BoundServer, ListenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match builder(config).bind() {
            Err(error) if error.error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            bound => return bound,
        }
    }
}

fn builder(config: &Config) -> ServerBuilder {
    let builder = SmtpServer::builder().limits(connection_limits(config));
    config.listeners.iter().fold(builder, |builder, listener| {
        let builder = builder.settings(settings(config, listener));
        match (&listener.address, &listener.unix) {
            (Some(address), _) => builder.listen(address.to_string()),
            (None, Some(path)) => {
                let access = listener.unix_access();
                let mut access = access.unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
                access.group = access.group.or_else(|| crate::privileges::group_to_be(config));
                builder.listen_unix_with(path, access)
            }
            (None, None) => panic!("an unchecked configuration: a listener that listens nowhere"),
        }
    })
}

/// Numbers of connections over all listeners.
pub(crate) fn connection_limits(config: &Config) -> ConnectionLimits {
    let networks = config.networks.iter().flat_map(Network::each).map(|(network, own)| {
        let (connections, connections_per_address) = (own.limits.connections, own.limits.connections_per_address);
        (network, NetworkLimits { connections, connections_per_address })
    });
    ConnectionLimits {
        connections: config.limits.connections,
        connections_per_address: config.limits.connections_per_address,
        networks: networks.collect(),
    }
}

/// What applies at a listener: who may connect, and the sessions of each network.
pub(crate) fn settings(config: &Config, listener: &Listener) -> ListenerSettings {
    let each = || config.networks.iter().flat_map(Network::each);
    let configs = each().map(|(network, own)| (network, smtp_config(config, listener, Some(own)))).collect();
    // A network with a number of its own has it everywhere.
    let networks = each().map(|(network, own)| {
        let connections_per_address = own.limits.connections_per_address;
        (network, NetworkLimits { connections: None, connections_per_address })
    });
    let limits = ConnectionLimits {
        connections: listener.limits.connections.unwrap_or(usize::MAX),
        connections_per_address: listener.limits.connections_per_address.unwrap_or(usize::MAX),
        networks: networks.collect(),
    };
    let proxies = listener.proxies.as_ref().map(|proxies| proxies.0.clone()).unwrap_or_default();
    let rules = Rules {
        allow: listener.allow.as_ref().map(|allow| allow.0.clone()),
        proxies: listener.proxy_protocol.then(|| Proxies::new(proxies)),
        limits,
    };
    ListenerSettings { configs: ByNetwork::new(smtp_config(config, listener, None), configs), rules }
}

/// What applies to the sessions of a listener, by the client's network.
pub(crate) fn limits(config: &Config, listener: &Listener) -> ByNetwork<Limits> {
    let limits = listener.limits.over(&config.limits);
    let networks = config.networks.iter().flat_map(Network::each);
    let networks = networks.map(|(network, own)| (network, own.limits.over(&limits))).collect();
    ByNetwork::new(limits, networks)
}

fn smtp_config(config: &Config, listener: &Listener, network: Option<&Network>) -> SmtpConfig {
    let (mut limits, mut policy) = (listener.limits.over(&config.limits), listener.policy.over(&config.policy));
    if let Some(network) = network {
        (limits, policy) = (network.limits.over(&limits), network.policy.over(&policy));
    }
    SmtpConfig {
        protocol: listener.protocol,
        limits: (&limits).into(),
        bare_newlines: policy.bare_newlines,
        forbidden_commands: policy.forbidden_commands,
        nul_octets: policy.nul_octets,
        long_lines: policy.long_lines,
        ..SmtpConfig::new(&config.host_name)
    }
}

/// How long a start waits for a process that is being ended to let its sockets go, or its spool.
pub(crate) const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(3);
