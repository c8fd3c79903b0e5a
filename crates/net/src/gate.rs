//! Who may come in: connections counted in all and for each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::peer::customer;

/// How many connections are served at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Over all listeners. Default 20,000.
    pub connections: usize,
    /// From one IPv4 address or one IPv6 /64. Default: no such limit. UNIX sockets have no address.
    pub connections_per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 20_000, connections_per_address: usize::MAX }
    }
}

/// Why a client is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// [`Limits::connections`].
    TooManyConnections,
    /// [`Limits::connections_per_address`].
    TooManyFromAddress,
    /// The process has no file descriptor left for it.
    TooManyFiles,
}

/// Counts open connections. The map has one entry for each connected address, so the total bounds it.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place inside, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
}

impl Gate {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Open connections.
    pub fn total(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).total
    }

    /// Counts a client in, or says why not. UNIX sockets have no address and count in all only.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Permit, Refusal> {
        let address = ip.map(customer);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= self.limits.connections {
            return Err(Refusal::TooManyConnections);
        }
        if let Some(address) = address {
            let count = counts.by_address.entry(address).or_default();
            // A count of zero never stays: an entry is made only where it is raised at once.
            if *count >= self.limits.connections_per_address {
                if *count == 0 {
                    counts.by_address.remove(&address);
                }
                return Err(Refusal::TooManyFromAddress);
            }
            *count += 1;
        }
        counts.total += 1;
        Ok(Permit { gate: Arc::clone(self), address })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.gate.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(address) = self.address {
            let count = counts.by_address.get_mut(&address).expect("a counted address");
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_places_come_back() {
        let gate = Gate::new(Limits { connections: 3, connections_per_address: 2 });
        let enter = |ip: &str| gate.enter(Some(ip.parse().unwrap()));
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("::ffff:192.0.2.1").unwrap();
        assert_eq!(enter("192.0.2.1").unwrap_err(), Refusal::TooManyFromAddress);
        let _third = enter("2001:db8::1").unwrap();
        assert_eq!(enter("192.0.2.2").unwrap_err(), Refusal::TooManyConnections);
        drop(first);
        let _fourth = enter("2001:db8::2").unwrap();
        assert_eq!(gate.total(), 3);
    }

    #[test]
    fn an_ipv6_customer_is_one_address() {
        let gate = Gate::new(Limits { connections: 9, connections_per_address: 1 });
        let _permit = gate.enter(Some("2001:db8::1".parse().unwrap())).unwrap();
        assert!(gate.enter(Some("2001:db8::2".parse().unwrap())).is_err());
        assert!(gate.enter(Some("2001:db8:0:1::2".parse().unwrap())).is_ok());
    }
}
