//! More sites have mail than connections are allowed: sites without one queue for a turn, and connections give way to
//! them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
    pub fn wait(&self, site: &Arc<Site>, state: &mut State) {
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
    pub fn wanted(&self, spare: usize) -> usize {
        (self.count.load(Ordering::Relaxed) + spare).saturating_sub(self.giving_way.load(Ordering::Relaxed))
    }

    /// Decides if a connection ends now, as one of the [`wanted`](Self::wanted).
    pub fn takes(self: &Arc<Self>, spare: usize) -> Option<GivesWay> {
        let most = self.count.load(Ordering::Relaxed) + spare;
        let one_more = |giving_way| (giving_way < most).then_some(giving_way + 1);
        let taken = self.giving_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| GivesWay(self.clone()))
    }

    /// The next site in turn.
    pub fn next(&self) -> Option<Arc<Site>> {
        let mut waiting = self.waiting.lock().expect("the waiting sites");
        let site = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::Relaxed);
        site
    }
}

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
