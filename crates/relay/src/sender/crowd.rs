//! More sites have mail than there may be connections: those without one wait in turn, and connections give way to them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::shared::Shared;
use super::site::{Site, State};

/// Sites that have mail and no connection, since there are no more of them.
#[derive(Default)]
pub(super) struct Crowd {
    waiting: Mutex<VecDeque<Arc<Site>>>,
    /// How many wait.
    count: AtomicUsize,
    /// Connections that are about to end for one of them.
    giving_way: AtomicUsize,
}

/// A connection is about to end for a site that waits; to be dropped when it has.
pub(super) struct GivesWay(Arc<Crowd>);

impl Drop for GivesWay {
    fn drop(&mut self) {
        self.0.giving_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crowd {
    /// A site without a connection waits for one, unless it does already.
    fn wait(&self, site: &Arc<Site>, state: &mut State) {
        if state.connections == 0 && !std::mem::replace(&mut state.is_in_crowd, true) {
            let mut waiting = self.waiting.lock().expect("the crowd");
            waiting.push_back(site.clone());
            self.count.store(waiting.len(), Ordering::Relaxed);
        }
    }

    pub fn is_waiting(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Connections that are still to end.
    fn wanted(&self) -> usize {
        self.count.load(Ordering::Relaxed).saturating_sub(self.giving_way.load(Ordering::Relaxed))
    }

    /// Whether a connection ends now for a site that waits: one that is idle, or has been used for so long.
    pub fn takes(self: &Arc<Self>, is_idle: bool, used: Duration) -> Option<GivesWay> {
        if !self.is_waiting() || !is_idle && used < TURN {
            return None;
        }
        let waiting = self.count.load(Ordering::Relaxed);
        let one_more = |giving_way| (giving_way < waiting).then_some(giving_way + 1);
        let taken = self.giving_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| GivesWay(self.clone()))
    }

    /// The site whose turn it is.
    fn next(&self) -> Option<Arc<Site>> {
        let mut waiting = self.waiting.lock().expect("the crowd");
        let site = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::Relaxed);
        site
    }
}

impl Shared {
    /// How many connections a site may have in all that asks for one more; it waits if there is no room for its first.
    pub fn most_connections(&self, site: &Arc<Site>, state: &mut State) -> usize {
        if self.connections() < self.config.connections_max && !self.crowd.is_waiting() {
            return usize::MAX;
        }
        self.crowd.wait(site, state);
        0
    }

    /// The sites that have waited longest and still have mail get the connections that there is room for.
    pub fn serve_crowd(self: &Arc<Self>) {
        while self.crowd.is_waiting()
            && self.connections() < self.config.connections_max
            && let Some(site) = self.crowd.next()
        {
            site.state().is_in_crowd = false;
            self.serve_with(&site, |_| usize::MAX);
        }
    }
}

/// Has idle connections look whether they have to give way.
#[derive(Default)]
pub(super) struct Thinner {
    next_at: Option<Instant>,
    /// The sites have their turn, wherever the last look ended.
    from: usize,
}

impl Thinner {
    /// To be called often: looks at as many idle connections as sites wait for, every [`THIN_EVERY`].
    pub fn look(&mut self, shared: &Arc<Shared>) {
        let now = Instant::now();
        if !shared.crowd.is_waiting() || self.next_at.is_some_and(|at| now < at) {
            return;
        }
        self.next_at = Some(now + THIN_EVERY);
        shared.serve_crowd();
        let mut wanted = shared.crowd.wanted();
        let sites = shared.sites.lock().expect("the sites");
        let from = self.from % sites.len().max(1);
        for (at, site) in sites.values().enumerate().skip(from).chain(sites.values().enumerate().take(from)) {
            if wanted == 0 {
                break;
            }
            self.from = at + 1;
            wanted -= usize::from(site.state().wake_one_idle());
        }
    }
}

/// A connection is not taken from a site that has had it for less.
const TURN: Duration = Duration::from_secs(2);
/// A site waits for so long for a connection that is idle.
const THIN_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_give_way_as_sites_wait() {
        let crowd = Arc::new(Crowd::default());
        assert!(crowd.takes(true, TURN).is_none());
        crowd.count.store(2, Ordering::Relaxed);
        assert!(crowd.takes(false, TURN - Duration::from_millis(1)).is_none());
        let given = [crowd.takes(true, Duration::ZERO), crowd.takes(false, TURN)];
        assert!(given.iter().all(Option::is_some) && crowd.takes(true, TURN).is_none());
        assert_eq!(crowd.wanted(), 0);
        // What they left was taken by somebody else: others give way for those that still wait.
        drop(given);
        assert!(crowd.wanted() == 2 && crowd.takes(true, TURN).is_some());
    }
}
