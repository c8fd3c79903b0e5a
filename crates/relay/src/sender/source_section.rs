//! `[[relay.source]]`, `[[relay.pool]]` and `[[relay.tls_policy]]` of the configuration.

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use posthaste_message::DateTime;
use posthaste_smtp::sasl::Credentials;
use serde::{Deserialize, Serialize};

use super::route_section::{RouteEncryption, RouteError, TlsConfigs, password, system_authorities};
use super::{OutgoingSource, Pool, TlsRule, WarmUp};
use crate::session::Proxy;

/// A place that mail leaves from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// Its name, for pools and logs. Default: (required).
    pub name: String,
    /// The address that IPv4 connections are made from. Not set: none, and with neither address the system chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// Like `ipv4`, for IPv6 connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Its name in EHLO. Default: `host_name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ehlo: Option<String>,
    /// Proxy that makes its connections: `"socks5://192.0.2.7:1080"`, or `"proxy://192.0.2.7:2000"` for the PROXY
    /// protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Name for the login at the SOCKS5 proxy, together with `proxy_password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_username: Option<String>,
    /// A file with the password for it in its first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_password_file: Option<PathBuf>,
    /// Limit of messages on its first days, such as `{ since = "2026-11-01", per_day = [50, 100, 500] }`. Not set: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUpSection>,
}

/// Limit of a source on its first days.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmUpSection {
    /// The first day (UTC), such as `2026-11-01`.
    pub since: String,
    /// Messages on the first day, the second and so on; after the last there is no limit.
    pub per_day: Vec<u32>,
}

/// Sources that share mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSection {
    /// Its name, for routes. Default: (required).
    pub name: String,
    /// Names of sources with their weights, such as `{ mx1 = 3, mx2 = 1 }`. Default: (required).
    pub sources: BTreeMap<String, u32>,
    /// The tenants whose mail it sends. Not set: all mail. `[]`: only mail that names the pool. The first pool that
    /// fits is used; without any, the system chooses the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
}

/// How the mail hosts of some domains are spoken to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// For this domain, or with a dot in front for the domains below it. Not set: for all.
    #[serde(default)]
    pub domain: String,
    /// `"off"`, `"opportunistic"`, `"required"` or `"verified"`, as `tls` of routes. Default: (required).
    pub policy: RouteEncryption,
    /// The name that the certificate must have, for `"verified"`. Not set: that of the mail host, which is only as
    /// trustworthy as DNS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The authorities that are trusted, in PEM. Default: `"/etc/ssl/certs/ca-certificates.crt"`.
    #[serde(default = "system_authorities")]
    pub ca_file: PathBuf,
    /// Our certificates in PEM, the own one first, for hosts that ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The private key of the first of them, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

