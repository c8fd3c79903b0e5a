//! Fixed next hops: host, transport, login.

use std::sync::Arc;

use posthaste_smtp::Protocol;
use posthaste_smtp::sasl::Credentials;

use crate::session::TlsPolicy;
use posthaste_queue::QueueName;

/// A fixed next hop.
#[derive(Debug, Clone)]
pub struct FixedRoute {
    /// Domain of the mail, or with a leading dot the domains below it; empty for all.
    pub domain: String,
    /// Tenants whose mail uses the route; empty for all.
    pub tenants: Vec<String>,
    /// Hosts or address literals, the first tried first; or a domain with MX records if `use_mx`.
    pub hosts: Vec<String>,
    /// Port of the hosts.
    pub port: u16,
    /// True if MX records of the first of `hosts` are looked up.
    pub use_mx: bool,
    /// Used only while no host of the usual next hop can be reached.
    pub is_fallback: bool,
    /// For a fallback: recipients use it after this many attempts, too; 0: only if the usual next hop is unreachable.
    pub after_attempts: u8,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Encryption. `None`: in the clear.
    pub tls: Option<RouteTls>,
    /// Login for AUTH. Sent only over a connection that meets `tls`; in the clear only if `tls` is `None`.
    pub auth: Option<Credentials>,
    /// Pool of the sources; `None`: the tenant's pool.
    pub pool: Option<String>,
}

/// Transport settings for the hosts of some domains without a [`FixedRoute`].
#[derive(Debug, Clone)]
pub struct TlsRule {
    /// A pattern like [`FixedRoute::domain`].
    pub domain: String,
    /// Encryption. `None`: in the clear.
    pub tls: Option<RouteTls>,
}

/// Encryption to a next hop.
#[derive(Debug, Clone)]
pub struct RouteTls {
    /// The demand on TLS.
    pub policy: TlsPolicy,
    /// TLS from the first octet on (RFC 8314).
    pub is_implicit: bool,
    /// Trusted certificates: they must fit the policy, as for [`SessionTls::config`](crate::session::SessionTls::config).
    pub config: Arc<rustls::ClientConfig>,
    /// Name that the certificate must have; `None`: the host's name.
    pub name: Option<String>,
}

impl RouteTls {
    fn is_as(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.is_implicit == other.is_implicit
            && Arc::ptr_eq(&self.config, &other.config)
            && self.name == other.name
    }
}

/// Transport settings for the hosts of a site. Equal hosts with different settings are different sites.
#[derive(Debug, Clone)]
pub(super) struct Manner {
    pub port: u16,
    pub protocol: Protocol,
    pub tls: Option<RouteTls>,
    pub auth: Option<Credentials>,
    /// True if the domain's policy demands these settings (RFC 8461).
    pub is_mta_sts: bool,
    /// DNSSEC authenticates the host list: the TLSA records of each host count (RFC 7672), and take precedence over the
    /// rest.
    pub has_dane: bool,
    /// Names of the recipient domain, its alias included, if it has its own site: DANE-TA accepts a certificate with
    /// one of them (RFC 7672 section 3.2.2). Otherwise empty.
    pub next_hop: Arc<[Arc<str>]>,
    /// Suffix of these settings in the name of a site; unique among the settings in force.
    pub text: String,
}

