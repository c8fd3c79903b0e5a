use std::net::IpAddr;
use std::sync::Arc;

use posthaste_random::Random;
use tokio::time::Instant;

use super::IpStrategy;
use super::own::OwnPort;

/// The usable addresses of a host, at least one. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// Sorted by the strategy's order of families, then by address.
    ordered: Arc<[IpAddr]>,
    /// Our own ports, of all address families.
    ours: Arc<[OwnPort]>,
    valid_until: Instant,
    is_secure: bool,
    is_secure_alias: bool,
    alias: Option<Arc<str>>,
}

impl Addresses {
    /// `None` if none is usable.
    pub(super) fn new(
        addresses: impl IntoIterator<Item = IpAddr>,
        strategy: IpStrategy,
        own_ports: impl Fn(IpAddr) -> Vec<OwnPort>,
        valid_until: Instant,
    ) -> Option<Addresses> {
        let addresses = addresses.into_iter().map(|address| address.to_canonical());
        let mut ordered: Vec<IpAddr> = addresses.filter(super::names::is_usable).collect();
        // Of any family: mail comes back to us over the other one, too.
        let ours = ordered.iter().flat_map(|address| own_ports(*address)).collect();
        ordered.retain(|address| strategy.allows(address));
        ordered.sort_unstable_by_key(|address| (address.is_ipv4() != (strategy == IpStrategy::Ipv4First), *address));
        ordered.dedup();
        let mut in_family = [0; 2];
        ordered.retain(|address| {
            let count = &mut in_family[usize::from(address.is_ipv4())];
            *count += 1;
            *count <= IN_FAMILY_MAX
        });
        (!ordered.is_empty()).then(|| Addresses {
            ordered: ordered.into(),
            ours,
            valid_until,
            is_secure: false,
            is_secure_alias: false,
            alias: None,
        })
    }

    /// Looked up in DNS: `is_secure` as [`is_secure`](Self::is_secure), and the end of the alias if the name is one.
    pub(super) fn found(self, is_secure: bool, alias: Option<Arc<str>>) -> Self {
        Addresses { is_secure, alias, ..self }
    }

    /// `is_secure_alias`: DNSSEC authenticates the host's name as an alias, but not the alias's target.
    pub(super) fn of_alias(self, is_secure_alias: bool) -> Self {
        Addresses { is_secure_alias, ..self }
    }

    /// True if they are authenticated by DNSSEC, aliases included. Never without [`Settings::trust_ad`](super::Settings::trust_ad).
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// True if the host can have TLSA records: its addresses are [secure](Self::is_secure), or its name is a secure
    /// alias. In the latter case the records are at the alias name only (RFC 7672 section 2.2.2).
    pub fn may_have_tlsa(&self) -> bool {
        self.is_secure || self.is_secure_alias
    }

    /// The name that the host's name is an alias of.
    pub fn alias(&self) -> Option<&Arc<str>> {
        self.alias.as_ref()
    }

    /// All addresses, in the strategy's order of families, then by number.
    pub fn all(&self) -> &[IpAddr] {
        &self.ordered
    }

    /// The order of one attempt: by family, random within each. A caller without a source of a family skips it.
    pub fn order(&self, random: &mut Random) -> Vec<IpAddr> {
        let first_is_ipv4 = self.ordered[0].is_ipv4();
        let mut keyed: Vec<_> =
            self.ordered.iter().map(|address| (address.is_ipv4() != first_is_ipv4, random.next(), *address)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, _, address)| address).collect()
    }

    /// True if one of the host's addresses is a listener of ours: mail for it would loop. `is_fixed`: an operator has
    /// named the host, so an address counts only if a listener names it, too.
    pub fn are_ours(&self, port: u16, is_fixed: bool) -> bool {
        self.ours.iter().any(|own| own.port == port && (own.is_named || !is_fixed))
    }

    /// Expiry, after which they are looked up again.
    pub fn valid_until(&self) -> Instant {
        self.valid_until
    }
}

/// Maximum addresses of one family for a host.
const IN_FAMILY_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str], strategy: IpStrategy) -> Option<Addresses> {
        let list = list.iter().map(|address| address.parse().unwrap());
        let own_ports =
            |address: IpAddr| if address.is_loopback() { vec![OwnPort { port: 25, is_named: false }] } else { vec![] };
        Addresses::new(list, strategy, own_ports, Instant::now())
    }

    fn all(list: &[&str], strategy: IpStrategy) -> Vec<String> {
        addresses(list, strategy).map_or_else(Vec::new, |found| found.all().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_strategy_orders_and_chooses() {
        let list = ["192.0.2.2", "2001:db8::1", "192.0.2.1", "::ffff:192.0.2.1"];
        for (strategy, expected) in [
            (IpStrategy::Ipv6First, vec!["2001:db8::1", "192.0.2.1", "192.0.2.2"]),
            (IpStrategy::Ipv4First, vec!["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
            (IpStrategy::Ipv4Only, vec!["192.0.2.1", "192.0.2.2"]),
            (IpStrategy::Ipv6Only, vec!["2001:db8::1"]),
        ] {
            assert_eq!(all(&list, strategy), expected, "{strategy:?}");
        }
    }

    #[test]
    fn addresses_that_are_no_hosts_are_dropped_within_a_bound() {
        let list = ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255"];
        assert_eq!(addresses(&list, IpStrategy::Ipv6First), None);
        let many: Vec<String> =
            (0..200).map(|number| format!("192.0.2.{number}")).chain(["2001:db8::1".into()]).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(all(&many, IpStrategy::Ipv4First).len(), IN_FAMILY_MAX + 1);
    }

    #[test]
    fn ours_in_a_family_that_is_not_used_count() {
        let of =
            |list: &[&str], port, is_fixed| addresses(list, IpStrategy::Ipv4Only).unwrap().are_ours(port, is_fixed);
        assert!(of(&["192.0.2.1", "::1"], 25, false));
        assert!(!of(&["192.0.2.1", "::1"], 26, false));
        assert!(!of(&["192.0.2.1", "::1"], 25, true));
        assert!(!of(&["192.0.2.1"], 25, false));
    }

    #[test]
    fn an_attempt_has_an_order_of_its_own_in_each_family() {
        let found =
            addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"], IpStrategy::Ipv6First).unwrap();
        let order = |seed| found.order(&mut Random::new(seed));
        assert!((0..100).all(|seed| order(seed) == order(seed) && order(seed)[..2].iter().all(IpAddr::is_ipv6)));
        assert!(
            (0..100).any(|seed| order(seed)[0] != order(0)[0]) && (0..100).any(|seed| order(seed)[2] != order(0)[2])
        );
    }
}
