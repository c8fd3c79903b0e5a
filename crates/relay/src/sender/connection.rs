//! One connection to a site: counting, opening, and serving message after message. The [round] chooses the host.
//!
//! [round]: super::round

use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use posthaste_smtp::client::Transfer;
use posthaste_watch::Pulse;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::broken_tls;
use super::dial::DialPermit;
use super::observer::{SiteState, TlsFailure};
use super::replies::shortened;
use super::reuse::{Key, ReusedSession};
use super::route::Manner;
use super::shape::Permit;
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use super::standing::Pause;
use super::traffic::Mail;
use crate::session::{Auth, Channel, End, Endpoint, Halt, OpenError, Session, Settings, Tls, TlsPolicy};
use posthaste_dane::Demand;
use posthaste_dns::{Addresses, DnsError, MailHost};

/// Counts the connection while its task runs, whatever ends it.
pub(super) struct Counted {
    pub shared: Arc<Shared>,
    pub site: Arc<Site>,
    permits: Vec<Permit>,
    /// Permit of the connection's address, if connections to it are limited.
    pub address: Option<Permit>,
    is_open: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.site.state().ended(self.is_open);
        // Sites that share a limit may have waited longer.
        self.permits.extend(self.address.take());
        self.shared.give_back(&mut self.permits);
        self.shared.connection_ended(&self.site);
    }
}

/// How a session ended for its site.
pub(super) enum Served {
    /// It worked, or there was nothing to do.
    Done,
    /// It has [failed](super::standing): try other hosts.
    Useless(String),
    /// It was lost because its TLS does not work: try the same host in the clear.
    UselessTls(String),
}

impl Counted {
    /// Wraps a connection that its site has counted already.
    pub fn new(shared: Arc<Shared>, site: Arc<Site>, permits: Vec<Permit>) -> Self {
        Counted { shared, site, permits, address: None, is_open: false }
    }

    /// Ends the count for the connection's address.
    pub fn leave_address(&mut self) {
        self.shared.give_back(&mut self.address.take().into_iter().collect());
    }

    /// Serves a new session. If its TLS turns out broken, one in the clear follows, to the same address.
    pub async fn serve_opened(
        &mut self,
        mut opened: Result<(Session, DialPermit), OpenError>,
        (host, endpoint, settings): (&MailHost, &Endpoint, &mut Settings),
        pulse: &Pulse,
    ) -> Result<Served, OpenError> {
        let Endpoint::Tcp(at) = *endpoint else { unreachable!("mail hosts are spoken to over TCP") };
        loop {
            let (session, permit) = opened?;
            let key = Key::of(&self.site.source, at, settings);
            let why = match self.serve(host, session, key, pulse, Some(permit)).await {
                Served::UselessTls(why) => why,
                served => return Ok(served),
            };
            let (shared, site) = (self.shared.clone(), self.site.clone());
            let Some(permit) = shared.permit_in_clear(&site, host, settings, &why).await else {
                return Ok(Served::Useless(why));
            };
            opened = permit.open(&shared, &host.name, endpoint, settings).await;
        }
    }

    /// Sends waiting mail. `permit`: of a session of its own.
    pub async fn serve(
        &mut self,
        host: &MailHost,
        mut session: Session,
        key: Key,
        pulse: &Pulse,
        permit: Option<DialPermit>,
    ) -> Served {
        if !std::mem::replace(&mut self.is_open, true) {
            self.site.state().reached();
        }
        let (shared, site) = (self.shared.clone(), self.site.clone());
        let is_opportunistic = key.is_opportunistic();
        let known =
            shared.sites.reuse.add(key, site.number(), self.address.as_ref().map(|permit| permit.limit().clone()));
        let mut mail = Mail::new(shared, site, host.name.clone(), &session, known, pulse.clone());
        let end = session.run(&mut mail).await;
        if session.channel() != Channel::Clear && session.has_answered() {
            self.shared.sites.broken_tls.worked(&host.name);
        }
        match end {
            End::Lost(loss) => {
                if let (Some((step, reply)), false) = (loss.last_words(), mail.has_told()) {
                    self.shared.ended_early(&self.site, &host.name, step, reply);
                }
                if session.is_useless_tls(&loss) && is_opportunistic {
                    return Served::UselessTls(loss.to_string());
                }
                if !mail.is_excused() {
                    return Served::Useless(loss.to_string());
                }
            }
            End::NoMore | End::Idle | End::Full => {
                let asked = mail.asked().filter(|_| session.is_open());
                if let Some(session) = self.hand_over(session, asked) {
                    session.quit().await;
                }
            }
        }
        permit.into_iter().for_each(DialPermit::excuse);
        Served::Done
    }

    /// Hands the session to the site that asked for it, if that still waits.
    fn hand_over(&mut self, session: Session, asked: Option<oneshot::Sender<ReusedSession>>) -> Option<Session> {
        let Some(asked) = asked else { return Some(session) };
        let Err(handed) = asked.send(ReusedSession { session, permit: self.address.take() }) else { return None };
        self.address = handed.permit;
        Some(handed.session)
    }

