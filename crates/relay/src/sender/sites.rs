//! All sites with mail, and their shared state: connections, sessions to reuse, knowledge of TLS.
//!
//! A known site that is removed or replaced is retired, or it would stay counted as unreachable.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::backlog::{self, Backlog};
use super::broken_tls::BrokenTls;
use super::observer::SiteState;
use super::reuse::Reuse;
use super::route::Manner;
use super::site::{Sharing, Site, SiteKey};
use super::source::Egress;
use super::tls_counts::TlsCounts;
use posthaste_queue::ReadyId;

/// Owner of sites and their connections.
pub(super) struct Sites {
    known: Mutex<HashMap<SiteKey, Arc<Site>>>,
    pub sharing: Arc<Sharing>,
    pub reuse: Arc<Reuse>,
    pub broken_tls: BrokenTls,
    pub tls_counts: TlsCounts,
    unreachable: AtomicUsize,
}

impl Sites {
    pub fn new(connections_max: usize) -> Self {
        Sites {
            known: Mutex::default(),
            sharing: Arc::new(Sharing::new(connections_max)),
            reuse: Arc::default(),
            broken_tls: BrokenTls::default(),
            tls_counts: TlsCounts::default(),
            unreachable: AtomicUsize::new(0),
        }
    }

    /// Locks all sites: no queue is routed to one meanwhile.
    pub fn lock(&self) -> KnownSites<'_> {
        KnownSites { all: self, known: self.known() }
    }

    /// Lock it before a site.
    fn known(&self) -> MutexGuard<'_, HashMap<SiteKey, Arc<Site>>> {
        self.known.lock().expect("the sites")
    }

    pub fn find(&self, key: &SiteKey) -> Option<Arc<Site>> {
        self.known().get(key).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Site>> {
        self.known().values().cloned().collect()
    }

    /// The latest end of a pause among the sites of a name under these sources.
    pub fn pause_of<'a>(
        &self,
        name: &Arc<str>,
        sources: impl Iterator<Item = &'a Arc<Egress>>,
        now: Instant,
    ) -> Option<Instant> {
        let known = self.known();
        let sites = sources.filter_map(|source| known.get(&(source.name().clone(), name.clone())));
        sites.filter_map(|site| site.state().standing.pause(now)).max()
    }

    /// Wakes all idle connections, to end or to take mail.
    pub fn wake_idle(&self) {
        self.known().values().for_each(|site| site.state().idle.wake_all());
    }

    /// The queue's pressure on intake, 0 to 1. Sites delayed by their limits do not count.
    pub fn backlog_level(&self, now: Instant) -> f32 {
        backlog::level_of(self.known().values().map(|site| {
            let mut state = site.state();
            let backlog = state.backlog.look();
            if state.is_limited(now) { Backlog::default() } else { backlog }
        }))
    }

    /// Number of unreachable sites.
    pub fn unreachable(&self) -> usize {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// Counts a change of a site.
    pub fn note(&self, state: &SiteState<'_>) {
        match state {
            SiteState::Unreachable { pauses: 1, .. } => {
                self.unreachable.fetch_add(1, Ordering::Relaxed);
            }
            SiteState::Unreachable { .. } => {}
            SiteState::Reached { .. } => {
                self.unreachable.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Ends the connections of a site after their transactions.
    pub fn retire(&self, site: &Site) {
        let mut state = site.state();
        state.is_retired = true;
        state.idle.wake_all();
        state.leave_queues(site, &self.sharing);
        if state.standing.retire() {
            self.unreachable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes sites without mail: those unreachable long ago; beyond [`SITES_KEPT`], all without a connection.
    pub fn forget(&self, sites: &[Arc<Site>], has_mail: impl Fn(ReadyId) -> bool) {
        let now = Instant::now();
        let is_many = sites.len() > SITES_KEPT;
        for site in sites {
            let is_gone = |site: &Site| {
                let state = site.state();
                let is_idle = is_many && state.connections == 0 || state.is_forgotten(now);
                is_idle && !has_mail(state.ready)
            };
            if remove_if(&self.known, &site.key(), site, is_gone) {
                self.retire(site);
            }
        }
    }
}

/// All known sites, locked. Lock it before a site.
pub(super) struct KnownSites<'a> {
    all: &'a Sites,
    known: MutexGuard<'a, HashMap<SiteKey, Arc<Site>>>,
}

impl KnownSites<'_> {
    /// The site of a source with this name and these settings.
    pub fn find(&self, source: &Arc<Egress>, name: &Arc<str>, manner: &Manner) -> Option<Arc<Site>> {
        let known = self.known.get(&(source.name().clone(), name.clone()));
        known.filter(|site| site.is_of(source, manner)).cloned()
    }

    /// Retires the site that one with these settings is about to replace. They share their name, and so their ready
    /// queue: its open connections take no more of it.
    pub fn retire_replaced(&self, source: &Arc<Egress>, name: &Arc<str>, manner: &Manner) {
        let known = self.known.get(&(source.name().clone(), name.clone()));
        known.filter(|site| !site.is_of(source, manner)).into_iter().for_each(|site| self.all.retire(site));
    }

    /// Retires the sites that no route leads to any more.
    pub fn retire_unless(&self, is_in_force: impl Fn(&Site) -> bool) {
        self.known.values().filter(|site| !is_in_force(site)).for_each(|site| self.all.retire(site));
    }

    /// Adds a site, replacing a retired one. It shares the count of failed connections with the sites of its name under
    /// the other `sources`.
    pub fn put<'s>(&mut self, site: Site, mut sources: impl Iterator<Item = &'s Arc<Egress>>) -> Arc<Site> {
        let beside = sources.find_map(|other| self.known.get(&(other.name().clone(), site.name.clone())));
        let failing_dials = beside.map(|site| site.failing_dials.clone()).unwrap_or_default();
        let site = Arc::new(site.beside(failing_dials));
        self.known.insert(site.key(), site.clone());
        site
    }
}

/// Makes idle connections check if they must close for another site.
#[derive(Default)]
pub(super) struct Thinner {
    next_at: Option<Instant>,
    /// Start of the next pass over the sites.
    from: usize,
}

impl Thinner {
    /// True once every [`THIN_EVERY`]. Call it often.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.next_at.is_none_or(|at| now >= at);
        if is_due {
            self.next_at = Some(now + THIN_EVERY);
        }
        is_due
    }

    pub fn look(&mut self, all: &Sites) {
        let mut wanted = all.sharing.wanted();
        if wanted == 0 {
            return;
        }
        let sites = all.known();
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

/// Sites visited in one pass. The lock is held meanwhile: no site can be found or made.
const SITES_AT_ONCE: usize = 1000;
/// Time between passes: the longest wait of a site for an idle connection.
const THIN_EVERY: Duration = Duration::from_millis(10);
/// Sites without mail that are kept.
const SITES_KEPT: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::shared::Shared;
    use crate::sender::site::{Alarm, OpenLimit, SiteLimits, State, Waiter, Wanted};
    use crate::sender::source::OutgoingSource;
    use crate::sender::test_relay::{append, idle};
    use crate::sender::{FixedRoute, Routing};
    use posthaste_queue::{Prefer, Take};

    #[test]
    fn nothing_is_routed_to_a_site_that_is_being_removed() {
        let one = Arc::new(1);
        let other = Arc::new(1);
        let all = Mutex::new(HashMap::from([("a", one.clone())]));
        let is_locked = || all.try_lock().is_err();
        assert!(!remove_if(&all, &"a", &other, |_| true), "replaced");
        assert!(!remove_if(&all, &"a", &one, |_| !is_locked()), "a queue was routed to it meanwhile");
        assert!(remove_if(&all, &"a", &one, |_| is_locked()));
        assert!(all.lock().unwrap().is_empty());
    }

    fn add(shared: &Shared, name: &str) -> Arc<Site> {
        let source = Arc::new(Egress::new(OutgoingSource::new("default")));
        let manner = Arc::new(Manner::of_hosts(25, None));
        let destination = shared.routes.resolver().fixed_in_order(&["mx.example".to_owned()]).unwrap();
        let limits = shared.shaper.unlimited("default", "");
        let site = Site::new(source, name.into(), manner, destination, ReadyId::default(), limits);
        shared.sites.lock().put(site, std::iter::empty())
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
            let share = |state: &mut State| state.share(&site, &shared.sites.sharing);
            let connects = !matches!(state.grow(&site, &shared.alarm, share), Wanted::Nothing);
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
            let routes = vec![Arc::new(FixedRoute { auth, ..FixedRoute::new("[127.0.0.1]", 1) })];
            relay.set_routing(&Routing { routes, ..Routing::default() });
        };
        let route = || {
            let id = shared.queue().next_unrouted().expect("it waits for a route");
            shared.runtime.block_on(super::super::router::route(shared.clone(), id));
        };
        let site = || shared.sites.all().pop().expect("one");
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
            while shared.sites.known.try_lock().is_ok() {
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
    fn a_site_refused_by_one_limit_wakes_those_at_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        let [site, waiting] = ["one", "other"].map(|name| add(shared, name));
        let [free, used] = ["free", "used"].map(|name| Arc::new(OpenLimit::new(name.into())));
        let mut limits = SiteLimits::of(shared.shaper.defaults(), "default", "one");
        limits.open = vec![(free.clone(), 1), (used, 0)];
        free.wait(&waiting);
        let alarm = Alarm::new();
        {
            let mut state = site.state();
            state.limits = Arc::new(limits);
            let share = |state: &mut State| state.share(&site, &shared.sites.sharing);
            assert!(matches!(state.grow(&site, &alarm, share), Wanted::Nothing));
        }
        let woken = async { tokio::time::timeout(Duration::from_secs(10), alarm.next()).await.unwrap_or_default() };
        let woken = shared.runtime.block_on(woken);
        let [Waiter::InTurn(next)] = &woken[..] else { panic!("{woken:?}") };
        assert!(next.upgrade().is_some_and(|next| Arc::ptr_eq(&next, &waiting)));
    }

    #[test]
    fn a_retired_site_waits_for_no_connection() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        let site = add(shared, "one");
        let limit = Arc::new(OpenLimit::new("limit".into()));
        let sharing = Arc::new(Sharing::new(0));
        {
            let mut state = site.state();
            state.set_full(vec![limit.clone()]);
            limit.wait(&site);
            assert!(state.share(&site, &sharing).is_none());
            assert!(sharing.wanted() == 1 && limit.is_waited_for());
            state.leave_queues(&site, &sharing);
        }
        assert!(sharing.wanted() == 0 && !limit.is_waited_for());
        let mut state = site.state();
        assert!(state.share(&site, &shared.sites.sharing).is_some());
        state.set_full(vec![limit.clone()]);
        limit.wait(&site);
        drop(state);
        shared.sites.retire(&site);
        assert!(!limit.is_waited_for());
    }

    #[test]
    fn sites_above_the_bound_are_retired_and_not_only_removed() {
        let dir = tempfile::tempdir().unwrap();
        let relay = idle(dir.path());
        let shared = &relay.0.shared;
        let add = |number: usize| add(shared, &number.to_string());
        let mut sites: Vec<Arc<Site>> = (0..SITES_KEPT).map(add).collect();
        let pause = sites[0].state().standing.failed("it does not answer", 1, 60, Instant::now()).unwrap();
        let source = sites[0].source.name();
        let site = &sites[0].name;
        let error = "it does not answer";
        let failures = 1;
        let pauses = pause.pauses;
        let pause_secs = pause.secs;
        shared.observe_site(&SiteState::Unreachable { source, site, error, failures, pauses, pause_secs });
        sites[1].state().connections = 1;
        shared.sites.forget(&sites, |ready| shared.queue().ready(ready).is_some());
        assert_eq!((shared.sites.all().len(), relay.stats().unreachable), (SITES_KEPT, 1));
        sites.push(add(SITES_KEPT));
        shared.sites.forget(&sites, |ready| shared.queue().ready(ready).is_some());
        assert_eq!((shared.sites.all().len(), relay.stats().unreachable), (1, 0));
        assert!(sites[0].state().is_retired && !sites[1].state().is_retired);
    }
}
