//! The bounds of a token: its tenant, sender domains and client networks.

use std::net::IpAddr;

use posthaste_net::{IpNet, network};
use posthaste_units::is_name;

use crate::scope::Scope;

/// Restrictions of a token besides scopes and expiry. By default there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBounds {
    /// The only tenant whose mail is visible to the token.
    pub tenant: Option<String>,
    /// Allowed sender domains, in lower case; a leading dot means all subdomains.
    pub sender_domains: Vec<String>,
    /// Networks whose clients may use it.
    pub networks: Vec<IpNet>,
}

/// Why bounds are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenBoundsError {
    /// The tenant's name is invalid.
    #[error("`{0}` is not a name of a tenant: 1 to 100 visible characters of ASCII, without commas")]
    Tenant(String),
    /// A domain is invalid.
    #[error("`{0}` is not a domain of senders, such as example.org, or .example.org for those below it")]
    Domain(String),
    /// A network is invalid.
    #[error("{0}")]
    Network(String),
    /// The scope concerns the whole server, so a tenant's token cannot have it.
    #[error("a token of a tenant cannot have the scope {0}, which is about the whole server")]
    WholeServer(Scope),
}

/// Maximum entries of a list in the file.
const LIST_MAX: usize = 100;

impl TokenBounds {
    /// Parses bounds from the command line.
    ///
    /// # Errors
    /// See [`TokenBoundsError`].
    pub fn parse(tenant: Option<&str>, domains: &[String], networks: &[String]) -> Result<Self, TokenBoundsError> {
        let cut = |text: &str| text.chars().take(100).collect::<String>();
        let tenant = tenant.map(|name| {
            if is_name(name) && !name.contains(',') && name != NONE {
                Ok(name.to_owned())
            } else {
                Err(TokenBoundsError::Tenant(cut(name)))
            }
        });
        let domain = |text: &String| {
            let name = text.strip_prefix('.').unwrap_or(text);
            let is_label = |label: &str| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            };
            if name.len() < 254 && name.split('.').all(is_label) && name != NONE {
                Ok(text.to_ascii_lowercase())
            } else {
                Err(TokenBoundsError::Domain(cut(text)))
            }
        };
        let net = |text: &String| network(text).map_err(|error| TokenBoundsError::Network(error.to_string()));
        Ok(Self {
            tenant: tenant.transpose()?,
            sender_domains: domains.iter().take(LIST_MAX).map(domain).collect::<Result<_, _>>()?,
            networks: networks.iter().take(LIST_MAX).map(net).collect::<Result<_, _>>()?,
        })
    }

    /// Checks that a scope is allowed with these bounds.
    pub(crate) fn check(&self, scopes: impl IntoIterator<Item = Scope>) -> Result<(), TokenBoundsError> {
        let too_wide = scopes.into_iter().find(|scope| self.tenant.is_some() && !scope.is_of_tenants());
        too_wide.map_or(Ok(()), |scope| Err(TokenBoundsError::WholeServer(scope)))
    }

    /// True if this client may use the token.
    pub(crate) fn allows(&self, client: Option<IpAddr>) -> bool {
        self.networks.is_empty()
            || client.is_some_and(|client| self.networks.iter().any(|network| network.contains(&client)))
    }

    /// Bounds as three words of a token's line.
    pub(crate) fn to_words(&self) -> String {
        let list = |texts: Vec<String>| if texts.is_empty() { NONE.to_owned() } else { texts.join(",") };
        let networks = self.networks.iter().map(ToString::to_string).collect();
        format!("{} {} {}", self.tenant.as_deref().unwrap_or(NONE), list(self.sender_domains.clone()), list(networks))
    }

    /// Parses the words of a line.
    pub(crate) fn of_words(tenant: &str, domains: &str, networks: &str) -> Result<Self, TokenBoundsError> {
        let list = |text: &str| -> Vec<String> {
            let words = text.split(',').map(str::to_owned);
            if text == NONE { Vec::new() } else { words.collect() }
        };
        Self::parse(Some(tenant).filter(|tenant| *tenant != NONE), &list(domains), &list(networks))
    }
}

/// Stands for an empty list, or for no tenant.
const NONE: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(tenant: Option<&str>, domains: &[&str], networks: &[&str]) -> Result<TokenBounds, TokenBoundsError> {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        TokenBounds::parse(tenant, &own(domains), &own(networks))
    }

    #[test]
    fn bounds_survive_their_words() {
        for (tenant, domains, networks) in [
            (None, &[][..], &[][..]),
            (Some("acme"), &["Example.org", ".example.net"][..], &["192.0.2.0/24", "2001:db8::/32", "10.0.0.1"][..]),
        ] {
            let bounds = parse(tenant, domains, networks).unwrap();
            let words = bounds.to_words();
            let [tenant, domains, networks] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
            assert_eq!(TokenBounds::of_words(tenant, domains, networks), Ok(bounds));
        }
    }

    #[test]
    fn bounds_that_cannot_be_meant_are_refused() {
        for tenant in ["", "-", "a b", "a,b", "a\nb", "é"] {
            assert!(matches!(parse(Some(tenant), &[], &[]), Err(TokenBoundsError::Tenant(_))), "{tenant:?}");
        }
        for domain in ["", "-", ".", "a..b", "a b", "a@b.example", "a,b", "*.example.org", "é.example"] {
            assert!(matches!(parse(None, &[domain], &[]), Err(TokenBoundsError::Domain(_))), "{domain:?}");
        }
        for network in ["", "-", "10.0.0.1/8", "example.org", "10.0.0.0/33"] {
            assert!(matches!(parse(None, &[], &[network]), Err(TokenBoundsError::Network(_))), "{network:?}");
        }
        let tenant = parse(Some("acme"), &[], &[]).unwrap();
        let refused: Vec<Scope> = Scope::all().filter(|scope| tenant.check([*scope]).is_err()).collect();
        assert_eq!(refused, [Scope::Route, Scope::Accounts, Scope::ServerRead, Scope::ServerDrain, Scope::Metrics]);
        assert_eq!(TokenBounds::default().check(Scope::all()), Ok(()));
    }

    #[test]
    fn a_client_outside_of_the_networks_may_not_show_it() {
        let bounds = parse(None, &[], &["192.0.2.0/24"]).unwrap();
        let allows = |client: &str| bounds.allows(Some(client.parse().unwrap()));
        assert!(allows("192.0.2.7") && !allows("192.0.3.1") && !allows("::1") && !bounds.allows(None));
        assert!(TokenBounds::default().allows(None));
    }
}
