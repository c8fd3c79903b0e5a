//! Networks from which somebody has logged in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::guesses::{NETWORKS_MAX, prefix48};

/// Clients' networks from which somebody has logged in, and when last.
#[derive(Debug, Default)]
pub(crate) struct KnownNetworks(Mutex<HashMap<IpAddr, Instant>>);

impl KnownNetworks {
    pub fn has(&self, client: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&client).is_some_and(|at| at.elapsed() < KNOWN_FOR)
    }

    pub fn add(&self, client: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&client) {
            // One account with a whole /48 cannot displace the networks of others.
            let prefix = prefix48(client);
            let is_near = |ip: &IpAddr| prefix.is_some() && prefix48(*ip) == prefix;
            let is_prefix_full = known.keys().filter(|ip| is_near(ip)).count() >= PREFIX_NETWORKS_MAX;
            if is_prefix_full || known.len() >= NETWORKS_MAX {
                let candidates = known.iter().filter(|(ip, _)| !is_prefix_full || is_near(ip));
                let oldest = candidates.min_by_key(|(_, at)| **at).map(|(ip, _)| *ip);
                oldest.inspect(|ip| _ = known.remove(ip));
            }
        }
        known.insert(client, Instant::now());
    }
}

/// Known networks of one /48.
const PREFIX_NETWORKS_MAX: usize = 16;
/// How long a network is known from its last login on.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn known_networks_of_a_48_displace_each_other_only() {
        let known = KnownNetworks::default();
        let near = |network: u32| format!("2001:db8:1:{network:x}::").parse().unwrap();
        let (other, v4) = ("2001:db8:2::".parse().unwrap(), "192.0.2.1".parse().unwrap());
        known.add(other);
        known.add(v4);
        for network in 0..=PREFIX_NETWORKS_MAX as u32 {
            tokio::time::advance(Duration::from_secs(1)).await;
            known.add(near(network));
        }
        assert!(known.has(other) && known.has(v4));
        assert_eq!(known.0.lock().unwrap().len(), PREFIX_NETWORKS_MAX + 2);
        assert!(!known.has(near(0)) && known.has(near(1)), "the one of the oldest login goes");
    }

    #[tokio::test(start_paused = true)]
    async fn known_networks_are_bounded() {
        let known = KnownNetworks::default();
        let ip = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for number in 0..NETWORKS_MAX as u32 {
            known.add(ip(number));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        known.add(ip(0));
        known.add(ip(1_000_000));
        assert_eq!(known.0.lock().unwrap().len(), NETWORKS_MAX);
        assert!(known.has(ip(0)) && !known.has(ip(1)), "the one of the oldest login goes");
    }
}
