//! The task that looks after the queue: time, routes, connections, what is too old, snapshots.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::connection::reply_for;
use super::observer::AttemptResult;
use super::route::Route;
use super::routing::{Member, Routes, Routing};
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use crate::dns::{Destination, DnsError};
use crate::queue::{Notice, Outcome, QueueId, Secs, Source, Status, What};
use posthaste_smtp::Reply;

/// Until the relay ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut snapshot_at = Instant::now() + SNAPSHOT_EVERY;
    let mut looked_at = 0;
    while !shared.is_ending() {
        let now = shared.time.now();
        if now != looked_at {
            looked_at = now;
            shared.each_second(now);
        }
        shared.route_and_wake();
        if Instant::now() >= snapshot_at || shared.wanted.load(Ordering::Acquire) > 0 {
            let writing = shared.clone();
            let begun = Instant::now();
            let written = tokio::task::spawn_blocking(move || writing.advance()).await;
            if let Ok(Err(error)) = written {
                shared.unreadable(shared.spool.stats().published, &format!("the snapshot of the queue: {error}"));
            }
            // A large queue's snapshot takes its time: at most a tenth of the whole.
            snapshot_at = Instant::now() + SNAPSHOT_EVERY.max(begun.elapsed() * 9);
        }
        let _ = timeout(Duration::from_millis(250), shared.wake.notified()).await;
    }
}

