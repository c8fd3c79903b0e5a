//! Each client's share of the spool: a client with many stalled large messages must leave room for others.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_units::show_bytes;

/// Octets of arriving large messages by client. The map has an entry for each client with such a message.
#[derive(Debug, Clone, Default)]
pub struct SpoolShares(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    by_network: HashMap<IpAddr, u64>,
    all: u64,
    /// Octets free at the last look, plus those used by messages in flight then.
    space: u64,
}

/// Limit on a client's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Its share.
    pub share: SpaceShare,
    /// Room for one message of the largest size, whatever the share. 0: messages are unlimited.
    pub least: u64,
}

/// A share of the spool's space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceShare {
    /// Percent of the space, 1 to 100.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

impl Allowance {
    fn of(self, space: u64) -> u64 {
        let share = match self.share {
            SpaceShare::Bytes(bytes) => bytes,
            SpaceShare::Percent(percent) => space / 100 * u64::from(percent),
        };
        share.max(self.least)
    }
}

/// The client's share would be exceeded: 452 4.3.1, for this client only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareExceeded {
    network: IpAddr,
    held: u64,
    wanted: u64,
    allowed: u64,
}

impl fmt::Display for ShareExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network, held, wanted, allowed } = self;
        let prefix = if network.is_ipv6() { "/64" } else { "" };
        let held = show_bytes(*held);
        let wanted = show_bytes(*wanted);
        let allowed = show_bytes(*allowed);
        write!(
            f,
            "other large messages under way from {network}{prefix} hold {held} of the spool; with {wanted} more it is above {allowed} (limits.spool_per_address)"
        )
    }
}

impl SpoolShares {
    /// Notes the free space of the spool's file system.
    pub fn found_free(&self, bytes: u64) {
        let mut held = self.held();
        held.space = bytes.saturating_add(held.all);
    }

    /// Checks that a message of that size could begin.
    ///
    /// # Errors
    /// The client's share would be exceeded.
    pub fn check(&self, network: Option<IpAddr>, bytes: u64, allowance: Allowance) -> Result<(), ShareExceeded> {
        let held = self.held();
        // Without a look nothing is known yet, and the first message brings one.
        let is_unknown = held.space == 0 && matches!(allowance.share, SpaceShare::Percent(_));
        network.filter(|_| !is_unknown).map_or(Ok(()), |network| held.check(network, 0, bytes, allowance))
    }

    /// Begins a message of this client. Without an address, as on a UNIX socket, there is no limit.
    pub fn begin(&self, network: Option<IpAddr>, allowance: Allowance) -> HeldSpace {
        HeldSpace { shares: self.clone(), network, allowance, bytes: 0 }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// `own`: octets that the message itself already holds, included in `bytes`.
    fn check(&self, network: IpAddr, own: u64, bytes: u64, allowance: Allowance) -> Result<(), ShareExceeded> {
        let held = self.by_network.get(&network).copied().unwrap_or(0) - own;
        let allowed = allowance.of(self.space);
        // Where messages have no bound, one alone has none here either.
        if held > 0 && held.saturating_add(bytes) > allowed {
            Err(ShareExceeded { network, held, wanted: bytes, allowed })
        } else {
            Ok(())
        }
    }
}

/// Space of one message, returned on drop.
#[derive(Debug)]
pub struct HeldSpace {
    shares: SpoolShares,
    network: Option<IpAddr>,
    allowance: Allowance,
    bytes: u64,
}

impl HeldSpace {
    /// Like [`SpoolShares::found_free`].
    pub fn found_free(&self, bytes: u64) {
        self.shares.found_free(bytes);
    }

    /// Extends the message's space to `bytes` octets.
    ///
    /// # Errors
    /// The client's share would be exceeded.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ShareExceeded> {
        let Some(network) = self.network.filter(|_| bytes > self.bytes) else { return Ok(()) };
        let mut held = self.shares.held();
        held.check(network, self.bytes, bytes, self.allowance)?;
        // In steps, so that small pieces seldom come here.
        let grown = bytes.next_multiple_of(STEP_BYTES);
        *held.by_network.entry(network).or_default() += grown - self.bytes;
        held.all += grown - self.bytes;
        self.bytes = grown;
        Ok(())
    }
}

impl Drop for HeldSpace {
    fn drop(&mut self) {
        let Some(network) = self.network.filter(|_| self.bytes > 0) else { return };
        let mut held = self.shares.held();
        held.all -= self.bytes;
        let of_network = held.by_network.get_mut(&network).expect("a counted client");
        *of_network -= self.bytes;
        if *of_network == 0 {
            held.by_network.remove(&network);
        }
    }
}

const STEP_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn one_client_has_a_share_and_the_others_theirs() {
        let shares = SpoolShares::default();
        let allowance = Allowance { share: SpaceShare::Percent(25), least: MIB };
        shares.found_free(16 * MIB);
        let mut first = shares.begin(network("192.0.2.1"), allowance);
        let mut second = shares.begin(network("192.0.2.1"), allowance);
        first.grow(3 * MIB).unwrap();
        // What is taken of the space is a part of it.
        shares.found_free(13 * MIB);
        second.grow(MIB / 2).unwrap();
        let refused = second.grow(MIB + MIB * 24 / 25).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "other large messages under way from 192.0.2.1 hold 3 MiB of the spool; with 2055208 bytes more it is above 4194300 bytes \
             (limits.spool_per_address)"
        );
        assert!(shares.check(network("192.0.2.1"), 2 * MIB, allowance).is_err());
        shares.check(network("192.0.2.2"), 3 * MIB, allowance).unwrap();
        shares.begin(network("192.0.2.2"), allowance).grow(3 * MIB).unwrap();
        shares.begin(None, allowance).grow(100 * MIB).unwrap();
        drop(first);
        second.grow(3 * MIB).unwrap();
        drop(second);
        let held = shares.held();
        assert_eq!((held.all, held.by_network.len()), (0, 0));
    }

    #[test]
    fn one_message_always_has_room() {
        let shares = SpoolShares::default();
        let allowance = Allowance { share: SpaceShare::Bytes(MIB), least: 50 * MIB };
        shares.begin(network("2001:db8::"), allowance).grow(50 * MIB).unwrap();
        let mut two = [0, 1].map(|_| shares.begin(network("2001:db8::"), allowance));
        two[0].grow(50 * MIB).unwrap();
        let unbounded = Allowance { least: 0, ..allowance };
        shares.begin(network("192.0.2.1"), unbounded).grow(50 * MIB).unwrap();
        assert!(two[1].grow(1).unwrap_err().to_string().contains("2001:db8::/64"));
    }
}