impl Manner {
    pub fn is_as(&self, other: &Self) -> bool {
        let is_tls = match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_as(other),
            _ => false,
        };
        let rest = |of: &Self| (of.port, of.protocol, of.is_mta_sts, of.has_dane);
        is_tls && rest(self) == rest(other) && self.auth == other.auth && self.next_hop == other.next_hop
    }

    /// Settings for hosts found by MX records.
    pub fn of_hosts(port: u16, tls: Option<RouteTls>) -> Self {
        Manner {
            port,
            protocol: Protocol::Smtp,
            tls,
            auth: None,
            is_mta_sts: false,
            has_dane: false,
            next_hop: Arc::default(),
            text: port_text(port),
        }
    }

    /// These settings for a list of hosts that DNSSEC authenticates. `None`: without TLS, records have no effect.
    pub fn with_dane(&self) -> Option<Self> {
        let text = format!("{} dnssec", self.text);
        self.tls.is_some().then(|| Self { has_dane: true, text, ..self.clone() })
    }

    /// These settings for the mail of one domain, by its names.
    pub fn with_next_hop(&self, next_hop: Arc<[Arc<str>]>) -> Self {
        let text = format!("{} for {}", self.text, next_hop.join(" = "));
        Self { next_hop, text, ..self.clone() }
    }

    /// Settings for hosts of a domain with a rule.
    pub fn of_rule(port: u16, rule: &TlsRule) -> Self {
        let text = port_text(port) + &encryption(rule.tls.as_ref());
        Manner { text, ..Manner::of_hosts(port, rule.tls.clone()) }
    }

    pub fn of_route(route: &FixedRoute) -> Self {
        Manner {
            port: route.port,
            protocol: route.protocol,
            tls: route.tls.clone(),
            auth: route.auth.clone(),
            is_mta_sts: false,
            has_dane: false,
            next_hop: Arc::default(),
            text: port_text(route.port) + &route.manner(),
        }
    }
}

fn port_text(port: u16) -> String {
    if port == 25 { String::new() } else { format!(" :{port}") }
}

fn encryption(tls: Option<&RouteTls>) -> String {
    let Some(tls) = tls else { return " in the clear".to_owned() };
    let text = match tls.policy {
        TlsPolicy::Opportunistic => "",
        TlsPolicy::Required => " encrypted",
        TlsPolicy::Verified => " verified",
    };
    tls.name.as_ref().map_or_else(|| text.to_owned(), |name| format!("{text} as {name}"))
}

impl FixedRoute {
    /// SMTP to a host for all domains, in the clear, without a login.
    pub fn new(host: &str, port: u16) -> Self {
        FixedRoute {
            domain: String::new(),
            tenants: Vec::new(),
            hosts: vec![host.to_owned()],
            port,
            use_mx: false,
            is_fallback: false,
            after_attempts: 0,
            protocol: Protocol::Smtp,
            tls: None,
            auth: None,
            pool: None,
        }
    }

    pub(super) fn fits(&self, name: &QueueName) -> bool {
        let is_tenant = self.tenants.is_empty() || self.tenants.iter().any(|tenant| **tenant == *name.tenant);
        is_tenant && is_domain(&self.domain, &name.domain)
    }

    /// The domain whose MX hosts mail goes to; `None`: fixed hosts.
    pub(super) fn domain_asked(&self) -> Option<&str> {
        self.hosts.first().filter(|_| self.use_mx).map(String::as_str)
    }

    /// A readable suffix that separates its connections from others to the same hosts; begins with a blank.
    pub(super) fn manner(&self) -> String {
        let mut manner = String::new();
        if self.protocol == Protocol::Lmtp {
            manner += " lmtp";
        }
        manner += &encryption(self.tls.as_ref());
        if let Some(auth) = &self.auth {
            manner += &format!(" as {}", auth.user);
        }
        manner
    }
}

/// True if a pattern covers a domain: equal, or with a leading dot above it; empty covers all.
pub(super) fn is_domain(pattern: &str, domain: &str) -> bool {
    match pattern.strip_prefix('.') {
        Some(above) => domain.strip_suffix(above).is_some_and(|rest| rest.ends_with('.')),
        None => pattern.is_empty() || pattern == domain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_fits_its_domain_or_those_below() {
        let name = |tenant: &str, domain: &str| QueueName {
            tenant: tenant.into(),
            campaign: "".into(),
            pool: "".into(),
            domain: domain.into(),
        };
        let fits = |route: &str, domain| {
            FixedRoute { domain: route.into(), ..FixedRoute::new("", 25) }.fits(&name("t", domain))
        };
        assert!(fits("", "a.example") && fits("a.example", "a.example") && fits(".example", "a.example"));
        assert!(!fits("a.example", "b.a.example") && !fits(".example", "example") && !fits(".ample", "ex.example"));
        let of_tenant = FixedRoute { tenants: vec!["t".into()], ..FixedRoute::new("", 25) };
        assert!(of_tenant.fits(&name("t", "a.example")) && !of_tenant.fits(&name("", "a.example")));
    }
}
