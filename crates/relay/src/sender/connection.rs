//! One connection to a site: through its hosts until one answers, then message after message.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_random::Random;
use posthaste_smtp::Reply;
use posthaste_smtp::client::{Step, Transfer};
use posthaste_spool::watch::Pulse;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::broken_tls;
use super::dial::DialPermit;
use super::last_words::LastWords;
use super::observer::SiteState;
use super::reuse::{Handed, Key};
use super::route::Manner;
use super::shape::Permit;
use super::shared::Shared;
use super::site::{Admitted, Site};
use super::source::Egress;
use super::standing::Pause;
use super::status::{reply_for, status_of};
use super::traffic::Mail;
use crate::dns::{Attempt, DnsError, Host};
use crate::queue::{Outcome, Prefer, Take};
use crate::session::{Auth, Channel, End, Endpoint, OpenError, STEPS, Session, Settings, Tls, TlsPolicy, steps};

/// Counts the connection for as long as the task runs, whatever ends it.
struct Counted {
    shared: Arc<Shared>,
    site: Arc<Site>,
    permits: Vec<Permit>,
    /// One of the connections to its address, if these are limited.
    address: Option<Permit>,
    is_open: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.site.state().ended(self.is_open);
        // Others that share a limit have waited for longer.
        self.permits.extend(self.address.take());
        self.shared.give_back(&mut self.permits);
        self.shared.connection_ended(&self.site);
    }
}

/// How a session ended for its site.
enum Served {
    /// It did something, or nothing was to be done.
    Done,
    /// It has [failed](super::standing): other hosts are tried.
    Useless(String),
    /// It was lost as TLS of no use is: the same host is tried in the clear.
    UselessTls(String),
}