    /// Notes that no host has worked. `was_tried`: at least one was connected to.
    pub fn failed(&self, error: &str, was_tried: bool) {
        let first_secs = self.shared.config.site_pause_secs;
        let pause = {
            let mut state = self.site.state();
            if state.is_retired {
                return;
            }
            let (before_pause, now) = (state.limits.failures_before_pause, Instant::now());
            match was_tried {
                true => state.standing.failed(error, before_pause, first_secs, now),
                false => state.standing.failed_for_now(error, first_secs, now),
            }
        };
        let Some(Pause { secs: pause_secs, pauses, failures }) = pause else { return };
        let (source, site) = (self.site.source.name(), &self.site.name);
        self.shared.fall_back(site);
        self.shared.observe_site(&SiteState::Unreachable { source, site, error, failures, pauses, pause_secs });
    }
}

/// A mail host, and what its TLSA records demand.
pub(super) struct DemandingHost<'a> {
    pub host: &'a MailHost,
    pub demand: Demand,
}

impl Shared {
    /// Looks up the demand of a host, if the settings have DNSSEC authenticate it.
    ///
    /// # Errors
    /// [`DnsError::Unanswered`]: it must not be connected to now.
    pub(super) async fn demand_of<'a>(
        &self,
        manner: &Manner,
        host: &'a MailHost,
        addresses: &Addresses,
    ) -> Result<DemandingHost<'a>, DnsError> {
        let demand = match manner.has_dane {
            true => {
                let next_hop = &manner.next_hop;
                self.routes.dane.demand(&self.routes.resolver(), &host.name, manner.port, addresses, next_hop).await?
            }
            false => Demand::Nothing,
        };
        Ok(DemandingHost { host, demand })
    }
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
) -> Result<Settings, OpenError> {
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

/// Connects to one address: with TLS if that works, else once in the clear. `settings` then say so.
pub(super) async fn open(
    shared: &Arc<Shared>,
    site: &Arc<Site>,
    host: &MailHost,
    endpoint: &Endpoint,
    settings: &mut Settings,
    permit: DialPermit,
) -> Result<(Session, DialPermit), OpenError> {
    match permit.open(shared, &host.name, endpoint, settings).await {
        Err(error) if error.may_retry_in_clear() => {
            let permit = shared.permit_in_clear(site, host, settings, &error.to_string()).await;
            let Some(permit) = permit else { return Err(error) };
            permit.open(shared, &host.name, endpoint, settings).await
        }
        opened => opened,
    }
}

impl Shared {
    /// Notes a failure of TLS with a host.
    pub(super) fn tls_failed(&self, host: &Arc<str>, error: &str) {
        if let Some(error) = self.sites.broken_tls.failed(host, error)
            && let Some(observer) = &self.config.observer
        {
            observer.tls_avoided(host, &error, broken_tls::MEMORY.as_secs());
        }
    }

    /// Reports a session that was not opened for lack of TLS. The error is cut as replies are.
    pub(super) fn observe_tls_failure(&self, site: &Site, host: &str, [demand, result]: [&str; 2], error: &str) {
        if let Some(observer) = &self.config.observer {
            let error = shortened(error);
            observer.tls_failed(&TlsFailure { host, site: &site.name, demand, result, error: &error });
        }
    }

    /// Notes a failure of TLS, waits for a permit for one more connection, and switches `settings` to cleartext.
    async fn permit_in_clear(
        &self,
        site: &Arc<Site>,
        host: &MailHost,
        settings: &mut Settings,
        error: &str,
    ) -> Option<DialPermit> {
        self.tls_failed(&host.name, error);
        let permit = self.permit_dial(site, None).await?;
        settings.tls = None;
        Some(permit)
    }
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
) -> Result<Settings, OpenError> {
    let config = &shared.config;
    let mut settings = Settings::new(source.settings.ehlo.as_ref().unwrap_or(&config.host_name));
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
        let (is_implicit, config) = (tls.is_implicit, tls.config.clone());
        match rustls::pki_types::ServerName::try_from(name.to_owned()) {
            Ok(name) => {
                let is_dane = is_at_least_encrypted && policy == TlsPolicy::Required;
                settings.tls = Some(Tls { policy, is_implicit, config, name, is_dane });
            }
            Err(_) if policy == TlsPolicy::Opportunistic => {}
            Err(_) => return Err(OpenError::NoStartTls),
        }
    }
    if let Demand::Verified { config, name } = demand {
        let (policy, config, name) = (TlsPolicy::Verified, config.clone(), name.clone());
        settings.tls = Some(Tls { policy, is_implicit: false, config, name, is_dane: true });
    }
    settings.protocol = manner.protocol;
    let needs = match (&manner.tls, policy) {
        (None, _) => Channel::Clear,
        (Some(_), TlsPolicy::Verified) => Channel::Verified,
        (Some(_), _) => Channel::Encrypted,
    };
    settings.auth = manner.auth.clone().map(|credentials| Auth { credentials, needs });
    Ok(settings)
}

/// Polls the task that reads the next message's body.
pub(super) fn poll_join<T>(
    handle: &mut tokio::task::JoinHandle<T>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, tokio::task::JoinError>> {
    std::future::Future::poll(std::pin::Pin::new(handle), cx)
}
