//! Permits for connections to a site: no connection is made without one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ended::ended_early;
use super::session_settings::observe_tls_failure;
use super::shared::Shared;
use super::site::{RateLimit, Site, Tokens};
use crate::session::{Endpoint, Loss, OutgoingSession, SessionOpenError, SessionSettings};
use posthaste_shaping::limits::check;

/// The right to make one connection. Unless [excused](Self::excuse), the session counts as failed on drop, even after a
/// panic.
pub(super) struct DialPermit {
    site: Arc<Site>,
    is_excused: bool,
}

impl DialPermit {
    /// Connects and runs all steps before the first message. A reply that ends the session is reported.
    ///
    /// # Errors
    /// See [`SessionOpenError`].
    pub async fn open(
        mut self,
        shared: &Arc<Shared>,
        host: &Arc<str>,
        endpoint: &Endpoint,
        settings: &SessionSettings,
    ) -> Result<(OutgoingSession, Self), SessionOpenError> {
        let opened = OutgoingSession::open(endpoint, settings).await;
        let failed = shared.sites.tls_counts.count(&self.site.manner, settings, &opened);
        match opened {
            Ok(session) => Ok((session, self)),
            Err(error) => {
                if let Some(counted) = failed {
                    observe_tls_failure(shared, &self.site, host, counted, &error.to_string());
                }
                self.is_excused = matches!(error, SessionOpenError::Source(_) | SessionOpenError::Lost(Loss::Halted));
                if let Some((step, reply)) = error.last_words() {
                    ended_early(shared, &self.site, host, step, reply);
                }
                Err(error)
            }
        }
    }

    /// Marks the session as successful, or as ended by our own decision.
    pub fn excuse(mut self) {
        self.is_excused = true;
    }
}

impl Drop for DialPermit {
    fn drop(&mut self) {
        if !self.is_excused {
            self.site.state().standing.session_failed();
        }
    }
}

/// Waits until one more connection to a site may be made, and counts it against the site's limits. `tokens`: already
/// reserved for it. `None`: the site pauses or the relay ends.
pub(super) async fn permit_dial(shared: &Shared, site: &Arc<Site>, mut tokens: Option<Tokens>) -> Option<DialPermit> {
    loop {
        let pause = {
            let mut state = site.state();
            let now = Instant::now();
            let mut failing = site.failing_dials.lock();
            if shared.is_ending() || shared.outcomes.recorder.budget.is_closed() || state.standing.is_paused(now) {
                return None;
            }
            let spent = match state.standing.next_dial(&failing, now) {
                Some(at) => Err(at - now),
                None => spend(shared, &state.limits.connecting, tokens.take()),
            };
            match spent {
                Ok(()) => {
                    state.standing.note_dial(&mut failing, now);
                    return Some(DialPermit { site: site.clone(), is_excused: false });
                }
                Err(pause) => pause,
            }
        };
        tokio::time::sleep(pause.min(LOOK)).await;
    }
}

/// Spends a token of each limit.
///
/// # Errors
/// A limit has no token: the wait until the next try.
fn spend(shared: &Shared, limits: &[Arc<RateLimit>], tokens: Option<Tokens>) -> Result<(), Duration> {
    let clock = || shared.alarm.now();
    if tokens.is_some_and(|tokens| tokens.spend(clock)) {
        return Ok(());
    }
    let now = clock();
    if let Err((_, until)) = check(limits, now) {
        return Err(Duration::from_nanos(until.saturating_sub(now)));
    }
    let is_spent = Tokens::try_reserve(limits, now).is_some_and(|tokens| tokens.spend(clock));
    // Otherwise others took the tokens first.
    if is_spent { Ok(()) } else { Err(LOOK) }
}

/// Interval of checks for the end of the relay or a pause of the site.
const LOOK: Duration = Duration::from_millis(250);