/// Sends what waits for a site.
pub(super) async fn connect(shared: Arc<Shared>, site: Arc<Site>, admitted: Admitted, seed: u64) {
    let Admitted { permits, tokens } = admitted;
    let mut counted = Counted { shared: shared.clone(), site: site.clone(), permits, address: None, is_open: false };
    if shared.config.bounces.suppressed().is_some() {
        let (asking, of) = (shared.clone(), site.clone());
        let has_more = tokio::task::spawn_blocking(move || asking.has_unsuppressed(&of)).await;
        if matches!(has_more, Ok(false)) {
            return;
        }
    }
    let name = format!("site {} from {}", shortened(&site.name), site.source.name());
    let worker = shared.watch.worker(name, STEPS, PATIENCE);
    let mut random = Random::new(seed);
    let destination = site.state().destination.clone();
    let resolver = shared.resolver();
    let mut attempt = Attempt::new(destination, site.manner.port, &mut random);
    let mut words = LastWords::default();
    // Of hosts that take no mail (RFC 7504), if none was anything else.
    let mut takes_none = TakesNone::NotAsked;
    // Of the first connection.
    let mut tokens = Some(tokens);
    let (mut was_tried, mut full, mut put_off) = (false, Vec::new(), VecDeque::new());
    let mut has_dead = false;
    loop {
        worker.pulse().step(steps::LOOKING_UP);
        let found = {
            let mut found = std::pin::pin!(attempt.next(&resolver));
            match timeout(TOKENS_PATIENCE, found.as_mut()).await {
                Ok(found) => found,
                Err(_) => {
                    // Others that share the limits connect meanwhile.
                    tokens = None;
                    found.await
                }
            }
        };
        let next = match found {
            Ok(Some(next)) if site.state().has_cut(&next.0.name, Instant::now()) => {
                put_off.push_back(next);
                continue;
            }
            Ok(Some(next)) => Ok(Some(next)),
            end => put_off.pop_front().map_or(end, |next| Ok(Some(next))),
        };
        match next {
            Ok(Some((host, addresses))) => {
                let mut was_dialed = false;
                for address in addresses.order(&mut random) {
                    let Some(local) = site.source.local(address) else {
                        let why = format!("{} ({address}): the source has no address of this family", host.name);
                        words.put(&host.name, why);
                        continue;
                    };
                    let at = SocketAddr::from((address, site.manner.port));
                    let endpoint = Endpoint::Tcp(at);
                    let settings = settings_of(&shared, &site, &host, &endpoint, local, worker.pulse());
                    let mut settings = match settings {
                        Ok(settings) => settings,
                        Err(failed) => {
                            words.put(&host.name, format!("{} ({address}): {failed}", host.name));
                            takes_none = TakesNone::No;
                            continue;
                        }
                    };
                    let what = format!("session to {} at {at}", host.name);
                    // However long another site or a limit has it wait: it is not stuck.
                    worker.pulse().step(0);
                    let key = Key::of(&site.source, at, &settings);
                    if let Some(Handed { session, permit }) = shared.take_over(&site, &key, worker.pulse()).await {
                        tokens = None;
                        worker.within(what.clone());
                        counted.address = permit;
                        match counted.serve(&host, session, key, worker.pulse(), None).await {
                            Served::Done => return,
                            // It may have been closed for its age: that says nothing of the host.
                            Served::Useless(why) | Served::UselessTls(why) => {
                                words.put(&host.name, format!("{}: {why}", host.name))
                            }
                        }
                        counted.leave_address();
                        worker.pulse().step(0);
                    }
                    match shared.address_permit(&site, address) {
                        Ok(permit) => counted.address = permit,
                        Err(limit) => {
                            full.push(limit);
                            continue;
                        }
                    }
                    let Some(permit) = shared.permit_dial(&site, tokens.take()).await else { return };
                    (was_tried, was_dialed) = (true, true);
                    worker.within(what);
                    let opened = open(&shared, &site, &host, &endpoint, &mut settings, permit).await;
                    let of = (&host, &endpoint, &mut settings);
                    match counted.serve_opened(opened, of, worker.pulse()).await {
                        Ok(Served::Done) if has_dead => return site.state().standing.other_host_worked(),
                        Ok(Served::Done) => return,
                        Ok(Served::Useless(why) | Served::UselessTls(why)) => {
                            words.put(&host.name, format!("{}: {why}", host.name));
                            takes_none = TakesNone::No;
                        }
                        Err(OpenError::Source(failed)) => return shared.suspend_source(&site.source, &failed),
                        Err(failed) => {
                            words.put(&host.name, format!("{} ({address}): {failed}", host.name));
                            takes_none.note(&failed);
                            if let Some((step, reply)) = failed.last_words() {
                                shared.interrupted_early(&site, &host.name, step, reply);
                            }
                        }
                    }
                    counted.leave_address();
                }
                if was_dialed {
                    // The next connections begin with the other hosts.
                    let pause = Duration::from_secs(shared.config.site_pause_secs.into());
                    site.state().cut_by(&host.name, Instant::now() + pause);
                    has_dead = true;
                }
            }
            // Nothing is to be had before one of these has room.
            Ok(None) if !was_tried && !full.is_empty() => return site.state().set_full(full),
            Ok(None) => {
                if let (TakesNone::Yes(reply), true, false) = (takes_none, full.is_empty(), attempt.has_unanswered()) {
                    return give_up(&shared, &site, &reply);
                }
                return counted.failed(&words.to_string(), was_tried);
            }
            Err(DnsError::Unanswered { name, why }) => {
                return counted.failed(&format!("DNS: {name}: {why}"), was_tried);
            }
            Err(failed) => return give_up(&shared, &site, &reply_for(&failed)),
        }
    }
}

impl Counted {
    /// The connection to its address is over.
    fn leave_address(&mut self) {
        self.shared.give_back(&mut self.address.take().into_iter().collect());
    }

