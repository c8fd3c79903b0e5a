//! Routes queues to sites: looks up hosts in fair order, and makes the sites for the results.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use posthaste_consumer::BudgetWait;
use posthaste_smtp::Reply;
use tokio::time::Instant;

use super::ended::{end_unsent, end_without_host};
use super::route_table::Plan;
use super::routing::{Member, Routes};
use super::serving::serve;
use super::shaping::join;
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use super::status::status_of;
use posthaste_dns::{DnsError, Slot};
use posthaste_queue::{AttemptOutcome, Hop, LateHop, QueueId, QueueName, ReadyId, RouteSource, Secs, Transaction};

/// Finds the sites of a queue. Without any, its waiting mail counts as attempted.
pub(super) async fn route(shared: Arc<Shared>, id: QueueId) {
    loop {
        let Some((name, _)) = shared.queue().queue(id) else { return };
        let worker = shared.watch.worker(format!("routing of mail to {}", name.domain), STEPS, PATIENCE);
        worker.pulse().step(LOOKING_UP);
        let routes = shared.routes.in_force();
        if let Some(bounced) = routes.bounced(&name) {
            let reply = Reply::new(550, "5.7.0", format!("given up: {}", bounced.reason));
            let outcome = AttemptOutcome::Failed(status_of(&reply));
            worker.pulse().step(0);
            return end_all(&shared, id, |transaction| end_unsent(&shared, transaction, outcome, reply.clone())).await;
        }
        let Plans { usual, late } = match Plans::new(&shared, &routes, &name).await {
            Ok(plans) => plans,
            Err(error) => {
                worker.pulse().step(0);
                return end_all(&shared, id, |transaction| end_without_host(&shared, transaction, &error)).await;
            }
        };
        if route_to(&shared, id, &routes, &usual, late.as_ref()) {
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
        let pause = usual.as_ref().map_or_else(
            |_| Some(Instant::now()),
            |usual| shared.sites.pause_of(&usual.name, usual.members.iter().map(|(egress, _)| egress), Instant::now()),
        );
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

/// The site of a plan as seen from one of its sources. Without mail routed to it, a private one.
pub(super) fn site_of(shared: &Shared, plan: &Plan, egress: &Arc<Egress>) -> Arc<Site> {
    let known = shared.sites.find(&(egress.name().clone(), plan.name.clone()));
    known.unwrap_or_else(|| {
        let site = new_site(shared, plan, egress, ReadyId::default());
        join(shared, &site, &mut site.state(), &plan.domain);
        Arc::new(site)
    })
}

/// The site of a plan as seen from one of its sources, without limits.
fn new_site(shared: &Shared, plan: &Plan, egress: &Arc<Egress>, ready: ReadyId) -> Site {
    let unlimited = shared.shaper.unlimited(egress.name(), &plan.name);
    let Plan { name, manner, destination, .. } = plan;
    Site::new(egress.clone(), name.clone(), manner.clone(), destination.clone(), ready, unlimited)
}

/// Routes a queue to the sites of its plans, one per source, with their current hosts. `false`: the routes have
/// changed meanwhile.
fn route_to(shared: &Arc<Shared>, id: QueueId, routes: &Arc<Routes>, usual: &Plan, late: Option<&(u8, Plan)>) -> bool {
    let until = late.map_or(usual.until, |(_, late)| late.until.min(usual.until));
    let until = until.saturating_duration_since(Instant::now()).as_secs();
    let now = shared.time.now();
    let until = now.saturating_add(Secs::try_from(until).unwrap_or(Secs::MAX).clamp(1, ROUTE_SECS_MAX));
    let source = |(egress, weight): &Member| RouteSource { name: egress.name().clone(), weight: *weight };
    let sources = |plan: &Plan| plan.members.iter().map(source).collect::<Vec<RouteSource>>();
    let usual_sources = sources(usual);
    let late_sources = late.map_or_else(Vec::new, |(_, plan)| sources(plan));
    let hop = Hop { site: &usual.name, sources: &usual_sources };
    let late_hop =
        late.map(|(after, plan)| LateHop { after: *after, hop: Hop { site: &plan.name, sources: &late_sources } });
    let members = std::iter::once(usual).chain(late.map(|(_, plan)| plan));
    let members = members.flat_map(|plan| plan.members.iter().map(move |member| (plan, member)));
    let routed: Vec<Arc<Site>> = {
        let mut sites = shared.sites.lock();
        if !Arc::ptr_eq(routes, &shared.routes.in_force()) {
            return false;
        }
        for (plan, (egress, _)) in members.clone() {
            sites.retire_replaced(egress, &plan.name, &plan.manner);
        }
        let (ready, resumes) = {
            let mut queue = shared.queue();
            let ready = queue.route_with(id, hop, late_hop, until);
            let resumes = !ready.is_empty() && queue.take_resumes_sites(id);
            (ready, resumes)
        };
        let site = |(ready, (plan, (egress, _))): (_, (&Plan, &Member))| {
            let known = sites.find(egress, &plan.name, &plan.manner);
            let site = known.unwrap_or_else(|| sites.put(new_site(shared, plan, egress, ready), routes.egresses()));
            let mut state = site.state();
            (state.destination, state.ready) = (plan.destination.clone(), ready);
            if resumes {
                state.standing.resume();
            }
            // The addresses may have changed.
            state.set_full(Vec::new());
            join(shared, &site, &mut state, &plan.domain);
            drop(state);
            site
        };
        ready.into_iter().zip(members).map(site).collect()
    };
    routed.iter().for_each(|site| serve(shared, site));
    true
}

/// A query in flight. However it ends, the queues that wait for it are routed.
struct Asking {
    shared: Arc<Shared>,
    domain: String,
}

/// Routes a queue: now if its hosts are known, else after the look-up of its domain.
pub(super) fn route_in_turn(shared: &Arc<Shared>, id: QueueId) {
    let Some((name, _)) = shared.queue().queue(id) else { return };
    let Some((domain, pace)) = shared.routes.question_of(&name) else {
        shared.runtime.spawn(route(shared.clone(), id));
        return;
    };
    if !shared.routes.unrouted.add(&domain, &name.tenant, id) {
        return;
    }
    // The slots may outlive the relay.
    let weak = Arc::downgrade(shared);
    shared.routes.resolver().when_free(pace, &name.tenant, move |slot| {
        let Some(shared) = weak.upgrade() else { return Err(slot) };
        if shared.is_ending() || !shared.routes.unrouted.begin(&domain) {
            return Err(slot);
        }
        let runtime = shared.runtime.clone();
        runtime.spawn(ask(Asking { shared, domain }, slot));
        Ok(())
    });
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
