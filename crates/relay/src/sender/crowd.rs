//! More sites have mail than there may be connections: those without one wait in turn, and connections give way to them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::shared::Shared;
use super::site::{Site, State};

/// Sites that have mail and no connection, since there are no more of them.
#[derive(Default)]
pub(super) struct Crowd {
    waiting: Mutex<VecDeque<Arc<Site>>>,
    /// Connections that have to give way.
    wanted: AtomicUsize,
}

impl Crowd {
    /// A site without a connection waits for one, unless it does already.
    pub fn wait(&self, site: &Arc<Site>, state: &mut State) {
        if state.connections == 0 && !std::mem::replace(&mut state.is_in_crowd, true) {
            self.waiting.lock().expect("the crowd").push_back(site.clone());
            self.wanted.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn is_waiting(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Whether a connection ends now for a site that waits: one that is idle, or has been used for so long.
    pub fn takes(&self, is_idle: bool, used: Duration) -> bool {
        self.is_waiting()
            && (is_idle || used >= TURN)
            && self.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |wanted| wanted.checked_sub(1)).is_ok()
    }

    /// The site whose turn it is.
    fn next(&self) -> Option<Arc<Site>> {
        let mut waiting = self.waiting.lock().expect("the crowd");
        let site = waiting.pop_front();
        self.wanted.fetch_min(waiting.len(), Ordering::Relaxed);
        site
    }
}

impl Shared {
    /// A connection has ended: the site that has waited longest and still has mail gets one.
    pub fn serve_crowd(self: &Arc<Self>) {
        while self.connections() < self.config.connections_max
            && let Some(site) = self.crowd.next()
        {
            site.state().is_in_crowd = false;
            self.serve(&site);
        }
    }

    /// Idle connections look whether they have to give way. To be called each second.
    pub fn thin_out(&self, sites: &[Arc<Site>]) {
        if self.crowd.is_waiting() {
            sites.iter().for_each(|site| site.state().wake_idle());
        }
    }
}

/// A connection is not taken from a site that has had it for less.
const TURN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_give_way_as_sites_wait() {
        let crowd = Crowd::default();
        assert!(!crowd.takes(true, TURN));
        crowd.wanted.store(2, Ordering::Relaxed);
        assert!(!crowd.takes(false, TURN - Duration::from_millis(1)));
        assert!(crowd.takes(true, Duration::ZERO) && crowd.takes(false, TURN) && !crowd.takes(true, TURN));
    }
}
