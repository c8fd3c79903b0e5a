//! The scheduled level: queues by tenant, campaign, destination domain and pool of sources.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_spool::Lsn;

use super::clock::Secs;
use super::names::Names;
use super::pick::{Lane, pick};
use super::schedule::Schedules;

/// Identifies a queue of the scheduled level, for as long as it has recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    pub(super) place: u32,
    pub(super) serial: u32,
}

/// The names shared by a queue's recipients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName {
    /// Tenant; empty for none.
    pub tenant: Arc<str>,
    /// Campaign; empty for none.
    pub campaign: Arc<str>,
    /// Destination domain, in lower case.
    pub domain: Arc<str>,
    /// The pool of sources that it was received for; empty for none.
    pub pool: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Destination {
    /// Numbers of tenant, campaign, domain and pool.
    pub key: [u32; 4],
    pub serial: u32,
    /// Number of unsettled recipients.
    pub open: u32,
    pub schedule: Option<u16>,
    /// True while it waits to be routed.
    pub is_unrouted: bool,
    pub route_until: Secs,
    /// The sites of its next route end their pauses, because an operator has its mail tried now.
    pub resumes_sites: bool,
    /// One lane per source; before routing, one without a ready queue.
    pub lanes: Vec<Lane>,
    /// `(attempts, first_lane)`: from that attempt on, a recipient uses only the lanes from `first_lane`. `None`: every
    /// recipient uses all lanes.
    pub late: Option<(u8, usize)>,
}

impl Destination {
    /// The lane of a message's recipient; `None` if the queue has no lanes so far.
    pub fn lane_of(&self, message: Lsn, attempts: u8) -> Option<usize> {
        let (from, lanes) = match self.late {
            Some((after, first)) if attempts >= after => (first, &self.lanes[first..]),
            Some((_, first)) => (0, &self.lanes[..first]),
            None => (0, &self.lanes[..]),
        };
        (!lanes.is_empty()).then(|| from + pick(lanes, message))
    }
}

#[derive(Debug, Default)]
pub(super) struct Destinations {
    places: Vec<Option<Destination>>,
    free: Vec<u32>,
    by_key: HashMap<[u32; 4], u32>,
    /// Recipients by the number of the tenant's name.
    of_tenants: Vec<u64>,
    serial: u32,
}

impl Destinations {
    pub fn at(&self, place: u32) -> &Destination {
        self.places[place as usize].as_ref().expect("a queue of a recipient")
    }

    pub fn at_mut(&mut self, place: u32) -> &mut Destination {
        self.places[place as usize].as_mut().expect("a queue of a recipient")
    }

    pub fn get(&self, id: QueueId) -> Option<&Destination> {
        self.places.get(id.place as usize)?.as_ref().filter(|destination| destination.serial == id.serial)
    }

    pub fn id(&self, place: u32) -> QueueId {
        QueueId { place, serial: self.at(place).serial }
    }

    pub fn ids(&self) -> Vec<QueueId> {
        (0..self.places.len() as u32)
            .filter(|place| self.places[*place as usize].is_some())
            .map(|place| self.id(place))
            .collect()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Destination> {
        self.places.iter_mut().flatten()
    }

    pub fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// The queue with these names, with one recipient added.
    pub fn take(&mut self, names: &mut Names, schedules: &Schedules, name: [&str; 4]) -> u32 {
        let [tenant, campaign, domain, pool] = name;
        let find = |name| names.find(name);
        if let (Some(tenant), Some(campaign), Some(domain), Some(pool)) =
            (find(tenant), find(campaign), find(domain), find(pool))
            && let Some(&place) = self.by_key.get(&[tenant, campaign, domain, pool])
        {
            self.count(place);
            return place;
        }
        let key = name.map(|name| names.take(name));
        let destination = Destination {
            key,
            serial: self.next_serial(),
            open: 0,
            schedule: schedules.find(tenant, campaign, domain),
            is_unrouted: false,
            resumes_sites: false,
            route_until: 0,
            lanes: Vec::new(),
            late: None,
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(destination);
        self.by_key.insert(key, place);
        self.count(place);
        place
    }

    /// Adds one recipient.
    pub fn count(&mut self, place: u32) {
        let destination = self.at_mut(place);
        destination.open += 1;
        let tenant = destination.key[0] as usize;
        if self.of_tenants.len() <= tenant {
            self.of_tenants.resize(tenant + 1, 0);
        }
        self.of_tenants[tenant] += 1;
    }

    /// Removes one recipient; returns the remaining number.
    pub fn uncount(&mut self, place: u32) -> u32 {
        let destination = self.at_mut(place);
        destination.open -= 1;
        let open = destination.open;
        let tenant = destination.key[0] as usize;
        self.of_tenants[tenant] -= 1;
        open
    }

    /// Number of a tenant's recipients.
    pub fn of_tenant(&self, tenant: u32) -> u64 {
        self.of_tenants.get(tenant as usize).copied().unwrap_or(0)
    }

    /// Removes a queue without recipients.
    pub fn remove(&mut self, names: &mut Names, place: u32) -> Destination {
        let destination = self.places[place as usize].take().expect("a queue");
        self.by_key.remove(&destination.key);
        self.free.push(place);
        destination.key.iter().for_each(|name| names.give(*name));
        destination
    }
}

/// The destination domain of an address, in lower case.
pub fn domain_of(address: &str) -> String {
    let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
    domain.trim_end_matches('.').to_lowercase()
}
