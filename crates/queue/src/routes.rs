//! Routes of queues to sites and sources, and their early end.

use std::sync::Arc;

use super::change::RecipientKey;
use super::clock::Secs;
use super::destinations::QueueId;
use super::pick::{Lane, number};
use super::queue::Queue;
use super::turns::{Ready, ReadyId, Turns};

/// A source of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSource {
    /// Its name.
    pub name: Arc<str>,
    /// Its weight among the sources; at least 1.
    pub weight: u32,
}

/// A site and its sources.
#[derive(Debug, Clone, Copy)]
pub struct Hop<'a> {
    /// The name of the site.
    pub site: &'a str,
    /// At least one.
    pub sources: &'a [RouteSource],
}

/// The hop of recipients after some attempts.
#[derive(Debug, Clone, Copy)]
pub struct LateHop<'a> {
    /// Number of attempts.
    pub after: u8,
    /// The hop.
    pub hop: Hop<'a>,
}

impl Queue {
    /// The next queue with due mail whose route is missing or expired. It is returned once: [`route`](Self::route) it,
    /// or [`take`](Self::take) its mail. `None` also while [diversions have changed](Self::have_diversions_changed).
    pub fn next_unrouted(&mut self) -> Option<QueueId> {
        if self.have_diversions_changed() {
            return None;
        }
        while let Some(id) = self.unrouted.pop_front() {
            if self.destinations.get(id).is_none() {
                continue;
            }
            self.destinations.at_mut(id.place).is_unrouted = false;
            let mut lanes = 0..self.destinations.at(id.place).lanes.len();
            if lanes.any(|lane| self.waits(id.place, lane).is_some() && !self.is_suspended(id.place, lane)) {
                return Some(id);
            }
        }
        None
    }

    /// Assigns a queue to a site and to sources until a future time, such as the end of a DNS answer's TTL. A message
    /// keeps its source as long as the sources are the same. Returns the ready queues. There are none if the queue is
    /// gone, if there are no sources, or if [diversions have changed](Self::have_diversions_changed).
    pub fn route(&mut self, queue: QueueId, site: &str, sources: &[RouteSource], until: Secs) -> Vec<ReadyId> {
        self.route_with(queue, Hop { site, sources }, None, until)
    }

    /// Like [`route`](Self::route), with another hop for recipients after some attempts. Its ready queues come last.
    pub fn route_with(
        &mut self,
        queue: QueueId,
        usual: Hop<'_>,
        late: Option<LateHop<'_>>,
        until: Secs,
    ) -> Vec<ReadyId> {
        if self.destinations.get(queue).is_none() || usual.sources.is_empty() || self.have_diversions_changed() {
            return Vec::new();
        }
        let late = late.filter(|late| !late.hop.sources.is_empty());
        let hops = [Some(usual), late.map(|late| late.hop)];
        let sources = hops.iter().flatten().flat_map(|hop| hop.sources.iter().map(|source| (hop.site, source)));
        let places: Vec<(u32, u32)> =
            sources.map(|(site, source)| (self.ready_queue(&source.name, site), source.weight.max(1))).collect();
        let late = late.map(|late| (late.after, usual.sources.len()));
        let until = until.max(self.now.saturating_add(1));
        let destination = self.destinations.at_mut(queue.place);
        destination.route_until = until;
        let is_lane =
            |(lane, (place, weight)): (&Lane, &(u32, u32))| (lane.ready, lane.weight) == (Some(*place), *weight);
        let is_as_before = destination.late == late
            && destination.lanes.len() == places.len()
            && destination.lanes.iter().zip(&places).all(is_lane);
        if is_as_before {
            for lane in 0..places.len() {
                self.wake(queue.place, lane, 0);
                self.wake(queue.place, lane, 1);
            }
        } else {
            let old = std::mem::take(&mut destination.lanes);
            destination.late = late;
            for (place, weight) in &places {
                let lane = self.lane(Some(*place), *weight);
                self.destinations.at_mut(queue.place).lanes.push(lane);
            }
            for list in old.iter().flat_map(|lane| lane.lists) {
                while let Some(id) = self.table.first(list) {
                    self.table.unlink(id);
                    self.enqueue(id, false);
                }
            }
            self.drop_lanes(old);
        }
        places.into_iter().map(|(place, _)| self.ready_id(place)).collect()
    }

    /// The site of a queue, while its route is known.
    pub fn site(&self, id: QueueId) -> Option<Arc<str>> {
        self.sites(id).into_iter().next()
    }

    /// The sites of a queue, the usual one first.
    pub fn sites(&self, id: QueueId) -> Vec<Arc<str>> {
        let lanes = self.destinations.get(id).map_or(&[][..], |destination| &destination.lanes);
        let mut sites: Vec<Arc<str>> = Vec::new();
        for ready in lanes.iter().filter_map(|lane| lane.ready) {
            let site = &self.ready[ready as usize].site;
            if !sites.contains(site) {
                sites.push(site.clone());
            }
        }
        sites
    }

