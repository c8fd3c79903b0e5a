//! Networks in text form, and values that depend on a client's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ipnet::IpNet;

/// The reason why a text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Not a network.
    #[error(
        "`{0}` is not a network: write an address, such as 192.0.2.7, or a network, such as 10.0.0.0/8 or 2001:db8::/32"
    )]
    NotANetwork(String),
    /// Address bits after the prefix are set, so either the address or the prefix may be wrong.
    #[error("`{written}` has bits after its prefix: write {network} for the network, or {address} for the one address")]
    HostBits {
        /// The network as written.
        written: String,
        /// The network with these bits cleared.
        network: IpNet,
        /// The address alone.
        address: IpAddr,
    },
}

/// Parses `10.0.0.0/8`, or an address, which is a network of one.
///
/// # Errors
/// See [`NetworkError`].
pub fn network(text: &str) -> Result<IpNet, NetworkError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_canonical().into());
    }
    let network: IpNet = text.parse().map_err(|_| NetworkError::NotANetwork(text.to_owned()))?;
    if network.trunc() == network {
        Ok(network)
    } else {
        Err(NetworkError::HostBits { written: text.to_owned(), network: network.trunc(), address: network.addr() })
    }
}

/// A default value, and others for some networks: the smallest network of a client decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ByNetwork<T> {
    default: T,
    /// Longest prefix first.
    networks: Vec<(IpNet, T)>,
}

impl<T> ByNetwork<T> {
    /// `default` applies where no network has a value. Of two values for one network the first counts.
    pub fn new(default: T, mut networks: Vec<(IpNet, T)>) -> Self {
        networks.sort_by_key(|(network, _)| std::cmp::Reverse(network.prefix_len()));
        Self { default, networks }
    }

    /// Value for a client. A client without an address, of a UNIX socket, has the default.
    pub fn get(&self, ip: Option<IpAddr>) -> &T {
        self.of_network(ip).map_or(&self.default, |(_, value)| value)
    }

    /// The value of the smallest network of the client, and that network.
    pub fn of_network(&self, ip: Option<IpAddr>) -> Option<(IpNet, &T)> {
        let ip = ip?.to_canonical();
        self.networks.iter().find(|(network, _)| network.contains(&ip)).map(|(network, value)| (*network, value))
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.default).chain(self.networks.iter().map(|(_, value)| value))
    }

    /// Applies `change` to all values; the networks stay.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> ByNetwork<U> {
        let networks = self.networks.into_iter().map(|(network, value)| (network, change(value))).collect();
        ByNetwork { default: change(self.default), networks }
    }
}

impl<T> From<T> for ByNetwork<T> {
    fn from(default: T) -> Self {
        Self { default, networks: Vec::new() }
    }
}

/// True if the address is in one of `networks`.
pub(crate) fn is_in(networks: &[IpNet], ip: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&ip.to_canonical()))
}

/// True if the union of `networks` is too large to be one operator's clients: more global addresses than an IPv4 /8, or
/// than an IPv6 /16. Addresses without a meaning beyond a site do not count: private, shared (RFC 6598), loopback and
/// link-local ones.
pub fn is_much_of_the_internet(networks: &[IpNet]) -> bool {
    // The result is disjoint.
    let union = IpNet::aggregate(&networks.to_vec());
    let global = |is_v4: bool| {
        let of_family = union.iter().filter(|network| network.addr().is_ipv4() == is_v4);
        of_family.map(global_addresses).fold(0, u128::saturating_add)
    };
    global(true) > 1 << (32 - 8) || global(false) > 1 << (128 - 16)
}

fn global_addresses(network: &IpNet) -> u128 {
    let local = NOT_GLOBAL.map(|(address, prefix_len)| IpNet::new_assert(address, prefix_len));
    if local.iter().any(|local| local.contains(network)) {
        return 0;
    }
    let inside = local.iter().filter(|local| network.contains(*local)).map(addresses);
    addresses(network).saturating_sub(inside.sum())
}

fn addresses(network: &IpNet) -> u128 {
    1_u128.checked_shl((network.max_prefix_len() - network.prefix_len()).into()).unwrap_or(u128::MAX)
}

/// RFC 6890, as far as hosts have such addresses.
const NOT_GLOBAL: [(IpAddr, u8); 9] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_of_networks_is_measured_without_local_ones() {
        let check = |texts: &[&str], expected: bool| {
            let networks: Vec<IpNet> = texts.iter().map(|text| network(text).unwrap()).collect();
            assert_eq!(is_much_of_the_internet(&networks), expected, "{texts:?}");
        };
        check(&[], false);
        check(&["0.0.0.0/0"], true);
        check(&["::/0"], true);
        check(&["0.0.0.0/1", "128.0.0.0/1"], true);
        check(&["12.0.0.0/8"], false);
        check(&["12.0.0.0/7"], true);
        check(&["12.0.0.0/8", "192.0.2.7"], true);
        check(&["12.0.0.0/8", "12.7.0.0/16", "12.0.0.1"], false);
        check(&["10.0.0.0/7"], false);
        check(&["8.0.0.0/6"], true);
        check(
            &["10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"],
            false,
        );
        check(&["2000::/16"], false);
        check(&["2000::/15"], true);
        check(&["2000::/16", "2001:db8::1"], true);
        check(&["::1", "fc00::/7", "fe80::/10", "2000::/16", "12.0.0.0/8"], false);
        check(&["fc00::/6"], true);
        // Each network of a list of all /16 is small.
        let all: Vec<String> = (0..=255).flat_map(|a| (0..=255).map(move |b| format!("{a}.{b}.0.0/16"))).collect();
        check(&all.iter().map(String::as_str).collect::<Vec<_>>(), true);
    }

    #[test]
    fn the_smallest_network_decides() {
        let all = [("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("10.1.2.3", 3), ("2001:db8::/32", 4)];
        let values = ByNetwork::new(0, all.map(|(text, value)| (network(text).unwrap(), value)).to_vec());
        let check = |ip: &str, expected: i32| assert_eq!(*values.get(Some(ip.parse().unwrap())), expected, "{ip}");
        check("10.2.0.1", 1);
        check("10.1.0.1", 2);
        check("10.1.2.3", 3);
        check("::ffff:10.1.2.3", 3);
        check("2001:db8::1", 4);
        check("192.0.2.1", 0);
        assert_eq!(*values.get(None), 0);
    }

    #[test]
    fn a_network_that_cannot_be_meant_is_explained() {
        let error = |text: &str| network(text).unwrap_err().to_string();
        assert_eq!(
            error("10.1.2.3/8"),
            "`10.1.2.3/8` has bits after its prefix: write 10.0.0.0/8 for the network, or 10.1.2.3 for the one address"
        );
        for text in ["", "10.0.0.0/33", "10.0.0", "localhost", "10.0.0.0/ 8", "2001:db8::/129"] {
            assert!(error(text).contains("is not a network: "), "{text}");
        }
        assert_eq!(network("::ffff:192.0.2.1").unwrap().to_string(), "192.0.2.1/32");
    }
}
