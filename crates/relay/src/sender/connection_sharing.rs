//! More sites have mail than connections are allowed: sites without one queue for a turn, and connections give way to
//! them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::shared::Shared;
use super::site::{Site, State};

/// Sites that have mail and no connection, since all are taken.
#[derive(Default)]
pub(super) struct ConnectionSharing {
    waiting: Mutex<VecDeque<Arc<Site>>>,
    /// Number of waiting sites.
    count: AtomicUsize,
    /// Connections that are about to end for one of them.
    giving_way: AtomicUsize,
}

/// Held by a connection that is about to end for a waiting site; dropped after its end.
pub(super) struct GivesWay(Arc<ConnectionSharing>);

impl Drop for GivesWay {
    fn drop(&mut self) {
        self.0.giving_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionSharing {
    /// Queues a site without a connection, unless it waits already.
    fn wait(&self, site: &Arc<Site>, state: &mut State) {
        if state.connections == 0 && !std::mem::replace(&mut state.waits_for_connection, true) {
            let mut waiting = self.waiting.lock().expect("the waiting sites");
            waiting.push_back(site.clone());
            self.count.store(waiting.len(), Ordering::Relaxed);
        }
    }

    pub fn is_waiting(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Connections still to end: one for each waiting site, and `spare` more.
    fn wanted(&self, spare: usize) -> usize {
        (self.count.load(Ordering::Relaxed) + spare).saturating_sub(self.giving_way.load(Ordering::Relaxed))
    }

    /// Decides if a connection ends now, as one of the [`wanted`](Self::wanted).
    fn takes(self: &Arc<Self>, spare: usize) -> Option<GivesWay> {
        let most = self.count.load(Ordering::Relaxed) + spare;
        let one_more = |giving_way| (giving_way < most).then_some(giving_way + 1);
        let taken = self.giving_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| GivesWay(self.clone()))
    }

    /// The next site in turn.
    fn next(&self) -> Option<Arc<Site>> {
        let mut waiting = self.waiting.lock().expect("the waiting sites");
        let site = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::Relaxed);
        site
    }
}

impl Shared {
    /// Decides if a connection ends after a message, to give a waiting site its turn.
    pub fn gives_turn(&self, used: Duration) -> Option<GivesWay> {
        if self.sharing.is_waiting() && used >= TURN { self.sharing.takes(0) } else { None }
    }

    /// Decides if an unused connection ends: for a waiting site, or, if it was idle before, for a future one.
    pub fn gives_way(&self, was_idle: bool) -> Option<GivesWay> {
        let spare = if was_idle { self.reserve_used(IDLE_RESERVE) } else { 0 };
        if spare > 0 || self.sharing.is_waiting() { self.sharing.takes(spare) } else { None }
    }

    /// Connections above `most * (1 - 1/part)`: the used part of the reserve.
    fn reserve_used(&self, part: usize) -> usize {
        let most = self.config.connections_max;
        self.connections().saturating_sub(most - most / part)
    }

    /// Most connections that a site may have when it asks for one more. Without room for its first, it is queued.
    pub fn most_connections(&self, site: &Arc<Site>, state: &mut State) -> usize {
        let has_room = match state.connections {
            0 => self.connections() < self.config.connections_max,
            _ => self.reserve_used(RESERVE) == 0,
        };
        if has_room && !self.sharing.is_waiting() {
            return usize::MAX;
        }
        self.sharing.wait(site, state);
        0
    }

    /// Gives free connections to the sites that have waited longest and still have mail.
    pub fn serve_waiting_sites(self: &Arc<Self>) {
        while self.sharing.is_waiting()
            && self.connections() < self.config.connections_max
            && let Some(site) = self.sharing.next()
        {
            site.state().waits_for_connection = false;
            self.serve_with(&site, |_| usize::MAX);
        }
    }
}

/// Has idle connections check whether to give way.
#[derive(Default)]
pub(super) struct Thinner {
    next_at: Option<Instant>,
    /// Where the next pass over the sites begins.
    from: usize,
}

impl Thinner {
    /// To be called often; looks every [`THIN_EVERY`].
    pub fn look(&mut self, shared: &Arc<Shared>) {
        let now = Instant::now();
        if self.next_at.is_some_and(|at| now < at) {
            return;
        }
        self.next_at = Some(now + THIN_EVERY);
        shared.serve_waiting_sites();
        let mut wanted = shared.sharing.wanted(shared.reserve_used(IDLE_RESERVE));
        if wanted == 0 {
            return;
        }
        let sites = shared.sites.lock().expect("the sites");
        let from = self.from % sites.len().max(1);
        let in_turn = sites.values().enumerate().skip(from).chain(sites.values().enumerate().take(from));
        for (at, site) in in_turn.take(SITES_AT_ONCE) {
            if wanted == 0 {
                break;
            }
            self.from = at + 1;
            wanted -= usize::from(site.state().idle.give_way());
        }
    }
}

/// Time for which a site keeps a connection at least.
const TURN: Duration = Duration::from_secs(2);
/// One connection in this many is reserved for sites that have none.
const RESERVE: usize = 8;
/// Idle connections end once all but one in this many are open. Those between this and [`RESERVE`] are for sites that
/// have one and need more.
const IDLE_RESERVE: usize = 4;
/// Sites that one pass visits: meanwhile none can be found or made.
const SITES_AT_ONCE: usize = 1000;
/// Time between passes; a site waits this long for an idle connection.
const THIN_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_give_way_as_sites_wait() {
        let sharing = Arc::new(ConnectionSharing::default());
        assert!(sharing.takes(0).is_none());
        sharing.count.store(2, Ordering::Relaxed);
        let given = [sharing.takes(0), sharing.takes(0)];
        assert!(given.iter().all(Option::is_some) && sharing.takes(0).is_none());
        assert_eq!((sharing.wanted(0), sharing.wanted(3)), (0, 3));
        let spare = sharing.takes(1);
        assert!(spare.is_some() && sharing.takes(1).is_none());
        // Their connections went to others: further ones give way for those that still wait.
        drop((given, spare));
        assert!(sharing.wanted(0) == 2 && sharing.takes(0).is_some());
    }
}
