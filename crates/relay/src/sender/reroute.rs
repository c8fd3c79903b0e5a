//! Reasons to reroute waiting mail: changed routes, sources that fail or recover, unreachable hosts.

use std::sync::Arc;

use super::route::Manner;
use super::routing::Routing;
use super::shared::Shared;
use super::site::Site;
use super::source::Egress;
use posthaste_dns::{MailHost, Resolver};
use posthaste_queue::Secs;

pub(super) fn set_routing(shared: &Shared, routing: &Routing) {
    change_routes(shared, Some(routing));
    shared.ahead.forget();
}

/// Applies changed diversions.
pub(super) fn divert(shared: &Shared) {
    change_routes(shared, None);
}

/// Replaces the routes. `None`: the routing stays.
fn change_routes(shared: &Shared, routing: Option<&Routing>) {
    {
        // Locked so that nothing is routed by the old routes after this.
        let sites = shared.sites.lock();
        let diversions = shared.queue().take_diversions();
        shared.routes.replace(routing, diversions);
        shared.queue().reroute_all();
        let routes = shared.routes.in_force();
        // No route leads to these sites any more.
        sites.retire_unless(|site| routes.has(&site.source));
    }
    shared.wake.notify_one();
}

pub(super) fn set_resolver(shared: &Shared, resolver: Arc<Resolver>) {
    shared.routes.set_resolver(resolver);
    shared.ahead.forget();
    // New routes: queues being routed by the old ones are routed again.
    divert(shared);
}

/// Suspends a source with an unusable address or proxy: its mail goes to the other sources of its pool, or waits.
pub(super) fn suspend_source(shared: &Shared, source: &Egress, error: &std::io::Error) {
    if source.suspend(error) {
        observe_source(shared, source.name(), Some(&error.to_string()));
        reroute_all(shared);
    }
}

/// Checks which sources can be used again. Call it every second.
pub(super) fn look_at_sources(shared: &Arc<Shared>, now: Secs) {
    let routes = shared.routes.in_force();
    // `count` visits each source.
    if routes.sources.iter().filter(|egress| egress.look(now)).count() > 0 {
        reroute_all(shared);
    }
    if !now.is_multiple_of(LOOK_SECS) {
        return;
    }
    if routes.has_fallback() {
        shared.queue().reroute_old();
        shared.wake.notify_one();
    }
    for egress in routes.sources.iter().filter(|egress| egress.is_suspended()) {
        let resuming = shared.clone();
        let egress = egress.clone();
        shared.runtime.spawn(async move {
            if egress.try_resume().await {
                observe_source(&resuming, egress.name(), None);
                reroute_all(&resuming);
            }
        });
    }
}

fn observe_source(shared: &Shared, source: &str, error: Option<&str>) {
    if let Some(observer) = &shared.config.observer {
        observer.source(source, error);
    }
}

/// Routes all mail anew, by the presently usable sources.
pub(super) fn reroute_all(shared: &Shared) {
    shared.queue().reroute_all();
    shared.wake.notify_one();
}

/// Reroutes the mail of a site by domain, if this host's certificate may have the name of the mail's domain.
pub(super) fn split_by_next_hop(shared: &Shared, site: &Site, host: &MailHost) {
    let Manner { has_dane, next_hop, .. } = &*site.manner;
    if *has_dane && next_hop.is_empty() && shared.routes.dane.wants_next_hop(&host.name) {
        shared.queue().reroute_site(&site.name);
        shared.wake.notify_one();
    }
}

/// Reroutes the mail of a site whose hosts cannot be reached, if it has a fallback.
pub(super) fn fall_back(shared: &Shared, site: &str) {
    if shared.routes.in_force().has_fallback() {
        shared.queue().reroute_site(site);
        shared.wake.notify_one();
    }
}

/// Time between two checks of suspended sources.
const LOOK_SECS: Secs = 5;
