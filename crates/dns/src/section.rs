use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds};
use serde::{Deserialize, Deserializer, Serialize, de};

/// `[dns]` of the configuration: how mail hosts are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Resolvers, such as `["192.0.2.53", "192.0.2.54:5353"]`; none: those of `/etc/resolv.conf`.
    #[serde(deserialize_with = "servers")]
    pub servers: Vec<SocketAddr>,
    /// A file in the form of `/etc/hosts`; names in it are not asked for. Default: not set.
    pub hosts_file: Option<PathBuf>,
    /// Addresses of names, such as `{ "mx.example.org" = ["192.0.2.1"] }`; these count before the file.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// `true`: the bit AD of answers is believed, and [DANE](relay.md#dane) is in force. Only for resolvers on this machine that validate DNSSEC.
    pub trust_ad: bool,
    /// Addresses that are used: `ipv6-first`, `ipv4-first`, `ipv4-only` or `ipv6-only`.
    pub ip: IpStrategy,
    /// Time for a question, repetitions included.
    #[serde(deserialize_with = "values::secs")]
    pub timeout_secs: u64,
    /// Questions in flight; others wait. [Slow ones](dns.md#names-that-do-not-answer) have half of it.
    #[serde(deserialize_with = "values::count")]
    pub questions_max: usize,
    /// Mail hosts of a domain that are used, at most 200.
    #[serde(deserialize_with = "values::count")]
    pub mx_hosts_max: usize,
    /// Domains in the cache.
    #[serde(deserialize_with = "values::count")]
    pub domains_max: usize,
    /// Hosts in the cache.
    #[serde(deserialize_with = "values::count")]
    pub hosts_max: usize,
    /// Shortest time that an answer is used.
    #[serde(deserialize_with = "values::secs")]
    pub ttl_min_secs: u64,
    /// Longest time that an answer is used.
    #[serde(deserialize_with = "values::secs")]
    pub ttl_max_secs: u64,
    /// Longest time that a negative answer is used.
    #[serde(deserialize_with = "values::secs")]
    pub negative_ttl_max_secs: u64,
    /// Time until a question is asked again that got no answer.
    #[serde(deserialize_with = "values::secs")]
    pub failure_secs: u64,
}

/// The addresses of a host that are used, and their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpStrategy {
    /// All, IPv6 first.
    #[default]
    Ipv6First,
    /// All, IPv4 first.
    Ipv4First,
    /// Only IPv4.
    Ipv4Only,
    /// Only IPv6.
    Ipv6Only,
}

impl IpStrategy {
    /// True if addresses of the family of `address` are used.
    pub fn allows(self, address: &IpAddr) -> bool {
        if address.is_ipv4() { self != IpStrategy::Ipv6Only } else { self != IpStrategy::Ipv4Only }
    }
}

impl Table for Settings {
    const NAME: &str = "dns";
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            hosts_file: None,
            hosts: BTreeMap::new(),
            trust_ad: false,
            ip: IpStrategy::default(),
            timeout_secs: 10,
            questions_max: 256,
            mx_hosts_max: 32,
            domains_max: 100_000,
            hosts_max: 100_000,
            ttl_min_secs: 30,
            ttl_max_secs: 86_400,
            negative_ttl_max_secs: 900,
            failure_secs: 30,
        }
    }
}

impl Settings {
    /// Validates the section.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            Self::NAME,
            &[
                ("timeout_secs", self.timeout_secs, 1, 300),
                ("questions_max", self.questions_max as u64, 1, 10_000),
                ("mx_hosts_max", self.mx_hosts_max as u64, 1, 200),
                ("domains_max", self.domains_max as u64, 2, 100_000_000),
                ("hosts_max", self.hosts_max as u64, 2, 100_000_000),
                ("ttl_min_secs", self.ttl_min_secs, 0, 3600),
                ("ttl_max_secs", self.ttl_max_secs, self.ttl_min_secs, A_YEAR),
                ("negative_ttl_max_secs", self.negative_ttl_max_secs, self.ttl_min_secs, A_YEAR),
                ("failure_secs", self.failure_secs, 1, 300),
            ],
        )
    }
}

/// The port of DNS.
const PORT: u16 = 53;

fn servers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let read = |text: &String| {
        let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
        let bad = || {
            de::Error::custom(format!("`{text}` is not an address of a resolver; write 192.0.2.53 or 192.0.2.53:53"))
        };
        address.or_else(|_| text.parse()).map_err(|_| bad())
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_and_checked() {
        let text = "servers = ['192.0.2.53', '[2001:db8::53]:5353']\nip = 'ipv4-only'\nttl_max_secs = '1h'\n[hosts]\n\"mx.example\" = ['127.0.0.1']\n";
        let settings: Settings = toml::from_str(text).unwrap();
        assert_eq!(
            settings.servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["192.0.2.53:53", "[2001:db8::53]:5353"]
        );
        assert_eq!((settings.ip, settings.ttl_max_secs, settings.hosts.len()), (IpStrategy::Ipv4Only, 3600, 1));
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(toml::from_str::<Settings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    }

    #[test]
    fn mistakes_are_refused() {
        for text in ["server = []", "servers = ['localhost']", "ip = 'ipv5'", "[hosts]\na = ['b']"] {
            assert!(toml::from_str::<Settings>(text).is_err(), "{text}");
        }
        for text in
            ["timeout_secs = 0", "questions_max = 0", "ttl_max_secs = 10", "failure_secs = 301", "mx_hosts_max = 201"]
        {
            assert!(toml::from_str::<Settings>(text).unwrap().check().is_err(), "{text}");
        }
    }
}