    /// Serves a new session. One whose TLS is of no use is followed by one in the clear, to the same address.
    async fn serve_opened(
        &mut self,
        mut opened: Result<(Session, DialPermit), OpenError>,
        (host, endpoint, settings): (&Host, &Endpoint, &mut Settings),
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
            opened = permit.open(endpoint, settings).await;
        }
    }

    /// `permit`: of a session of its own.
    async fn serve(
        &mut self,
        host: &Host,
        mut session: Session,
        key: Key,
        pulse: &Pulse,
        permit: Option<DialPermit>,
    ) -> Served {
        if !std::mem::replace(&mut self.is_open, true) {
            self.site.state().reached();
        }
        let (shared, site) = (self.shared.clone(), self.site.clone());
        let known = shared.reuse.add(key, site.number(), self.address.as_ref().map(|permit| permit.limit().clone()));
        let mut mail = Mail::new(shared, site, host.name.clone(), &session, known, pulse.clone());
        let end = session.run(&mut mail).await;
        if session.channel() != Channel::Clear && session.has_answered() {
            self.shared.broken_tls.worked(&host.name);
        }
        match end {
            End::Lost(loss) => {
                if let (Some((step, reply)), false) = (loss.last_words(), mail.has_told()) {
                    self.shared.interrupted_early(&self.site, &host.name, step, reply);
                }
                if session.is_useless_tls(&loss) && self.site.manner.is_opportunistic() {
                    return Served::UselessTls(loss.to_string());
                }
                if !mail.is_excused() {
                    return Served::Useless(loss.to_string());
                }
                if mail.is_broken_off() {
                    // The permit is not excused: the next connections are paced.
                    return Served::Done;
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

    /// Gives the session to the site that has asked for it, if it still waits.
    fn hand_over(&mut self, session: Session, asked: Option<oneshot::Sender<Handed>>) -> Option<Session> {
        let Some(asked) = asked else { return Some(session) };
        let Err(handed) = asked.send(Handed { session, permit: self.address.take() }) else { return None };
        self.address = handed.permit;
        Some(handed.session)
    }

    /// None of the hosts has done anything. `was_tried`: at least one was connected to.
    fn failed(&self, error: &str, was_tried: bool) {
        let first_secs = self.shared.config.site_pause_secs;
        let pause = {
            let mut state = self.site.state();
            if state.is_retired {
                return;
            }
            let (before_pause, now) = (state.limits.failures_before_pause, Instant::now());
            match was_tried {
                true => state.standing.failed(error, before_pause, first_secs, now),
                false => state.standing.not_tried(error, first_secs, now),
            }
        };
        let Some(Pause { secs: pause_secs, pauses, failures }) = pause else { return };
        let (source, site) = (self.site.source.name(), &self.site.name);
        self.shared.fall_back(site);
        self.shared.observe_site(&SiteState::Unreachable { source, site, error, failures, pauses, pause_secs });
    }
}

/// How a host is spoken to for a site.
///
/// # Errors
/// It has no name that could be verified.
fn settings_of(
    shared: &Shared,
    site: &Site,
    host: &Host,
    endpoint: &Endpoint,
    local: Option<IpAddr>,
    pulse: &Pulse,
) -> Result<Settings, OpenError> {
    let mut settings = settings_for(shared, &site.source, &site.manner, host, endpoint, local)?;
    settings.pulse = Some(pulse.clone());
    let limits = &site.state().limits;
    settings.messages_max = limits.messages_per_connection;
    if limits.has_chunking {
        // A host that refuses all recipients is not sent the message in vain.
        settings.transfer = Transfer::Bdat;
    }
    Ok(settings)
}

/// Connects to one address: with TLS as far as it goes, else once in the clear, and the settings say it then.
async fn open(
    shared: &Shared,
    site: &Arc<Site>,
    host: &Host,
    endpoint: &Endpoint,
    settings: &mut Settings,
    permit: DialPermit,
) -> Result<(Session, DialPermit), OpenError> {
    match permit.open(endpoint, settings).await {
        Err(error) if error.may_retry_in_clear() => {
            let permit = shared.permit_in_clear(site, host, settings, &error.to_string()).await;
            let Some(permit) = permit else { return Err(error) };
            permit.open(endpoint, settings).await
        }
        opened => opened,
    }
}

impl Shared {
    /// TLS with a host has failed.
    pub(super) fn tls_failed(&self, host: &Arc<str>, error: &str) {
        if self.broken_tls.failed(host)
            && let Some(observer) = &self.config.observer
        {
            observer.tls_avoided(host, error, broken_tls::MEMORY.as_secs());
        }
    }

    /// TLS with a host has failed for a site: waits for the right to make one more connection, which goes without, as the settings say then.
    async fn permit_in_clear(
        &self,
        site: &Arc<Site>,
        host: &Host,
        settings: &mut Settings,
        error: &str,
    ) -> Option<DialPermit> {
        self.tls_failed(&host.name, error);
        let permit = self.permit_dial(site, None).await?;
        settings.tls = None;
        Some(permit)
    }
}

/// How a host is spoken to from a source.
///
/// # Errors
/// It has no name that could be verified.
pub(super) fn settings_for(
    shared: &Shared,
    source: &Egress,
    manner: &Manner,
    host: &Host,
    endpoint: &Endpoint,
    local: Option<IpAddr>,
) -> Result<Settings, OpenError> {
    let config = &shared.config;
    let mut settings = Settings::new(source.settings.ehlo.as_ref().unwrap_or(&config.host_name));
    settings.source = local;
    settings.timeouts = config.timeouts.clone();
    settings.proxy = source.settings.proxy.clone();
    settings.eight_bit = config.eight_bit;
    if let (Some(witnesses), Endpoint::Tcp(address)) = (&config.witnesses, endpoint) {
        settings.witness = witnesses.session(&host.name, address.ip());
    }
    let policy = manner.tls.as_ref().map_or(TlsPolicy::Opportunistic, |tls| tls.policy);
    let is_given_up = policy == TlsPolicy::Opportunistic && shared.broken_tls.has(&host.name);
    if let Some(tls) = manner.tls.as_ref().filter(|_| !is_given_up) {
        let name = tls.name.as_deref().unwrap_or(&host.name);
        let name = name.trim_matches(['[', ']']).trim_start_matches("IPv6:");
        let (is_implicit, config) = (tls.is_implicit, tls.config.clone());
        match rustls::pki_types::ServerName::try_from(name.to_owned()) {
            Ok(name) => settings.tls = Some(Tls { policy, is_implicit, config, name }),
            Err(_) if policy == TlsPolicy::Opportunistic => {}
            Err(_) => return Err(OpenError::NoStartTls),
        }
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

/// No host of the site takes mail, and none will: what waits for it fails.
fn give_up(shared: &Arc<Shared>, site: &Site, reply: &Reply) {
    let ready = site.state().ready;
    let take = Take { prefer: Prefer::First, recipients_max: shared.config.recipients_max, across_domains: true };
    // What is left comes with the next look at the site.
    while shared.recorder.budget.may_begin() {
        let next = shared.queue().next(ready, take);
        let Some(transaction) = next else { return };
        shared.end_unsent(&transaction, Outcome::Failed(status_of(reply)), reply.clone());
    }
}

/// Whether all hosts of a site have said that they take no mail at all: 521 in the greeting (RFC 7504 section 3).
enum TakesNone {
    NotAsked,
    Yes(Reply),
    No,
}

impl TakesNone {
    fn note(&mut self, failed: &OpenError) {
        *self = match (failed.last_words(), &self) {
            (Some((Step::Greeting, reply)), Self::NotAsked | Self::Yes(_)) if reply.code() == 521 => {
                Self::Yes((**reply).clone())
            }
            _ => Self::No,
        };
    }
}

/// The name of a site, not too long for a line of the log.
fn shortened(site: &str) -> &str {
    &site[..site.floor_char_boundary(SITE_BYTES_MAX)]
}

/// A look-up that takes longer keeps no token of its connection aside.
const TOKENS_PATIENCE: Duration = Duration::from_secs(1);
/// A connection that is in one step for longer is told of.
const PATIENCE: Duration = Duration::from_secs(300);
const SITE_BYTES_MAX: usize = 200;

/// What a task polls for the next message while its body is read.
pub(super) fn poll_join<T>(
    handle: &mut tokio::task::JoinHandle<T>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, tokio::task::JoinError>> {
    std::future::Future::poll(std::pin::Pin::new(handle), cx)
}
