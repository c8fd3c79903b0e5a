//! The sender within its limits: wake-ups, and changes of the rules.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use super::shape::{OpenLimit, Permit, SiteKey, Waiter};
use super::shared::Shared;
use super::site::{Site, State};
use posthaste_shaping::Rules;

/// Wakes those that wait for a limit, until the relay ends.
pub(super) async fn run(shared: Arc<Shared>) {
    while !shared.is_ending() {
        if let Ok(waiters) = tokio::time::timeout(LOOK, shared.shaper.alarm.next()).await {
            shared.wake_waiters(waiters);
        }
    }
}

impl Relay {
    /// Replaces the limits. Counts stay.
    pub fn set_shaping(&self, rules: Arc<Rules>) {
        self.0.shared.set_shaping(rules);
    }
}

impl Shared {
    fn set_shaping(self: &Arc<Self>, rules: Arc<Rules>) {
        let waiters = self.shaper.set_rules(rules);
        self.limits_changed(waiters);
    }

    /// Takes over changed slow-downs of replies.
    pub fn set_slowed(self: &Arc<Self>) {
        let slowed = self.queue().slowed().map(|(scope, slow)| (scope.clone(), slow.clone())).collect();
        let waiters = self.shaper.set_slowed(slowed);
        self.limits_changed(waiters);
    }

    fn limits_changed(self: &Arc<Self>, waiters: Vec<Waiter>) {
        self.wake_waiters(waiters);
        let sites: Vec<Arc<Site>> = self.sites.all();
        let routed: Vec<(Arc<str>, Arc<str>)> = {
            let queue = self.queue();
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
            self.join(site, &mut state, "");
        }
        let mut by_name: HashMap<&str, Vec<&Arc<Site>>> = HashMap::new();
        sites.iter().for_each(|site| by_name.entry(&site.name).or_default().push(site));
        for (name, domain) in &routed {
            for site in by_name.get(&**name).into_iter().flatten() {
                self.join(site, &mut site.state(), domain);
            }
        }
        self.queue().unpark_all();
        sites.iter().for_each(|site| self.serve(site));
        self.wake.notify_one();
    }

    /// Applies the limits of a domain to a site that it is routed to.
    pub fn join(&self, site: &Site, state: &mut State, domain: &str) {
        let destination = state.destination.clone();
        let hosts: Vec<&str> = destination.site.hosts().iter().map(|host| &*host.name).collect();
        let source = state.limits.source.clone();
        let key = SiteKey { source: &source, name: &site.name, hosts: &hosts };
        if let Some(limits) = self.shaper.join(&key, domain, &mut state.joined) {
            state.limits = limits;
        }
    }

    fn wake_waiters(self: &Arc<Self>, waiters: Vec<Waiter>) {
        let mut parked = Vec::new();
        for waiter in waiters {
            match waiter {
                Waiter::Parked(what) => parked.push(what),
                Waiter::Message(site) => {
                    if let Some(site) = site.upgrade() {
                        site.state().waits_to_send = false;
                        self.serve(&site);
                    }
                }
                Waiter::Connection(site) => {
                    if let Some(site) = site.upgrade() {
                        site.state().waits_to_connect = false;
                        self.serve(&site);
                    }
                }
            }
        }
        if !parked.is_empty() {
            let mut queue = self.queue();
            parked.into_iter().for_each(|parked| queue.unpark(parked));
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// Returns the permits of a connection that has ended, and wakes the next in turn.
    pub fn give_back(self: &Arc<Self>, permits: &mut Vec<Permit>) {
        let next: Vec<Arc<Site>> = permits.drain(..).filter_map(Permit::end).collect();
        next.iter().for_each(|site| self.serve(site));
    }

    /// A permit for a connection to an address, if these are limited.
    ///
    /// # Errors
    /// All are in use; the site is woken when one ends.
    pub fn address_permit(&self, site: &Arc<Site>, address: IpAddr) -> Result<Option<Permit>, Arc<OpenLimit>> {
        let limits = site.state().limits.clone();
        let Some(most) = limits.connections_per_address else { return Ok(None) };
        let limit = self.shaper.address(&limits.source, address);
        match limit.open(most) {
            Some(permit) => Ok(Some(permit)),
            None => {
                limit.wait(site);
                Err(limit)
            }
        }
    }
}

/// Interval of checks for the end of the relay.
const LOOK: Duration = Duration::from_millis(250);
