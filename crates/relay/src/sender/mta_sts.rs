//! MTA-STS (RFC 8461): the hosts that a domain's policy permits, and the TLS required for them.

use std::path::Path;
use std::sync::Arc;

use posthaste_dns::{DnsError, MailDestination, Resolver};
use posthaste_mta_sts::{FoundPolicy, Mode, Policies};
use posthaste_net::tls::{TlsError, TlsTrust, client_config};
use rustls::ClientConfig;

use super::route::{Manner, RouteTls};
use super::routing::Routes;
use super::section::Section;
use crate::session::TlsPolicy;

/// MTA-STS policies of other domains, and TLS for hosts that a policy demands.
#[derive(Debug, Clone)]
pub struct MtaSts {
    /// Fetches and caches policies.
    pub policies: Arc<Policies>,
    /// TLS client that verifies certificates.
    pub tls: Arc<ClientConfig>,
}

/// Error in setting up MTA-STS.
#[derive(Debug, thiserror::Error)]
pub enum MtaStsError {
    /// Web servers cannot be queried, or policies cannot be stored.
    #[error(transparent)]
    Policies(#[from] posthaste_mta_sts::PolicyOpenError),
    /// Mail hosts cannot be verified.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl MtaSts {
    /// Sets up MTA-STS from the configuration. Stores policies in the directory `dir`; `None`: in memory only. Blocks.
    /// `Ok(None)`: MTA-STS is disabled.
    ///
    /// # Errors
    /// [`MtaStsError`].
    pub fn open(section: &Section, dir: Option<&Path>) -> Result<Option<Self>, MtaStsError> {
        if !section.tls || !section.mta_sts {
            return Ok(None);
        }
        let ca_file = &section.mta_sts_ca_file;
        let policies = dir.map_or_else(|| Policies::in_memory(ca_file), |dir| Policies::open(dir, ca_file))?;
        let tls = client_config(&TlsTrust::Authorities(ca_file.clone()))?;
        Ok(Some(Self { policies: Arc::new(policies), tls }))
    }

    /// Transport settings for permitted hosts under a policy in the mode `enforce`.
    pub(super) fn manner(&self, port: u16) -> Manner {
        let tls =
            RouteTls { policy: TlsPolicy::Verified, is_implicit: false, config: Arc::clone(&self.tls), name: None };
        let usual = Manner::of_hosts(port, Some(tls));
        Manner { text: format!("{} mta-sts", usual.text), is_mta_sts: true, ..usual }
    }
}

/// The mail hosts of a domain without a route.
pub(super) struct MailHosts {
    pub destination: Arc<MailDestination>,
    pub manner: Arc<Manner>,
    /// The policy; looked up only if no rule for TLS applies.
    pub found: FoundPolicy,
}

impl MailHosts {
    /// Looks up the hosts and the policy of a domain. Each domain has its own policy, even if it shares hosts. An
    /// operator's TLS rule, or addresses in the configuration, take precedence over the policy and over TLSA records.
    ///
    /// # Errors
    /// There are no hosts, or the policy permits none: [`DnsError::NotPermitted`].
    pub async fn find(
        routes: &Routes,
        mta_sts: Option<&MtaSts>,
        resolver: &Resolver,
        domain: &str,
    ) -> Result<Self, DnsError> {
        let destination = resolver.destination(domain).await?;
        let manner = Arc::clone(routes.manner(domain));
        if routes.rule_number(domain).is_some() || resolver.has_fixed_hosts(&destination.domain) {
            return Ok(Self { destination, manner, found: FoundPolicy::default() });
        }
        let is_secure = is_secure(&destination, resolver).await;
        let manner = |is_enforced| Arc::clone(routes.manner_of_hosts(is_enforced, is_secure));
        let found = match mta_sts {
            Some(mta_sts) => mta_sts.policies.of(resolver, &destination.domain).await,
            None => FoundPolicy::default(),
        };
        let policy = found.policy.as_ref().filter(|policy| policy.mode == Mode::Enforce);
        let Some(policy) = policy else { return Ok(Self { manner: manner(false), destination, found }) };
        let permitted = destination.only(|host| policy.permits(host));
        let permitted = permitted.ok_or_else(|| DnsError::NotPermitted(destination.domain.clone()))?;
        Ok(Self { destination: Arc::new(permitted), manner: manner(true), found })
    }
}

/// True if DNSSEC authenticates the host list. For a domain without MX records its addresses decide, which are needed
/// anyway.
async fn is_secure(destination: &MailDestination, resolver: &Resolver) -> bool {
    if !destination.is_secure || !destination.implicit {
        return destination.is_secure;
    }
    match resolver.addresses(&destination.domain).await {
        Ok(addresses) => addresses.may_have_tlsa(),
        // An unknown state does not mean unsigned: otherwise one lost answer would disable DANE for the following
        // attempts.
        Err(_) => true,
    }
}