/// A key and its mistake.
pub(super) type Mistake = (&'static str, String);

impl SourceSection {
    pub(super) fn mistake(&self, others: &[SourceSection]) -> Option<Mistake> {
        let is_same = |other: &&SourceSection| other.name == self.name;
        let is_bare = self.ipv4.is_none() && self.ipv6.is_none();
        let is_mistake = |is: bool, key, text: &str| is.then(|| (key, text.to_owned()));
        is_mistake(self.name.is_empty(), "name", "a source needs a name")
            .or_else(|| is_mistake(others.iter().filter(is_same).count() > 1, "name", "two sources have this name"))
            .or_else(|| {
                let is_name = |ehlo: &String| posthaste_message::address::is_domain(ehlo) && ehlo.is_ascii();
                is_mistake(!self.ehlo.as_ref().is_none_or(is_name), "ehlo", "not a host name")
            })
            .or_else(|| self.proxy_parts().err().map(|text| ("proxy", text)))
            .or_else(|| {
                let is_header = matches!(self.proxy_parts(), Ok(Some((false, _))));
                is_mistake(is_header && is_bare, "proxy", "the PROXY protocol needs `ipv4` or `ipv6` to connect from")
            })
            .or_else(|| {
                let is_socks5 = matches!(self.proxy_parts(), Ok(Some((true, _))));
                let name = self.proxy_username.is_some();
                let file = self.proxy_password_file.is_some();
                is_mistake(name != file, "proxy_username", "it belongs together with `proxy_password_file`")
                    .or_else(|| is_mistake(name && !is_socks5, "proxy_username", "only for a `socks5://` proxy"))
            })
            .or_else(|| self.warm_up.as_ref()?.read().err().map(|text| ("warm_up", text)))
    }

    /// Parses the proxy: true for SOCKS5, and its address.
    fn proxy_parts(&self) -> Result<Option<(bool, SocketAddr)>, String> {
        let Some(proxy) = &self.proxy else { return Ok(None) };
        let (is_socks5, server) = match (proxy.strip_prefix("socks5://"), proxy.strip_prefix("proxy://")) {
            (Some(server), _) => (true, server),
            (None, Some(server)) => (false, server),
            (None, None) => return Err("write socks5://ADDRESS:PORT or proxy://ADDRESS:PORT".to_owned()),
        };
        let server =
            server.parse().map_err(|_| format!("`{server}` is not an address with a port, such as 192.0.2.7:1080"))?;
        Ok(Some((is_socks5, server)))
    }

    pub(super) fn read(&self) -> Result<OutgoingSource, RouteError> {
        let password = self.proxy_password_file.as_deref().map(password).transpose()?;
        let login = self.proxy_username.clone().zip(password).map(|(user, password)| Credentials::new(user, password));
        let proxy = self.proxy_parts().ok().flatten().map(|(is_socks5, server)| {
            if is_socks5 { Proxy::Socks5 { server, login } } else { Proxy::Header { server } }
        });
        let warm_up = self.warm_up.as_ref().and_then(|warm_up| warm_up.read().ok());
        let ipv4 = self.ipv4;
        let ipv6 = self.ipv6;
        let ehlo = self.ehlo.clone();
        Ok(OutgoingSource { name: self.name.as_str().into(), ipv4, ipv6, ehlo, proxy, warm_up })
    }
}

impl WarmUpSection {
    fn read(&self) -> Result<WarmUp, String> {
        let since = day(&self.since).ok_or_else(|| format!("`{}` is not a day; write 2026-11-01", self.since))?;
        match &*self.per_day {
            [] => Err("`per_day` needs a number for each day".to_owned()),
            days if days.len() > 1000 => Err("`per_day` has more than 1000 days".to_owned()),
            days if days.iter().any(|messages| !(1..=1_000_000_000).contains(messages)) => {
                Err("`per_day` has numbers from 1 to 1000000000".to_owned())
            }
            days => Ok(WarmUp { since, per_day: days.to_vec() }),
        }
    }
}

/// Days from 1970 to a day such as `2026-11-01`.
fn day(text: &str) -> Option<u32> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = text.split('-');
    let year = parts.next()?;
    let month = parts.next()?;
    let day = parts.next()?;
    let is_plain = [(year, 4), (month, 2), (day, 2)]
        .iter()
        .all(|(part, len)| part.len() == *len && part.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_plain || parts.next().is_some() {
        return None;
    }
    let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
    let date = DateTime::parse(format!("{day} {month} {year} 00:00:00 +0000").as_bytes())?;
    u32::try_from(date.unix_secs() / 86_400).ok()
}

impl PoolSection {
    pub(super) fn mistake(&self, pools: &[PoolSection], sources: &[SourceSection]) -> Option<Mistake> {
        let names: HashSet<&str> = sources.iter().map(|source| &*source.name).collect();
        let unknown = self.sources.keys().find(|name| !names.contains(&***name));
        match unknown {
            _ if self.name.is_empty() => Some(("name", "a pool needs a name".to_owned())),
            _ if pools.iter().filter(|pool| pool.name == self.name).count() > 1 => {
                Some(("name", "two pools have this name".to_owned()))
            }
            _ if self.sources.is_empty() => Some(("sources", "a pool needs a source".to_owned())),
            Some(name) => Some(("sources", format!("there is no source `{name}`"))),
            None if self.sources.values().any(|weight| !(1..=1_000_000).contains(weight)) => {
                Some(("sources", "a weight is 1 to 1000000".to_owned()))
            }
            None => None,
        }
    }

    pub(super) fn read(&self) -> Pool {
        let sources = self.sources.iter().map(|(name, weight)| (name.as_str().into(), *weight)).collect();
        Pool { name: self.name.clone(), tenants: self.tenants.clone(), sources }
    }
}

impl TlsSection {
    pub(super) fn mistake(&self) -> Option<Mistake> {
        let is_verified = self.policy == RouteEncryption::Verified;
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Some(("cert_file", "`cert_file` and `key_file` belong together".to_owned()));
        }
        (self.name.is_some() && !is_verified).then(|| ("name", "only with `verified`".to_owned()))
    }

    pub(super) fn read(&self, configs: &mut TlsConfigs) -> Result<TlsRule, RouteError> {
        let own = self.cert_file.as_deref().zip(self.key_file.as_deref());
        let tls = configs.tls(self.policy, &self.ca_file, own, self.name.as_deref())?;
        Ok(TlsRule { domain: self.domain.to_lowercase(), tls })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Section;
    use super::*;

    fn checked(text: &str) -> Result<Section, String> {
        let section: Section = toml::from_str(text).map_err(|error| error.to_string())?;
        section.check().map_err(|problem| format!("{problem:?}"))?;
        assert_eq!(toml::from_str::<Section>(&toml::to_string(&section).unwrap()).unwrap(), section);
        Ok(section)
    }

    #[test]
    fn sources_pools_and_policies_are_read() {
        let text = "[[source]]\nname = 'one'\nipv4 = '192.0.2.1'\nipv6 = '2001:db8::1'\nehlo = 'one.example'\n\
                    warm_up = { since = '2024-02-29', per_day = [50, 100] }\n\
                    [[source]]\nname = 'far'\nproxy = 'socks5://[2001:db8::7]:1080'\n\
                    [[source]]\nname = 'told'\nipv4 = '192.0.2.1'\nproxy = 'proxy://192.0.2.7:2000'\n\
                    [[pool]]\nname = 'bulk'\ntenants = ['t']\nsources = { one = 3, far = 1 }\n\
                    [[tls_policy]]\ndomain = '.X.example'\npolicy = 'required'\n[[tls_policy]]\npolicy = 'off'\n\
                    [[route]]\nhost = ['a.example', '[192.0.2.9]']\npool = 'bulk'\nfallback = true\nafter_attempts = 3\ntenants = ['t']\n";
        let routing = checked(text).unwrap().routing().unwrap();
        assert_eq!(routing.sources[0].warm_up, Some(WarmUp { since: 19_782, per_day: vec![50, 100] }));
        let server = "[2001:db8::7]:1080".parse().unwrap();
        assert_eq!(routing.sources[1].proxy, Some(Proxy::Socks5 { server, login: None }));
        assert_eq!(routing.sources[2].proxy, Some(Proxy::Header { server: "192.0.2.7:2000".parse().unwrap() }));
        assert_eq!(routing.pools[0].sources, [("far".into(), 1), ("one".into(), 3)]);
        assert_eq!((&*routing.tls[0].domain, routing.tls[0].tls.is_some()), (".x.example", true));
        assert!(routing.tls[1].tls.is_none());
        let route = &routing.routes[0];
        assert!(route.is_fallback && route.hosts.len() == 2 && route.tenants == ["t"]);
        assert_eq!(route.after_attempts, 3);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("[[source]]\nname = ''", "name"),
            ("[[route]]\nhost = '192.0.2.7'", "host"),
            ("[[route]]\nhost = ['a.example', '2001:db8::7']", "host"),
            ("[[route]]\nhost = '[2001:db8::7]'", "host"),
            ("[[route]]\nhost = 'a b'", "host"),
            ("[[route]]\nhost = 'a.example'\nafter_attempts = 3", "only of a fallback"),
            ("[[route]]\nhost = 'a.example'\nfallback = true\nafter_attempts = 0", "1 to 200"),
            ("[[source]]\nname = 'a'\n[[source]]\nname = 'a'", "two sources"),
            ("[[source]]\nname = 'a'\nipv4 = '::1'", "ipv4"),
            ("[[source]]\nname = 'a'\nehlo = 'a b'", "host name"),
            ("[[source]]\nname = 'a'\nproxy = 'http://192.0.2.1:1'", "socks5://"),
            ("[[source]]\nname = 'a'\nproxy = 'socks5://a.example:1'", "not an address"),
            ("[[source]]\nname = 'a'\nproxy = 'proxy://192.0.2.1:1'", "ipv4"),
            ("[[source]]\nname = 'a'\nproxy_username = 'x'", "together"),
            ("[[source]]\nname = 'a'\nproxy_username = 'x'\nproxy_password_file = 'y'", "socks5"),
            ("[[source]]\nname = 'a'\nwarm_up = { since = '2025-02-29', per_day = [1] }", "2025-02-29"),
            ("[[source]]\nname = 'a'\nwarm_up = { since = '2025-2-9', per_day = [1] }", "not a day"),
            ("[[source]]\nname = 'a'\nwarm_up = { since = '2025-02-09', per_day = [] }", "per_day"),
            ("[[source]]\nname = 'a'\nwarm_up = { since = '2025-02-09', per_day = [0] }", "from 1"),
            ("[[pool]]\nname = 'p'\nsources = {}", "needs a source"),
            ("[[pool]]\nname = 'p'\nsources = { a = 1 }", "no source `a`"),
            ("[[source]]\nname = 'a'\n[[pool]]\nname = 'p'\nsources = { a = 0 }", "weight"),
            ("[[tls_policy]]\npolicy = 'some'", "policy"),
            ("[[tls_policy]]\npolicy = 'required'\nname = 'x.example'", "verified"),
            ("[[tls_policy]]\npolicy = 'required'\ncert_file = 'x'", "together"),
            ("[[route]]\nhost = []", "needs a host"),
            ("[[route]]\nhost = ['a.example', 'b.example']\nmx = true", "one host"),
            ("[[route]]\nhost = 'a.example'\npool = 'p'", "no pool `p`"),
        ] {
            let said = checked(text).expect_err(text);
            assert!(said.contains(word), "{text}: {said}");
        }
    }
}
