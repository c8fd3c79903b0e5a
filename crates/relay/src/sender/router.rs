//! From a queue to its sites: look-ups in turn, and the sites of what they find.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use posthaste_consumer::BudgetWait;
use posthaste_smtp::Reply;
use tokio::time::Instant;

use super::route::Manner;
use super::route_table::Plan;
use super::routing::{Member, Routes, Routing};
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use super::status::status_of;
use posthaste_dns::{DnsError, MailHost, Slot};
use posthaste_queue::{Hop, LateHop, Outcome, QueueId, QueueName, ReadyId, Secs, Source, Transaction};

/// Finds the sites of a queue. Without any, its waiting mail counts as attempted.
pub(super) async fn route(shared: Arc<Shared>, id: QueueId) {
    loop {
        let Some((name, _)) = shared.queue().queue(id) else { return };
        let worker = shared.watch.worker(format!("routing of mail to {}", name.domain), STEPS, PATIENCE);
        worker.pulse().step(LOOKING_UP);
        let routes = shared.routes.in_force();
        if let Some(bounced) = routes.bounced(&name) {
            let reply = Reply::new(550, "5.7.0", format!("given up: {}", bounced.reason));
            let outcome = Outcome::Failed(status_of(&reply));
            worker.pulse().step(0);
            return end_all(&shared, id, |transaction| shared.end_unsent(transaction, outcome, reply.clone())).await;
        }
        let Plans { usual, late } = match Plans::new(&shared, &routes, &name).await {
            Ok(plans) => plans,
            Err(error) => {
                worker.pulse().step(0);
                return end_without_host(&shared, id, &error).await;
            }
        };
        if shared.route_to(id, &routes, &usual, late.as_ref()) {
            return;
        }
    }
}

/// The usual plan of a queue, and that for recipients after some attempts.
struct Plans {
    usual: Plan,
    late: Option<(u8, Plan)>,
}

impl Plans {
    /// Uses a fallback while the hosts cannot be reached.
    async fn new(shared: &Shared, routes: &Routes, name: &QueueName) -> Result<Self, DnsError> {
        let usual = Plan::new(&shared.routes, routes, name, routes.route(name)).await;
        let Some(hop) = routes.fallback(name) else { return usual.map(|usual| Plans { usual, late: None }) };
        if usual.as_ref().is_err_and(DnsError::is_final) {
            return usual.map(|usual| Plans { usual, late: None });
        }
        let pause = usual.as_ref().map_or_else(|_| Some(Instant::now()), |usual| shared.pause_of(usual));
        let after = hop.0.after_attempts;
        if pause.is_none() && after == 0 {
            return usual.map(|usual| Plans { usual, late: None });
        }
        match (usual, Plan::new(&shared.routes, routes, name, Some(hop)).await) {
            (usual, Err(_)) => usual.map(|usual| Plans { usual, late: None }),
            (Ok(usual), Ok(fallback)) if pause.is_none() => Ok(Plans { usual, late: Some((after, fallback)) }),
            (_, Ok(fallback)) => {
                Ok(Plans { usual: Plan { until: pause.unwrap_or(fallback.until), ..fallback }, late: None })
            }
        }
    }
}

async fn end_without_host(shared: &Arc<Shared>, id: QueueId, error: &DnsError) {
    end_all(shared, id, |transaction| shared.end_without_host(transaction, error)).await;
}

async fn end_all(shared: &Arc<Shared>, id: QueueId, end: impl Fn(&Transaction)) {
    let mut wait = BudgetWait::default();
    loop {
        // Each recipient is an outcome that waits to be recorded.
        if !poll_fn(|cx| shared.outcomes.recorder.budget.poll_begin(&mut wait, cx)).await {
            return;
        }
        for _ in 0..ENDED_AT_ONCE {
            let taken = shared.queue().take(id, shared.config.recipients_max);
            let Some(transaction) = taken else { return };
            end(&transaction);
        }
        tokio::task::yield_now().await;
    }
}

impl Shared {
    /// End of the pause of a site for one of its sources.
    fn pause_of(&self, plan: &Plan) -> Option<Instant> {
        let now = Instant::now();
        let sites = self.sites.lock();
        let of = |(egress, _): &Member| sites.get(&(egress.name().clone(), plan.name.clone())).cloned();
        plan.members.iter().filter_map(of).filter_map(|site| site.state().standing.pause(now)).max()
    }

