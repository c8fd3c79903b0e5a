//! Fixed next hops: where, over what, and as whom.

use std::sync::Arc;

use posthaste_smtp::Protocol;
use posthaste_smtp::sasl::Credentials;

use crate::session::TlsPolicy;

/// A fixed next hop.
#[derive(Debug, Clone)]
pub struct Route {
    /// For mail to this domain, or with a dot in front to the domains below it; empty for all.
    pub domain: String,
    /// A host, an address literal, or a domain with MX records if `use_mx`.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether MX records of `host` are looked up.
    pub use_mx: bool,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// `None`: in the clear.
    pub tls: Option<RouteTls>,
    /// With whose password. Sent over a connection as `tls` demands it; in the clear only if `tls` is `None`.
    pub auth: Option<Credentials>,
}

/// How connections to a next hop are encrypted.
#[derive(Debug, Clone)]
pub struct RouteTls {
    /// What is demanded.
    pub policy: TlsPolicy,
    /// From the first octet on (RFC 8314).
    pub is_implicit: bool,
    /// What is trusted: must fit the policy, as of [`Tls::config`](crate::session::Tls::config).
    pub config: Arc<rustls::ClientConfig>,
}

impl Route {
    /// SMTP to a host for all domains, in the clear, without a password.
    pub fn new(host: &str, port: u16) -> Self {
        Route {
            domain: String::new(),
            host: host.to_owned(),
            port,
            use_mx: false,
            protocol: Protocol::Smtp,
            tls: None,
            auth: None,
        }
    }

    pub(super) fn fits(&self, domain: &str) -> bool {
        match self.domain.strip_prefix('.') {
            Some(above) => domain.strip_suffix(above).is_some_and(|rest| rest.ends_with('.')),
            None => self.domain.is_empty() || self.domain == domain,
        }
    }

    /// What keeps its connections apart from those of others to the same hosts, for people; begins with a blank.
    pub(super) fn manner(&self) -> String {
        let mut manner = String::new();
        if self.protocol == Protocol::Lmtp {
            manner += " lmtp";
        }
        manner += match &self.tls {
            None => " in the clear",
            Some(RouteTls { policy: TlsPolicy::Opportunistic, .. }) => "",
            Some(RouteTls { policy: TlsPolicy::Required, .. }) => " encrypted",
            Some(RouteTls { policy: TlsPolicy::Verified, .. }) => " verified",
        };
        if let Some(auth) = &self.auth {
            manner += &format!(" as {}", auth.user);
        }
        manner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_fits_its_domain_or_those_below() {
        let fits = |route: &str, domain| Route { domain: route.into(), ..Route::new("", 25) }.fits(domain);
        assert!(fits("", "a.example") && fits("a.example", "a.example") && fits(".example", "a.example"));
        assert!(!fits("a.example", "b.a.example") && !fits(".example", "example") && !fits(".ample", "ex.example"));
    }
}