    /// The source and site that a recipient waits for; `None` while its queue has no route.
    pub fn route_of(&self, key: RecipientKey) -> Option<(Arc<str>, Arc<str>)> {
        let recipient = self.table.get(self.table.find(key)?);
        let destination = self.destinations.at(recipient.queue);
        let lane = destination.lane_of(key.message, recipient.attempts)?;
        let ready = &self.ready[destination.lanes[lane].ready? as usize];
        Some((ready.source.clone(), ready.site.clone()))
    }

    /// The source and site whose pause ends when an operator has a recipient tried now, after `attempts` attempts.
    /// `None` while its queue has no valid route; then the next route [ends the pauses](Self::take_resumes_sites) of
    /// its sites.
    pub fn resume_site_of(&mut self, key: RecipientKey, attempts: u8) -> Option<(Arc<str>, Arc<str>)> {
        let queue = self.table.get(self.table.find(key)?).queue;
        let destination = self.destinations.at_mut(queue);
        if destination.route_until <= self.now {
            destination.resumes_sites = true;
            return None;
        }
        let lane = destination.lane_of(key.message, attempts)?;
        let ready = &self.ready[destination.lanes[lane].ready? as usize];
        Some((ready.source.clone(), ready.site.clone()))
    }

    /// True if the sites of a queue's new route shall end their pauses.
    pub fn take_resumes_sites(&mut self, queue: QueueId) -> bool {
        self.destinations.get(queue).is_some()
            && std::mem::take(&mut self.destinations.at_mut(queue.place).resumes_sites)
    }

    /// Ends all routes after a change of sources or rules: due mail is [routed](Self::route) anew.
    pub fn reroute_all(&mut self) {
        for id in self.destinations.ids() {
            self.reroute(id);
        }
    }

    /// Ends the routes to a site. Visits each queue.
    pub fn reroute_site(&mut self, site: &str) {
        for id in self.destinations.ids() {
            if self.sites(id).iter().any(|of_queue| **of_queue == *site) {
                self.reroute(id);
            }
        }
    }

    /// Reroutes queues with an expired route and due mail, even if nothing is taken from their ready queues.
    pub fn reroute_old(&mut self) {
        for id in self.destinations.ids() {
            if self.destinations.at(id.place).route_until <= self.now {
                self.list_unrouted(id.place);
            }
        }
    }

    fn reroute(&mut self, id: QueueId) {
        self.destinations.at_mut(id.place).route_until = 0;
        self.list_unrouted(id.place);
    }

    pub(super) fn list_unrouted(&mut self, place: u32) {
        let id = self.destinations.id(place);
        if !std::mem::replace(&mut self.destinations.at_mut(place).is_unrouted, true) {
            self.unrouted.push_back(id);
        }
    }

    pub(super) fn lane(&mut self, ready: Option<u32>, weight: u32) -> Lane {
        if let Some(place) = ready {
            self.ready[place as usize].lanes += 1;
        }
        let lists = [self.table.list(), self.table.list()];
        let source = ready.map_or(0, |place| number(&self.ready[place as usize].source));
        let serial = self.destinations.next_serial();
        Lane { serial, lists, ready, has_turn: [false; 2], is_parked: [false; 2], weight, source }
    }

    pub(super) fn drop_lanes(&mut self, lanes: Vec<Lane>) {
        lanes.iter().flat_map(|lane| lane.lists).for_each(|list| self.table.drop_list(list));
        for place in lanes.iter().filter_map(|lane| lane.ready) {
            let ready = &mut self.ready[place as usize];
            ready.lanes -= 1;
            if ready.lanes == 0 {
                self.ready_by_name.remove(&(ready.source.clone(), ready.site.clone()));
                ready.turns = [Turns::default(), Turns::default()];
                self.ready_free.push(place);
            }
        }
    }

    /// The place of a ready queue. Give it a lane before another is dropped.
    fn ready_queue(&mut self, source: &Arc<str>, site: &str) -> u32 {
        let source = source.clone();
        let site = Arc::<str>::from(site);
        let name = (source.clone(), site.clone());
        if let Some(&place) = self.ready_by_name.get(&name) {
            return place;
        }
        let turns = [Turns::default(), Turns::default()];
        let ready = Ready { serial: self.destinations.next_serial(), lanes: 0, source, site, turns, is_woken: false };
        let place = match self.ready_free.pop() {
            Some(place) => {
                self.ready[place as usize] = ready;
                place
            }
            None => {
                self.ready.push(ready);
                self.ready.len() as u32 - 1
            }
        };
        self.ready_by_name.insert(name, place);
        place
    }
}