    /// The site of a plan as one of its sources sees it. Without mail routed to it, a private one.
    pub fn site_of(&self, plan: &Plan, egress: &Arc<Egress>) -> Arc<Site> {
        let known = {
            let sites = self.sites.lock();
            sites.get(&(egress.name().clone(), plan.name.clone())).cloned()
        };
        known.unwrap_or_else(|| {
            let unlimited = self.shaper.unlimited(egress.name(), &plan.name);
            let (egress, name, manner) = (egress.clone(), plan.name.clone(), plan.manner.clone());
            let destination = plan.destination.clone();
            let site = Site::new(egress, name, manner, destination, ReadyId::default(), unlimited);
            self.join(&site, &mut site.state(), &plan.domain);
            Arc::new(site)
        })
    }

    /// Routes a queue to the sites of its plans, one per source, with their current hosts. `false`: the routes have
    /// changed meanwhile.
    fn route_to(self: &Arc<Self>, id: QueueId, routes: &Arc<Routes>, usual: &Plan, late: Option<&(u8, Plan)>) -> bool {
        let until = late.map_or(usual.until, |(_, late)| late.until.min(usual.until));
        let until = until.saturating_duration_since(Instant::now()).as_secs();
        let now = self.time.now();
        let until = now.saturating_add(Secs::try_from(until).unwrap_or(Secs::MAX).clamp(1, ROUTE_SECS_MAX));
        let source = |(egress, weight): &Member| Source { name: egress.name().clone(), weight: *weight };
        let sources = |plan: &Plan| plan.members.iter().map(source).collect::<Vec<Source>>();
        let (usual_sources, late_sources) = (sources(usual), late.map_or_else(Vec::new, |(_, plan)| sources(plan)));
        let hop = Hop { site: &usual.name, sources: &usual_sources };
        let late_hop =
            late.map(|(after, plan)| LateHop { after: *after, hop: Hop { site: &plan.name, sources: &late_sources } });
        let members = std::iter::once(usual).chain(late.map(|(_, plan)| plan));
        let members = members.flat_map(|plan| plan.members.iter().map(move |member| (plan, member)));
        let routed: Vec<Arc<Site>> = {
            let mut sites = self.sites.lock();
            if !Arc::ptr_eq(routes, &self.routes.in_force()) {
                return false;
            }
            let is_of = |site: &Site, plan: &Plan, egress: &Arc<Egress>| {
                Arc::ptr_eq(&site.source, egress) && site.manner.is_as(&plan.manner)
            };
            // A replaced site may share its name, and so its ready queue, with its successor: its open connections take
            // no more of it.
            for (plan, (egress, _)) in members.clone() {
                let known = sites.get(&(egress.name().clone(), plan.name.clone()));
                known.filter(|site| !is_of(site, plan, egress)).into_iter().for_each(|site| self.sites.retire(site));
            }
            let (ready, resumes) = {
                let mut queue = self.queue();
                let ready = queue.route_with(id, hop, late_hop, until);
                let resumes = !ready.is_empty() && queue.take_resumes_sites(id);
                (ready, resumes)
            };
            let site = |(ready, (plan, (egress, _))): (_, (&Plan, &Member))| {
                let key = (egress.name().clone(), plan.name.clone());
                let known = sites.get(&key).filter(|site| is_of(site, plan, egress)).cloned();
                let site = known.unwrap_or_else(|| {
                    let mut of_others = routes.egresses().map(|other| (other.name().clone(), plan.name.clone()));
                    let beside = of_others.find_map(|other| sites.get(&other)).map(|site| site.failing_dials.clone());
                    let (egress, name, manner) = (egress.clone(), plan.name.clone(), plan.manner.clone());
                    let unlimited = self.shaper.unlimited(egress.name(), &name);
                    let site = Site::new(egress, name, manner, plan.destination.clone(), ready, unlimited);
                    let site = Arc::new(site.beside(beside.unwrap_or_default()));
                    sites.insert(key, site.clone());
                    site
                });
                let mut state = site.state();
                (state.destination, state.ready) = (plan.destination.clone(), ready);
                if resumes {
                    state.standing.resume();
                }
                // The addresses may have changed.
                state.set_full(Vec::new());
                self.join(&site, &mut state, &plan.domain);
                drop(state);
                site
            };
            ready.into_iter().zip(members).map(site).collect()
        };
        routed.iter().for_each(|site| self.serve(site));
        true
    }

    pub fn set_routing(&self, routing: &Routing) {
        self.change_routes(Some(routing));
        self.ahead.forget();
    }

    /// Applies changed diversions.
    pub fn divert(&self) {
        self.change_routes(None);
    }

