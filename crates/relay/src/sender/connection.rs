//! One connection to a site: counting, opening, and serving message after message. The [round] chooses the host.
//!
//! [round]: super::round

use std::sync::Arc;

use posthaste_watch::Pulse;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::dial::{DialPermit, permit_dial};
use super::ended::ended_early;
use super::observer::SiteState;
use super::reroute::fall_back;
use super::reuse::{Key, ReusedSession};
use super::serving::connection_ended;
use super::session_settings::tls_failed;
use super::shaping::give_back;
use super::shared::Shared;
use super::site::{Permit, Share, Site};
use super::standing::Pause;
use super::traffic::Mail;
use crate::session::{Channel, Endpoint, OutgoingSession, RunEnd, SessionOpenError, SessionSettings};
use posthaste_dns::MailHost;

/// Counts the connection until its task ends, whether it returns or panics.
pub(super) struct Counted {
    pub shared: Arc<Shared>,
    pub site: Arc<Site>,
    share: Option<Share>,
    permits: Vec<Permit>,
    /// Permit for the connection's address, if connections to that address are limited.
    pub address: Option<Permit>,
    is_open: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.site.state().ended(self.is_open);
        // Sites that share a limit may have waited longer.
        self.permits.extend(self.address.take());
        give_back(&self.shared, &mut self.permits);
        drop(self.share.take());
        connection_ended(&self.shared, &self.site);
    }
}

/// How a session ended for its site.
pub(super) enum Served {
    /// The session succeeded, or there was nothing to do.
    Done,
    /// The session has [failed](super::standing): try other hosts.
    Useless(String),
    /// The session was lost because of broken TLS: try the same host in the clear.
    UselessTls(String),
}

impl Counted {
    /// Wraps a connection that its site has already counted.
    pub fn new(shared: Arc<Shared>, site: Arc<Site>, share: Share, permits: Vec<Permit>) -> Self {
        Counted { shared, site, share: Some(share), permits, address: None, is_open: false }
    }

    /// Ends the count for the connection's address.
    pub fn leave_address(&mut self) {
        give_back(&self.shared, &mut self.address.take().into_iter().collect());
    }

    /// Serves a new session. If its TLS is broken, continues in the clear with the same address.
    pub async fn serve_opened(
        &mut self,
        mut opened: Result<(OutgoingSession, DialPermit), SessionOpenError>,
        host: &MailHost,
        endpoint: &Endpoint,
        settings: &mut SessionSettings,
        pulse: &Pulse,
    ) -> Result<Served, SessionOpenError> {
        let Endpoint::Tcp(at) = *endpoint else { unreachable!("mail hosts are spoken to over TCP") };
        loop {
            let (session, permit) = opened?;
            let key = Key::of(&self.site.source, at, settings);
            let why = match self.serve(host, session, key, pulse, Some(permit)).await {
                Served::UselessTls(why) => why,
                served => return Ok(served),
            };
            let shared = self.shared.clone();
            let site = self.site.clone();
            let Some(permit) = permit_in_clear(&shared, &site, host, settings, &why).await else {
                return Ok(Served::Useless(why));
            };
            opened = permit.open(&shared, &host.name, endpoint, settings).await;
        }
    }

    /// Sends waiting mail. `permit`: for the address of a new session.
    pub async fn serve(
        &mut self,
        host: &MailHost,
        mut session: OutgoingSession,
        key: Key,
        pulse: &Pulse,
        permit: Option<DialPermit>,
    ) -> Served {
        if !std::mem::replace(&mut self.is_open, true) {
            self.site.state().reached();
        }
        let shared = self.shared.clone();
        let site = self.site.clone();
        let is_opportunistic = key.is_opportunistic();
        let known =
            shared.sites.reuse.add(key, site.number(), self.address.as_ref().map(|permit| permit.limit().clone()));
        let mut mail = Mail::new(shared, site, host.name.clone(), &session, known, pulse.clone());
        let end = session.run(&mut mail).await;
        if session.channel() != Channel::Clear && session.has_answered() {
            self.shared.sites.broken_tls.worked(&host.name);
        }
        match end {
            RunEnd::Lost(loss) => {
                if let (Some((step, reply)), false) = (loss.last_words(), mail.has_told()) {
                    ended_early(&self.shared, &self.site, &host.name, step, reply);
                }
                if session.is_useless_tls(&loss) && is_opportunistic {
                    return Served::UselessTls(loss.to_string());
                }
                if !mail.is_excused() {
                    return Served::Useless(loss.to_string());
                }
            }
            RunEnd::NoMore | RunEnd::Idle | RunEnd::Full => {
                let asked = mail.asked().filter(|_| session.is_open());
                if let Some(session) = self.hand_over(session, asked) {
                    session.quit().await;
                }
            }
        }
        permit.into_iter().for_each(DialPermit::excuse);
        Served::Done
    }

    /// Hands the session to the site that asked for it, if that site still waits.
    fn hand_over(
        &mut self,
        session: OutgoingSession,
        asked: Option<oneshot::Sender<ReusedSession>>,
    ) -> Option<OutgoingSession> {
        let Some(asked) = asked else { return Some(session) };
        let Err(handed) = asked.send(ReusedSession { session, permit: self.address.take() }) else { return None };
        self.address = handed.permit;
        Some(handed.session)
    }

    /// Notes that all hosts failed. `was_tried`: at least one was connected to.
    pub fn failed(&self, error: &str, was_tried: bool) {
        let first_secs = self.shared.config.site_pause_secs;
        let pause = {
            let mut state = self.site.state();
            if state.is_retired {
                return;
            }
            let before_pause = state.limits.failures_before_pause;
            let now = Instant::now();
            if was_tried {
                state.standing.failed(error, before_pause, first_secs, now)
            } else {
                state.standing.failed_for_now(error, first_secs, now)
            }
        };
        let Some(Pause { secs: pause_secs, pauses, failures }) = pause else { return };
        let source = self.site.source.name();
        let site = &self.site.name;
        fall_back(&self.shared, site);
        self.shared.observe_site(&SiteState::Unreachable { source, site, error, failures, pauses, pause_secs });
    }
}

/// Connects to one address: with TLS if possible, else once in the clear. Updates `settings` accordingly.
pub(super) async fn open(
    shared: &Arc<Shared>,
    site: &Arc<Site>,
    host: &MailHost,
    endpoint: &Endpoint,
    settings: &mut SessionSettings,
    permit: DialPermit,
) -> Result<(OutgoingSession, DialPermit), SessionOpenError> {
    match permit.open(shared, &host.name, endpoint, settings).await {
        Err(error) if error.may_retry_in_clear() => {
            let permit = permit_in_clear(shared, site, host, settings, &error.to_string()).await;
            let Some(permit) = permit else { return Err(error) };
            permit.open(shared, &host.name, endpoint, settings).await
        }
        opened => opened,
    }
}

/// Notes a failure of TLS, waits for a permit for one more connection, and switches `settings` to cleartext.
async fn permit_in_clear(
    shared: &Shared,
    site: &Arc<Site>,
    host: &MailHost,
    settings: &mut SessionSettings,
    error: &str,
) -> Option<DialPermit> {
    tls_failed(shared, &host.name, error);
    let permit = permit_dial(shared, site, None).await?;
    settings.tls = None;
    Some(permit)
}
