//! Applies the shaping limits to the sender: wake-ups, and changes of the rules.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::serving::serve;
use super::shared::Shared;
use super::site::{OpenLimit, Permit, Site, State, Waiter};
use posthaste_queue::Slow;
use posthaste_shaping::limits::{LimitedSite, SlowDown, end_all};
use posthaste_shaping::{MailScope, ShapingRules};

/// Wakes waiters whose limit allows more, until the relay ends.
pub(super) async fn run(shared: Arc<Shared>) {
    while !shared.is_ending() {
        if let Ok(waiters) = tokio::time::timeout(LOOK, shared.alarm.next()).await {
            wake_waiters(&shared, waiters);
        }
    }
}

/// Replaces the rules; keeps the counts.
pub(super) fn set_shaping(shared: &Arc<Shared>, rules: Arc<ShapingRules>) {
    let waiters = shared.shaper.set_rules(rules);
    limits_changed(shared, waiters);
}

/// Takes over changed slow-downs of replies.
pub(super) fn set_slowed(shared: &Arc<Shared>) {
    let slow_down = |(scope, slow): (&MailScope, &Slow)| {
        let message_rate = slow.message_rate.parse().ok();
        let connections = slow.connections;
        (scope.clone(), SlowDown { message_rate, connections, reason: slow.reason.clone().into() })
    };
    let slowed = shared.queue().slowed().map(slow_down).collect();
    let waiters = shared.shaper.set_slowed(slowed);
    limits_changed(shared, waiters);
}

fn limits_changed(shared: &Arc<Shared>, waiters: Vec<Waiter>) {
    wake_waiters(shared, waiters);
    let sites: Vec<Arc<Site>> = shared.sites.all();
    let routed: Vec<(Arc<str>, Arc<str>)> = {
        let queue = shared.queue();
        let routed = |id| {
            let domain = queue.queue(id).map(|(name, _)| name.domain);
            queue.sites(id).into_iter().filter_map(move |site| Some((site, domain.clone()?)))
        };
        queue.queues().into_iter().flat_map(routed).collect()
    };
    for site in &sites {
        let mut state = site.state();
        (state.waits_to_send, state.waits_to_connect) = (false, false);
        // Even for a site without mail.
        join(shared, site, &mut state, "");
    }
    let mut by_name: HashMap<&str, Vec<&Arc<Site>>> = HashMap::new();
    sites.iter().for_each(|site| by_name.entry(&site.name).or_default().push(site));
    for (name, domain) in &routed {
        for site in by_name.get(&**name).into_iter().flatten() {
            join(shared, site, &mut site.state(), domain);
        }
    }
    shared.queue().unpark_all();
    sites.iter().for_each(|site| serve(shared, site));
    shared.wake.notify_one();
}

/// Applies the limits of a domain to a site that it is routed to.
pub(super) fn join(shared: &Shared, site: &Site, state: &mut State, domain: &str) {
    let destination = state.destination.clone();
    let hosts: Vec<&str> = destination.site.hosts().iter().map(|host| &*host.name).collect();
    let source = state.limits.source.clone();
    let key = LimitedSite { source: &source, name: &site.name, hosts: &hosts };
    if let Some(limits) = shared.shaper.join(&key, domain, &mut state.joined, shared.alarm.now()) {
        state.limits = limits;
    }
}

fn wake_waiters(shared: &Arc<Shared>, waiters: Vec<Waiter>) {
    let mut parked = Vec::new();
    for waiter in waiters {
        match waiter {
            Waiter::Parked(what) => parked.push(what),
            Waiter::Message(site) => {
                if let Some(site) = site.upgrade() {
                    site.state().waits_to_send = false;
                    serve(shared, &site);
                }
            }
            Waiter::Connection(site) => {
                if let Some(site) = site.upgrade() {
                    site.state().waits_to_connect = false;
                    serve(shared, &site);
                }
            }
            Waiter::InTurn(site) => {
                if let Some(site) = site.upgrade() {
                    serve(shared, &site);
                }
            }
        }
    }
    if !parked.is_empty() {
        let mut queue = shared.queue();
        parked.into_iter().for_each(|parked| queue.unpark(parked));
        drop(queue);
        shared.wake.notify_one();
    }
}

/// Returns the permits of a connection that has ended, and wakes the next in turn.
pub(super) fn give_back(shared: &Arc<Shared>, permits: &mut Vec<Permit>) {
    end_all(permits.drain(..)).iter().for_each(|site| serve(shared, site));
}

/// A permit for a connection to an address, if these are limited.
///
/// # Errors
/// All are in use; the site is woken when one ends.
pub(super) fn address_permit(
    shared: &Shared,
    site: &Arc<Site>,
    address: IpAddr,
) -> Result<Option<Permit>, Arc<OpenLimit>> {
    let limits = site.state().limits.clone();
    let Some(most) = limits.connections_per_address else { return Ok(None) };
    let limit = shared.shaper.address(&limits.source, address);
    let permit = limit.open(most);
    if permit.is_none() {
        let state = site.state();
        // A retired site has left all queues.
        if !state.is_retired {
            limit.wait(site);
        }
        return Err(limit);
    }
    Ok(permit)
}

/// Interval of checks for the end of the relay.
const LOOK: Duration = Duration::from_millis(250);