    /// Replaces the routes. `None`: the routing stays.
    fn change_routes(&self, routing: Option<&Routing>) {
        {
            // Locked so that nothing is routed by the old routes after this.
            let sites = self.sites.lock();
            let diversions = self.queue().take_diversions();
            self.routes.replace(routing, diversions);
            self.queue().reroute_all();
            let routes = self.routes.in_force();
            // No route leads to these any more.
            sites.values().filter(|site| !routes.has(&site.source)).for_each(|site| self.sites.retire(site));
        }
        self.wake.notify_one();
    }

    /// Suspends a source whose address or proxy cannot be used: its mail goes to the other sources of its pool, or
    /// waits.
    pub fn suspend_source(&self, source: &Egress, error: &std::io::Error) {
        if source.suspend(error) {
            self.observe_source(source.name(), Some(&error.to_string()));
            self.reroute_all();
        }
    }

    /// Checks which sources can be used again. Call it every second.
    pub fn look_at_sources(self: &Arc<Self>, now: Secs) {
        let routes = self.routes.in_force();
        // `count` visits each of them.
        if routes.sources.iter().filter(|egress| egress.look(now)).count() > 0 {
            self.reroute_all();
        }
        if !now.is_multiple_of(LOOK_SECS) {
            return;
        }
        if routes.has_fallback() {
            self.queue().reroute_old();
            self.wake.notify_one();
        }
        for egress in routes.sources.iter().filter(|egress| egress.is_suspended()) {
            let (shared, egress) = (self.clone(), egress.clone());
            self.runtime.spawn(async move {
                if egress.try_resume().await {
                    shared.observe_source(egress.name(), None);
                    shared.reroute_all();
                }
            });
        }
    }

    fn observe_source(&self, source: &str, error: Option<&str>) {
        if let Some(observer) = &self.config.observer {
            observer.source(source, error);
        }
    }

    /// Routes all mail anew, by the sources usable now.
    pub fn reroute_all(&self) {
        self.queue().reroute_all();
        self.wake.notify_one();
    }

    /// Reroutes the mail of a site by domain, if the certificate of a host may be named for them.
    pub fn split_by_next_hop(&self, site: &Site, host: &MailHost) {
        let Manner { has_dane, next_hop, .. } = &*site.manner;
        if *has_dane && next_hop.is_empty() && self.routes.dane.wants_next_hop(&host.name) {
            self.queue().reroute_site(&site.name);
            self.wake.notify_one();
        }
    }

    /// Reroutes the mail of a site whose hosts cannot be reached, if it has a fallback.
    pub fn fall_back(&self, site: &str) {
        if self.routes.in_force().has_fallback() {
            self.queue().reroute_site(site);
            self.wake.notify_one();
        }
    }
}

/// A query in flight. However it ends, the queues that wait for it are routed.
struct Asking {
    shared: Arc<Shared>,
    domain: String,
}

impl Shared {
    /// Routes a queue: now if its hosts are known, else after the look-up of its domain.
    pub fn route_in_turn(self: &Arc<Self>, id: QueueId) {
        let Some((name, _)) = self.queue().queue(id) else { return };
        let Some((domain, pace)) = self.routes.question_of(&name) else {
            self.runtime.spawn(route(self.clone(), id));
            return;
        };
        if !self.routes.unrouted.add(&domain, &name.tenant, id) {
            return;
        }
        // The slots may outlive the relay.
        let shared = Arc::downgrade(self);
        self.routes.resolver().when_free(pace, &name.tenant, move |slot| {
            let Some(shared) = shared.upgrade() else { return Err(slot) };
            if shared.is_ending() || !shared.routes.unrouted.begin(&domain) {
                return Err(slot);
            }
            let runtime = shared.runtime.clone();
            runtime.spawn(ask(Asking { shared, domain }, slot));
            Ok(())
        });
    }
}

async fn ask(asking: Asking, slot: Slot) {
    let worker = asking.shared.watch.worker(format!("routing of mail to {}", asking.domain), STEPS, PATIENCE);
    worker.pulse().step(LOOKING_UP);
    // The cache holds the answer for each of the queues.
    let _ = asking.shared.routes.resolver().destination_in(Some(slot), &asking.domain).await;
}

impl Drop for Asking {
    fn drop(&mut self) {
        for id in self.shared.routes.unrouted.end(&self.domain) {
            self.shared.runtime.spawn(route(self.shared.clone(), id));
        }
    }
}

const STEPS: &[&str] = &["", "finding its hosts"];
const LOOKING_UP: u8 = 1;
/// Longest normal time of routing: look-ups time out earlier.
const PATIENCE: Duration = Duration::from_secs(300);
const ENDED_AT_ONCE: usize = 100;
/// Longest lifetime of a route.
const ROUTE_SECS_MAX: Secs = 86_400;
/// Time between two checks of suspended sources.
const LOOK_SECS: Secs = 5;
