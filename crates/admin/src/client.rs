//! The client's address: from the connection, or from a trusted proxy.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use posthaste_net::{IpNet, Peer};

/// The address that a client's wrong tokens are counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress(pub Option<IpAddr>);

/// Maximum proxies in a chain. In a longer chain the last of these addresses counts.
const HOPS_MAX: usize = 16;

impl ClientAddress {
    /// Follows the chain from the connection outwards while each address is one of `proxies`: the first other one is
    /// the client. A proxy that names nobody, or names different clients in `Forwarded` (RFC 7239) and
    /// `X-Forwarded-For`, counts as the client.
    pub(crate) fn of(peer: &Peer, headers: &HeaderMap, proxies: &[IpNet]) -> Self {
        let is_proxy = |ip: &IpAddr| proxies.iter().any(|network| network.contains(ip));
        let Some(mut client) = peer.ip() else { return Self(None) };
        if !is_proxy(&client) {
            return Self(Some(client));
        }
        let named = match (listed(headers, "forwarded", forwarded_for), listed(headers, "x-forwarded-for", plain)) {
            (named, other) if named.is_empty() => other,
            (named, other) if other.is_empty() || other.last() == named.last() => named,
            _ => return Self(Some(client)),
        };
        for next in named.into_iter().rev().take(HOPS_MAX) {
            let Some(next) = next else { break };
            client = next;
            if !is_proxy(&client) {
                break;
            }
        }
        Self(Some(client))
    }
}

/// True if the peer forwards a client's request but is not in `proxies`: its own address says nothing about the client.
pub(crate) fn is_unlisted_proxy(peer: &Peer, headers: &HeaderMap, proxies: &[IpNet]) -> bool {
    let is_listed = peer.ip().is_some_and(|ip| proxies.iter().any(|network| network.contains(&ip)));
    let is_of_proxies =
        |name: &str| ["forwarded", "via", "x-real-ip"].contains(&name) || name.starts_with("x-forwarded-");
    !is_listed && headers.keys().any(|name| is_of_proxies(name.as_str()))
}

/// Elements of a list over all fields of a name; `None` for each that is not an address.
fn listed(headers: &HeaderMap, name: &str, address: fn(&str) -> Option<IpAddr>) -> Vec<Option<IpAddr>> {
    let fields = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
    fields.flat_map(|field| field.split(',')).map(|element| address(element.trim())).collect()
}

/// The address in `for=` of an element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, node) = pairs.into_iter().find(|(key, _)| key.eq_ignore_ascii_case("for"))?;
    plain(node.strip_prefix('"').map_or(Some(node), |rest| rest.strip_suffix('"'))?)
}

/// An address, with or without a port, IPv6 with or without brackets.
fn plain(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let ip = text.parse().ok().or_else(bracketed).or_else(|| text.parse::<SocketAddr>().ok().map(|at| at.ip()));
    ip.map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(peer: &str, proxies: &[&str], fields: &[(&'static str, &str)]) -> (Peer, Vec<IpNet>, HeaderMap) {
        let remote = SocketAddr::new(peer.parse().unwrap(), 40_000);
        let proxies = proxies.iter().map(|text| posthaste_net::network(text).unwrap()).collect();
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        (Peer::Tcp { remote, local: remote }, proxies, headers)
    }

    fn check(peer: &str, proxies: &[&str], fields: &[(&'static str, &str)], expected: &str) {
        let (from, networks, headers) = read(peer, proxies, fields);
        let client = ClientAddress::of(&from, &headers, &networks);
        assert_eq!(client.0, Some(expected.parse().unwrap()), "{peer} {proxies:?} {fields:?}");
    }

    #[test]
    fn a_proxy_that_is_not_listed_is_no_client() {
        let check = |proxies: &[&str], name: &'static str, expected: bool| {
            let (from, networks, headers) = read("127.0.0.1", proxies, &[(name, "198.51.100.1")]);
            assert_eq!(is_unlisted_proxy(&from, &headers, &networks), expected, "{proxies:?} {name}");
        };
        for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"] {
            check(&[], name, true);
            check(&["192.0.2.1"], name, true);
            check(&["127.0.0.1"], name, false);
        }
        check(&[], "x-forwarder", false);
        check(&[], "user-agent", false);
    }

    #[test]
    fn only_a_trusted_proxy_names_the_client() {
        let (xff, forwarded) = ("x-forwarded-for", "forwarded");
        check("192.0.2.1", &[], &[(xff, "198.51.100.1")], "192.0.2.1");
        check("192.0.2.1", &["192.0.2.9"], &[(xff, "198.51.100.1")], "192.0.2.1");
        check("127.0.0.1", &["127.0.0.1"], &[], "127.0.0.1");
        check("127.0.0.1", &["127.0.0.1"], &[(xff, "203.0.113.5, 198.51.100.1")], "198.51.100.1");
        check("127.0.0.1", &["127.0.0.1", "10.0.0.0/8"], &[(xff, "203.0.113.5"), (xff, "10.0.0.7")], "203.0.113.5");
        check("127.0.0.1", &["127.0.0.1"], &[(xff, "nonsense")], "127.0.0.1");
        check("127.0.0.1", &["127.0.0.1"], &[(xff, "198.51.100.1, unknown")], "127.0.0.1");
        check("127.0.0.1", &["127.0.0.1"], &[(forwarded, "for=198.51.100.1;proto=https;by=_x")], "198.51.100.1");
        check("127.0.0.1", &["127.0.0.1"], &[(forwarded, "For=\"[2001:db8::1]:4711\"")], "2001:db8::1");
        check("127.0.0.1", &["127.0.0.1"], &[(forwarded, "proto=https")], "127.0.0.1");
        // What the client sends in one field does not count against what the proxy adds in the other.
        check("127.0.0.1", &["127.0.0.1"], &[(forwarded, "for=10.9.9.9"), (xff, "198.51.100.1")], "127.0.0.1");
        check("127.0.0.1", &["127.0.0.1"], &[(forwarded, "for=198.51.100.1"), (xff, "198.51.100.1")], "198.51.100.1");
        let all_proxies = vec!["10.0.0.1"; 1000].join(",");
        check("127.0.0.1", &["127.0.0.1", "10.0.0.0/8"], &[(xff, &all_proxies)], "10.0.0.1");
    }
}
