//! Settings of a session with a mail host, and failures of its TLS.

use std::net::IpAddr;
use std::sync::Arc;

use posthaste_smtp::client::Transfer;
use posthaste_watch::Pulse;

use super::broken_tls;
use super::observer::TlsFailure;
use super::replies::shortened;
use super::route::Manner;
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use crate::session::{Channel, Endpoint, Halt, SessionAuth, SessionOpenError, SessionSettings, SessionTls, TlsPolicy};
use posthaste_dane::Demand;
use posthaste_dns::{Addresses, DnsError, MailHost};

/// A mail host, and the demand of its TLSA records.
pub(super) struct DemandingHost<'a> {
    pub host: &'a MailHost,
    pub demand: Demand,
}

/// Looks up the demand of a host, if the settings have DNSSEC authenticate it.
///
/// # Errors
/// [`DnsError::Unanswered`]: it must not be connected to now.
pub(super) async fn demand_of<'a>(
    shared: &Shared,
    manner: &Manner,
    host: &'a MailHost,
    addresses: &Addresses,
) -> Result<DemandingHost<'a>, DnsError> {
    let demand = if manner.has_dane {
        let next_hop = &manner.next_hop;
        shared.routes.dane.demand(&shared.routes.resolver(), &host.name, manner.port, addresses, next_hop).await?
    } else {
        Demand::Nothing
    };
    Ok(DemandingHost { host, demand })
}

/// Session settings for a host of a site.
///
/// # Errors
/// The host has no name to verify.
pub(super) fn settings_of(
    shared: &Shared,
    site: &Site,
    host: &DemandingHost<'_>,
    endpoint: &Endpoint,
    local: Option<IpAddr>,
    pulse: &Pulse,
) -> Result<SessionSettings, SessionOpenError> {
    let mut settings = settings_for(shared, &site.source, &site.manner, host, endpoint, local)?;
    settings.pulse = Some(pulse.clone());
    let limits = &site.state().limits;
    settings.messages_max = limits.messages_per_connection;
    if limits.has_chunking {
        // A host that refuses all recipients does not get the message for nothing.
        settings.transfer = Transfer::Bdat;
    }
    Ok(settings)
}

/// Session settings for a host, from a source.
///
/// # Errors
/// The host has no name to verify.
pub(super) fn settings_for(
    shared: &Shared,
    source: &Egress,
    manner: &Manner,
    DemandingHost { host, demand }: &DemandingHost<'_>,
    endpoint: &Endpoint,
    local: Option<IpAddr>,
) -> Result<SessionSettings, SessionOpenError> {
    let config = &shared.config;
    let mut settings = SessionSettings::new(source.settings.ehlo.as_ref().unwrap_or(&config.host_name));
    settings.source = local;
    settings.timeouts = config.timeouts.clone();
    settings.proxy = source.settings.proxy.clone();
    settings.eight_bit = config.eight_bit;
    let recorder = shared.outcomes.recorder.clone();
    // Outcomes after that cannot be recorded.
    settings.halt = Some(Halt::new(move || recorder.budget.is_closed()));
    if let (Some(witnesses), Endpoint::Tcp(address)) = (&config.witnesses, endpoint) {
        settings.witness = witnesses.session(&host.name, address.ip());
    }
    let is_at_least_encrypted = matches!(demand, Demand::Encrypted);
    let policy = match manner.tls.as_ref().map_or(TlsPolicy::Opportunistic, |tls| tls.policy) {
        TlsPolicy::Opportunistic if is_at_least_encrypted => TlsPolicy::Required,
        policy => policy,
    };
    let is_given_up = policy == TlsPolicy::Opportunistic && shared.sites.broken_tls.has(&host.name);
    if let Some(tls) = manner.tls.as_ref().filter(|_| !is_given_up) {
        let name = tls.name.as_deref().unwrap_or(&host.name);
        let name = name.trim_matches(['[', ']']).trim_start_matches("IPv6:");
        let is_implicit = tls.is_implicit;
        let config = tls.config.clone();
        match rustls::pki_types::ServerName::try_from(name.to_owned()) {
            Ok(name) => {
                let is_dane = is_at_least_encrypted && policy == TlsPolicy::Required;
                settings.tls = Some(SessionTls { policy, is_implicit, config, name, is_dane });
            }
            Err(_) if policy == TlsPolicy::Opportunistic => {}
            Err(_) => return Err(SessionOpenError::NoStartTls),
        }
    }
    if let Demand::Verified { config, name } = demand {
        let policy = TlsPolicy::Verified;
        let config = config.clone();
        let name = name.clone();
        settings.tls = Some(SessionTls { policy, is_implicit: false, config, name, is_dane: true });
    }
    settings.protocol = manner.protocol;
    let needs = match (&manner.tls, policy) {
        (None, _) => Channel::Clear,
        (Some(_), TlsPolicy::Verified) => Channel::Verified,
        (Some(_), _) => Channel::Encrypted,
    };
    settings.auth = manner.auth.clone().map(|credentials| SessionAuth { credentials, needs });
    Ok(settings)
}

/// Notes a failure of TLS with a host.
pub(super) fn tls_failed(shared: &Shared, host: &Arc<str>, error: &str) {
    if let Some(error) = shared.sites.broken_tls.failed(host, error)
        && let Some(observer) = &shared.config.observer
    {
        observer.tls_avoided(host, &error, broken_tls::MEMORY.as_secs());
    }
}

/// Reports a session that was not opened because TLS failed. The error is truncated like a reply.
pub(super) fn observe_tls_failure(shared: &Shared, site: &Site, host: &str, [demand, result]: [&str; 2], error: &str) {
    if let Some(observer) = &shared.config.observer {
        let error = shortened(error);
        observer.tls_failed(&TlsFailure { host, site: &site.name, demand, result, error: &error });
    }
}
