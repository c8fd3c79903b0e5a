//! Who may come in: connections counted in all and for each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::reply::Reply;

/// Counts open connections. The map has one entry for each connected address, so the total bounds it.
#[derive(Debug)]
pub(super) struct Gate {
    max: usize,
    max_per_address: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place inside, given back on drop.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
}

impl Gate {
    pub fn new(max: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_address, counts: Mutex::default() })
    }

    /// Open connections.
    pub fn total(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).total
    }

    /// Counts a client in, or says what it is to be told. UNIX sockets have no address and count in all only.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Permit, Reply> {
        let address = ip.map(network);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.total >= self.max {
            return Err(Reply::new(421, "4.3.2", "Too many connections, try again later"));
        }
        if let Some(address) = address {
            let count = counts.by_address.entry(address).or_default();
            // A count of zero never stays: an entry is made only where it is raised at once.
            if *count >= self.max_per_address {
                if *count == 0 {
                    counts.by_address.remove(&address);
                }
                return Err(Reply::new(421, "4.7.0", "Too many connections from your address, try again later"));
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

/// One customer has a whole /64 of IPv6.
pub(super) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive_and_places_come_back() {
        let gate = Gate::new(3, 2);
        let enter = |ip: &str| gate.enter(Some(ip.parse().unwrap())).map_err(|r| r.enhanced().unwrap().to_string());
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("::ffff:192.0.2.1").unwrap();
        assert_eq!(enter("192.0.2.1").unwrap_err(), "4.7.0");
        let _third = enter("2001:db8::1").unwrap();
        assert_eq!(enter("192.0.2.2").unwrap_err(), "4.3.2");
        drop(first);
        let _fourth = enter("2001:db8::2").unwrap();
        assert_eq!(gate.total(), 3);
    }

    #[test]
    fn an_ipv6_customer_is_one_address() {
        let gate = Gate::new(9, 1);
        let _permit = gate.enter(Some("2001:db8::1".parse().unwrap())).unwrap();
        assert!(gate.enter(Some("2001:db8::2".parse().unwrap())).is_err());
        assert!(gate.enter(Some("2001:db8:0:1::2".parse().unwrap())).is_ok());
    }
}