impl Shared {
    fn each_second(self: &Arc<Self>, now: Secs) {
        let (notices, actions) = {
            let mut queue = self.queue();
            queue.tick(now);
            (queue.take_notices(), queue.take_actions())
        };
        let (bounces, actions): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|change| matches!(change.what, What::Failed(_)));
        self.record(actions);
        for change in bounces {
            let shared = self.clone();
            let reply = Reply::new(554, "5.0.0", "given up by the operator");
            self.runtime.spawn_blocking(move || {
                let host = Arc::from("");
                shared.settle_told(change.key.message, vec![change], AttemptResult::Failed, &reply, &host);
            });
        }
        self.recorder.retry(now);
        if now.is_multiple_of(SOURCE_SECS) {
            self.resume_sources();
        }
        for notice in notices {
            self.settle_notice(notice);
        }
        let sites: Vec<Arc<Site>> = self.sites.lock().expect("the sites").values().cloned().collect();
        sites.iter().for_each(|site| self.serve(site));
        self.thin_out(&sites);
        if sites.len() > SITES_KEPT {
            self.sites.lock().expect("the sites").retain(|_, site| {
                let state = site.state();
                state.connections > 0 || self.queue().ready(state.ready).is_some()
            });
        }
    }

    fn settle_notice(self: &Arc<Self>, notice: Notice) {
        let (key, told) = match notice {
            Notice::Expired(key) => (key, Outcome::Failed(Status { code: 0, enhanced: 4007 })),
            Notice::Delayed(key) => (key, Outcome::Untried),
        };
        let change = {
            let mut queue = self.queue();
            let Some(state) = queue.show(key) else { return };
            match told {
                Outcome::Failed(status) => {
                    let status = if state.status == Status::default() { status } else { state.status };
                    queue.finish(key, Outcome::Failed(status))
                }
                _ => Some(crate::queue::Change { key, what: What::DelayTold }),
            }
        };
        let reply = match notice {
            Notice::Expired(_) => Reply::new(554, "5.4.7", "it could not be delivered in time"),
            Notice::Delayed(_) => Reply::new(451, "4.4.7", "it has not been delivered yet"),
        };
        let Some(change) = change else { return };
        let shared = self.clone();
        self.runtime.spawn_blocking(move || {
            shared.settle_told(key.message, vec![change], AttemptResult::Expired, &reply, &Arc::from(""));
        });
    }

    fn route_and_wake(self: &Arc<Self>) {
        let (mut unrouted, mut woken) = (Vec::new(), Vec::new());
        {
            let mut queue = self.queue();
            queue.tick(self.time.now());
            while unrouted.len() < ROUTES_AT_ONCE
                && let Some(id) = queue.next_unrouted()
            {
                unrouted.push(id);
            }
            while let Some(id) = queue.next_woken() {
                woken.extend(queue.ready(id).map(|key| (id, key)));
            }
        }
        if unrouted.len() == ROUTES_AT_ONCE {
            self.wake.notify_one();
        }
        for id in unrouted {
            self.runtime.spawn(route(self.clone(), id));
        }
        for (id, key) in woken {
            let site = self.sites.lock().expect("the sites").get(&key).cloned();
            let Some(site) = site else { continue };
            site.state().ready = id;
            self.serve(&site);
        }
    }

    /// The sites of a destination, one for each source, with its hosts as they are now.
    fn route_to(
        self: &Arc<Self>,
        id: QueueId,
        destination: &Arc<Destination>,
        route: Option<&Arc<Route>>,
        members: &[Member],
    ) {
        let port = route.map_or(self.config.port, |route| route.port);
        let name: Arc<str> = Arc::from(site_name(destination, port, route));
        let until = destination.valid_until.saturating_duration_since(Instant::now()).as_secs();
        let now = self.time.now();
        let until = now.saturating_add(Secs::try_from(until).unwrap_or(Secs::MAX).clamp(1, ROUTE_SECS_MAX));
        let source = |(egress, weight): &Member| Source { name: egress.name().clone(), weight: *weight };
        let sources: Vec<Source> = members.iter().map(source).collect();
        let routed: Vec<Arc<Site>> = {
            let mut sites = self.sites.lock().expect("the sites");
            let ready = self.queue().route(id, &name, &sources, until);
            let site = |(ready, (egress, _)): (_, &Member)| {
                let new = || {
                    let (egress, name, route) = (egress.clone(), name.clone(), route.cloned());
                    Arc::new(Site::new(egress, name, port, route, destination.clone(), ready))
                };
                let site = sites.entry((egress.name().clone(), name.clone())).or_insert_with(new);
                if !site.is_as(egress, route) {
                    let old = std::mem::replace(site, new());
                    self.retire(&old);
                }
                let mut state = site.state();
                (state.destination, state.ready) = (destination.clone(), ready);
                site.clone()
            };
            ready.into_iter().zip(members).map(site).collect()
        };
        routed.iter().for_each(|site| self.serve(site));
    }

    /// Ends the connections of a site behind their transactions.
    fn retire(&self, site: &Site) {
        let mut state = site.state();
        state.is_retired = true;
        state.wake_idle();
        if state.failures > 0 {
            self.unreachable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn set_routing(&self, routing: &Routing) {
        self.set_routes(|before| Routes::new(routing, Some(before)));
        self.reroute_all();
    }

    /// The address of a source cannot be used: its mail goes to the other sources of its pool, or waits.
    pub fn suspend_source(&self, source: &Egress, error: &std::io::Error) {
        if source.suspend(error) {
            self.observe_source(source.name(), Some(&error.to_string()));
            self.reroute_all();
        }
    }

    fn resume_sources(&self) {
        let routes = self.routes();
        let resumed: Vec<_> = routes.sources.iter().filter(|egress| egress.try_resume()).collect();
        resumed.iter().for_each(|egress| self.observe_source(egress.name(), None));
        if !resumed.is_empty() {
            self.reroute_all();
        }
    }

    fn observe_source(&self, source: &str, error: Option<&str>) {
        if let Some(observer) = &self.config.observer {
            observer.source(source, error);
        }
    }

    fn reroute_all(&self) {
        self.queue().reroute_all();
        self.wake.notify_one();
    }

    /// What was put off is tried now.
    pub fn retry_all(self: &Arc<Self>) {
        let sites: Vec<Arc<Site>> = self.sites.lock().expect("the sites").values().cloned().collect();
        sites.iter().for_each(|site| site.state().resume());
        let mut from = None;
        loop {
            let mut queue = self.queue();
            let (keys, next) = queue.select(&crate::queue::Selection::default(), from);
            let changes: Vec<_> =
                keys.into_iter().filter_map(|key| queue.act(key, crate::queue::Action::Flush)).collect();
            drop(queue);
            self.record(changes);
            match next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        sites.iter().for_each(|site| self.serve(site));
    }
}

/// Finds the site of a queue. If there is none, what waits has had its attempt.
async fn route(shared: Arc<Shared>, id: QueueId) {
    let Some((name, _)) = shared.queue().queue(id) else { return };
    let (config, routes) = (&shared.config, shared.routes());
    let fixed = routes.routes.iter().find(|route| route.fits(&name.domain));
    let found = match fixed {
        Some(route) if !route.use_mx => config.resolver.fixed(&route.host),
        Some(route) => config.resolver.destination(&route.host).await,
        None => config.resolver.destination(&name.domain).await,
    };
    match found {
        Ok(destination) => shared.route_to(id, &destination, fixed, &routes.members(&name)),
        Err(error) => end_all(&shared, id, &error).await,
    }
}

async fn end_all(shared: &Arc<Shared>, id: QueueId, error: &DnsError) {
    loop {
        for _ in 0..ENDED_AT_ONCE {
            let taken = shared.queue().take(id, shared.config.recipients_max);
            let Some(transaction) = taken else { return };
            let reply = reply_for(error);
            debug_assert!(reply.code() >= 400);
            shared.end_without_host(&transaction, error);
        }
        tokio::task::yield_now().await;
    }
}

fn site_name(destination: &Destination, port: u16, route: Option<&Arc<Route>>) -> String {
    let hosts: Vec<String> =
        destination.site.hosts().iter().map(|host| format!("{} {}", host.preference, host.name)).collect();
    let mut name = hosts.join(", ");
    if port != 25 {
        name += &format!(" :{port}");
    }
    name + &route.map_or_else(String::new, |route| route.manner())
}

/// How often the addresses of suspended sources are tried.
const SOURCE_SECS: Secs = 5;
/// What was settled meanwhile need not be replayed, and its bodies go, after so long.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(5);
const ROUTES_AT_ONCE: usize = 1000;
const ENDED_AT_ONCE: usize = 100;
/// Sites without mail stay known up to this number.
const SITES_KEPT: usize = 10_000;
/// A route is looked up again after a day at the latest.
const ROUTE_SECS_MAX: Secs = 86_400;
