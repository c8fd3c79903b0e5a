//! Counts of connections: in all, for each address, for each network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::networks::{ByNetwork, IpNet};
use crate::peer::customer;

/// Limits on simultaneous connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateLimits {
    /// In all.
    pub connections: usize,
    /// From one IPv4 address or one IPv6 /64. UNIX sockets have no address.
    pub connections_per_address: usize,
    /// Networks with their own limits. The smallest network of a client applies.
    pub networks: Vec<(IpNet, NetworkLimits)>,
}

/// Limits on the clients of one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkLimits {
    /// From the whole network; they also count globally.
    pub connections: Option<usize>,
    /// In place of [`GateLimits::connections_per_address`].
    pub connections_per_address: Option<usize>,
}

impl GateLimits {
    /// No limits.
    pub const NONE: Self = Self { connections: usize::MAX, connections_per_address: usize::MAX, networks: Vec::new() };
}

/// 20,000 connections in all, and no other limit.
impl Default for GateLimits {
    fn default() -> Self {
        Self { connections: 20_000, ..Self::NONE }
    }
}

/// The limit that one more connection would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Total,
    Address,
    Network,
}

/// Counts open connections. The maps have one entry for each connected address and its network, so the total bounds
/// them.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    connections: usize,
    connections_per_address: usize,
    networks: ByNetwork<NetworkLimits>,
    total: usize,
    by_address: HashMap<IpAddr, usize>,
    by_network: HashMap<IpNet, usize>,
}

/// A counted connection; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
    network: Option<IpNet>,
}

impl Gate {
    pub fn new(limits: GateLimits) -> Arc<Self> {
        let GateLimits { connections, connections_per_address, networks } = limits;
        Arc::new(Self(Mutex::new(Counts {
            connections,
            connections_per_address,
            networks: ByNetwork::new(NetworkLimits::default(), networks),
            total: 0,
            by_address: HashMap::new(),
            by_network: HashMap::new(),
        })))
    }

    /// Replaces the limits. Open connections stay.
    pub fn replace(&self, limits: GateLimits) {
        let GateLimits { connections, connections_per_address, networks } = limits;
        let mut counts = self.counts();
        counts.networks = ByNetwork::new(NetworkLimits::default(), networks);
        (counts.connections, counts.connections_per_address) = (connections, connections_per_address);
    }

    /// Open connections.
    pub fn total(&self) -> usize {
        self.counts().total
    }

    /// Counts a client. UNIX sockets have no address, so their clients count globally only.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Permit, Excess> {
        let mut counts = self.counts();
        if counts.total >= counts.connections {
            return Err(Excess::Total);
        }
        let (address, network) = ip.map_or(Ok((None, None)), |ip| counts.enter_from(ip))?;
        counts.total += 1;
        drop(counts);
        Ok(Permit { gate: Arc::clone(self), address, network })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn enter_from(&mut self, ip: IpAddr) -> Result<(Option<IpAddr>, Option<IpNet>), Excess> {
        let address = customer(ip);
        let own = self.networks.of_network(Some(ip)).map(|(network, limits)| (network, *limits));
        let per_address = own.and_then(|(_, limits)| limits.connections_per_address);
        if self
            .by_address
            .get(&address)
            .is_some_and(|&count| count >= per_address.unwrap_or(self.connections_per_address))
            || per_address.unwrap_or(self.connections_per_address) == 0
        {
            return Err(Excess::Address);
        }
        let network = own.and_then(|(network, limits)| Some((network, limits.connections?)));
        if let Some((network, most)) = network
            && self.by_network.get(&network).copied().unwrap_or(0) >= most
        {
            return Err(Excess::Network);
        }
        *self.by_address.entry(address).or_default() += 1;
        if let Some((network, _)) = network {
            *self.by_network.entry(network).or_default() += 1;
        }
        Ok((Some(address), network.map(|(network, _)| network)))
    }
}

impl Permit {
    /// Counts a client whose address has become known.
    pub fn enter_from(&mut self, ip: IpAddr) -> Result<(), Excess> {
        debug_assert_eq!(self.address, None, "counted once");
        let gate = Arc::clone(&self.gate);
        (self.address, self.network) = gate.counts().enter_from(ip)?;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.gate.counts();
        counts.total -= 1;
        if let Some(address) = &self.address {
            leave(&mut counts.by_address, address);
        }
        if let Some(network) = &self.network {
            leave(&mut counts.by_network, network);
        }
    }
}

fn leave<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    let count = counts.get_mut(key).expect("a counted client");
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network;

    fn limits(connections: usize, connections_per_address: usize) -> GateLimits {
        GateLimits { connections, connections_per_address, networks: Vec::new() }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn limits_are_inclusive_and_places_come_back() {
        let gate = Gate::new(limits(3, 2));
        let enter = |text: &str| gate.enter(Some(ip(text)));
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("::ffff:192.0.2.1").unwrap();
        assert_eq!(enter("192.0.2.1").unwrap_err(), Excess::Address);
        let _third = enter("2001:db8::1").unwrap();
        assert_eq!(enter("192.0.2.2").unwrap_err(), Excess::Total);
        drop(first);
        let _fourth = enter("2001:db8::2").unwrap();
        assert_eq!(gate.total(), 3);
    }

    #[test]
    fn an_ipv6_customer_is_one_address() {
        let gate = Gate::new(limits(9, 1));
        let _permit = gate.enter(Some(ip("2001:db8::1"))).unwrap();
        assert!(gate.enter(Some(ip("2001:db8::2"))).is_err());
        assert!(gate.enter(Some(ip("2001:db8:0:1::2"))).is_ok());
    }

    #[test]
    fn a_network_has_limits_of_its_own() {
        let own = |connections, connections_per_address| NetworkLimits { connections, connections_per_address };
        let networks = [("10.0.0.0/8", own(Some(3), Some(2))), ("10.9.0.0/16", own(None, Some(4)))];
        let networks = networks.map(|(text, limits)| (network(text).unwrap(), limits)).to_vec();
        let gate = Gate::new(GateLimits { networks, ..limits(100, 1) });
        let enter = |text: &str| gate.enter(Some(ip(text)));
        let mut inside = vec![enter("192.0.2.1").unwrap()];
        assert_eq!(enter("192.0.2.1").unwrap_err(), Excess::Address);
        inside.extend([enter("10.0.0.1").unwrap(), enter("10.0.0.1").unwrap()]);
        assert_eq!(enter("10.0.0.1").unwrap_err(), Excess::Address);
        inside.push(enter("10.0.0.2").unwrap());
        assert_eq!(enter("10.0.0.3").unwrap_err(), Excess::Network);
        // The smaller network has limits of its own, and is not counted with the larger.
        inside.extend((0..4).map(|_| enter("10.9.0.1").unwrap()));
        assert_eq!(enter("10.9.0.1").unwrap_err(), Excess::Address);
        gate.replace(limits(100, 100));
        inside.push(enter("10.9.0.1").unwrap());
        inside.clear();
        let counts = gate.counts();
        assert_eq!((counts.total, counts.by_address.len(), counts.by_network.len()), (0, 0, 0));
    }

    #[test]
    fn who_is_named_later_is_counted_later() {
        let gate = Gate::new(limits(9, 1));
        let [mut first, mut second] = [0, 1].map(|_| gate.enter(None).unwrap());
        first.enter_from(ip("192.0.2.1")).unwrap();
        assert_eq!(second.enter_from(ip("192.0.2.1")), Err(Excess::Address));
        drop((first, second));
        assert_eq!(gate.total(), 0);
    }
}
