//! End of a site: only this module replaces or removes a known site, and retires it, so that none stays counted as
//! unreachable.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::shared::Shared;
use super::site::Site;

impl Shared {
    /// Ends the connections of a site after their transactions.
    pub fn retire(&self, site: &Site) {
        let mut state = site.state();
        state.is_retired = true;
        state.idle.wake_all();
        if state.standing.retire() {
            self.unreachable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes sites without mail: those unreachable long ago; beyond [`SITES_KEPT`], all without a connection.
    pub fn forget_sites(&self, sites: &[Arc<Site>]) {
        let (now, is_many) = (Instant::now(), sites.len() > SITES_KEPT);
        for site in sites {
            let is_gone = |site: &Site| {
                let state = site.state();
                let is_idle = is_many && state.connections == 0 || state.is_forgotten(now);
                is_idle && self.queue().ready(state.ready).is_none()
            };
            let key = (site.source.name().clone(), site.name.clone());
            if remove_if(&self.sites, &key, site, is_gone) {
                self.retire(site);
            }
        }
    }
}

/// Removes a site unless it was replaced or is in use. Checks under the lock of all, so that no queue is routed to it
/// meanwhile.
fn remove_if<K: Eq + Hash, V>(
    all: &Mutex<HashMap<K, Arc<V>>>,
    key: &K,
    one: &Arc<V>,
    is_gone: impl FnOnce(&V) -> bool,
) -> bool {
    let mut all = all.lock().expect("the sites");
    let is_removed = all.get(key).is_some_and(|other| Arc::ptr_eq(other, one)) && is_gone(one);
    if is_removed {
        all.remove(key);
    }
    is_removed
}

/// Sites without mail that are kept.
const SITES_KEPT: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::observer::SiteState;
    use crate::sender::site::Wanted;
    use crate::sender::source::{Egress, Source};
    use crate::sender::test_relay::{append, idle};
    use crate::sender::{Route, Routing};
    use posthaste_queue::{Prefer, ReadyId, Take};

    #[test]
    fn nothing_is_routed_to_a_site_that_is_being_removed() {
        let (one, other) = (Arc::new(1), Arc::new(1));
        let all = Mutex::new(HashMap::from([("a", one.clone())]));
        let is_locked = || all.try_lock().is_err();
        assert!(!remove_if(&all, &"a", &other, |_| true), "replaced");
        assert!(!remove_if(&all, &"a", &one, |_| !is_locked()), "a queue was routed to it meanwhile");
        assert!(remove_if(&all, &"a", &one, |_| is_locked()));
        assert!(all.lock().unwrap().is_empty());
    }

    fn add(shared: &Shared, name: &str) -> Arc<Site> {
        let source = Arc::new(Egress::new(Source::new("default")));
        let manner = Arc::new(shared.config.manner());
        let destination = shared.routes.resolver().fixed_in_order(&["mx.example".to_owned()]).unwrap();
        let limits = shared.shaper.unlimited("default", "");
        let site = Arc::new(Site::new(source, name.into(), manner, destination, ReadyId::default(), limits));
        let key = (site.source.name().clone(), site.name.clone());
        shared.sites.lock().unwrap().insert(key, site.clone());
        site
    }

    #[test]
    fn a_session_that_opens_in_a_pause_leaves_it() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        let site = add(shared, "10 mx.example");
        let found = {
            let mut state = site.state();
            // Two tasks connect; the session of one fails, then that of the other opens.
            (state.connections, state.connecting) = (2, 2);
            state.standing.session_failed();
            let has_begun = state.standing.failed("421", 1, 60, Instant::now()).is_some();
            state.ended(false);
            state.reached();
            let connects = !matches!(state.grow(&site, 10, &shared.shaper.alarm), Wanted::Nothing);
            let trouble = state.standing.trouble().map(str::to_owned);
            (has_begun, state.standing.is_paused(Instant::now()), state.standing.is_probed(), connects, trouble)
        };
        assert_eq!(found, (true, true, true, false, Some("421".to_owned())));
    }

    #[test]
    fn a_site_is_retired_before_mail_is_ready_for_its_successor() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        append(&relay, &["bob@a.example"]);
        // The site keeps its name, and only the login changes. Nothing listens there.
        let set = |password| {
            let auth = Some(posthaste_smtp::sasl::Credentials::new("ann", password));
            let routes = vec![Arc::new(Route { auth, ..Route::new("[127.0.0.1]", 1) })];
            relay.set_routing(&Routing { routes, ..Routing::default() });
        };
        let route = || {
            let id = shared.queue().next_unrouted().expect("it waits for a route");
            shared.runtime.block_on(super::super::router::route(shared.clone(), id));
        };
        let site = || shared.sites.lock().unwrap().values().next().expect("one").clone();
        set("one");
        route();
        let old = site();
        set("two");
        let state = old.state();
        let ready = state.ready;
        let take = || {
            let take = Take { prefer: Prefer::First, recipients_max: 1, across_domains: false };
            shared.queue().next(ready, take)
        };
        let mut is_taken = false;
        std::thread::scope(|threads| {
            threads.spawn(route);
            while shared.sites.try_lock().is_ok() {
                std::thread::yield_now();
            }
            // While it waits for this lock, a connection that has it could take what is ready.
            is_taken = (0..1000).any(|_| {
                std::thread::yield_now();
                take().is_some()
            });
            drop(state);
        });
        assert!(!is_taken, "by the old site");
        assert!(old.state().is_retired);
        let new = site();
        assert!(!Arc::ptr_eq(&new, &old) && (&new.name, new.state().ready) == (&old.name, ready));
        assert!(take().is_some(), "by the new one");
    }

    #[test]
    fn sites_above_the_bound_are_retired_and_not_only_removed() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        let add = |number: usize| add(shared, &number.to_string());
        let mut sites: Vec<Arc<Site>> = (0..SITES_KEPT).map(add).collect();
        let pause = sites[0].state().standing.failed("it does not answer", 1, 60, Instant::now()).unwrap();
        let (source, site) = (sites[0].source.name(), &sites[0].name);
        let (error, failures, pauses, pause_secs) = ("it does not answer", 1, pause.pauses, pause.secs);
        shared.observe_site(&SiteState::Unreachable { source, site, error, failures, pauses, pause_secs });
        sites[1].state().connections = 1;
        shared.forget_sites(&sites);
        assert_eq!((shared.sites.lock().unwrap().len(), relay.stats().unreachable), (SITES_KEPT, 1));
        sites.push(add(SITES_KEPT));
        shared.forget_sites(&sites);
        assert_eq!((shared.sites.lock().unwrap().len(), relay.stats().unreachable), (1, 0));
        assert!(sites[0].state().is_retired && !sites[1].state().is_retired);
    }
}
