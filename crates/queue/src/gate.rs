//! Limits of tenants and domains: mail at a limit is parked and does not delay the rest.

use std::sync::Arc;

use super::queue::Queue;
use super::turns::{LaneId, ReadyId};

/// Decides which mail [`Queue::next_within`] may take now. It must not block.
///
/// Mail refused by a gate is parked: it is skipped until [`Queue::unpark`], which the implementation must call later.
pub trait Gate {
    /// True if mail of this tenant may go; if not, `parked` is parked.
    fn tenant(&mut self, tenant: &Arc<str>, parked: Parked) -> bool;

    /// True if mail of this tenant and campaign to this domain may go; if not, `parked` is parked.
    fn lane(&mut self, tenant: &Arc<str>, campaign: &Arc<str>, domain: &Arc<str>, parked: Parked) -> bool;

    /// Counts a message taken for the tenant and domain asked for last.
    fn take(&mut self);
}

/// Parked mail: a tenant's in a ready queue, or a queue's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked(What);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Tenant { ready: ReadyId, kind: usize, tenant: u32 },
    Lane { lane: LaneId, kind: usize },
}

impl Parked {
    pub(super) fn lane(lane: LaneId, kind: usize) -> Self {
        Parked(What::Lane { lane, kind })
    }
}

impl Queue {
    /// Parks the next tenants that may not send.
    pub(super) fn park_tenants(&mut self, ready: u32, kind: usize, gate: &mut dyn Gate) {
        let id = self.ready_id(ready);
        while let Some(&tenant) = self.ready[ready as usize].turns[kind].tenants.front() {
            if gate.tenant(self.names.get(tenant), Parked(What::Tenant { ready: id, kind, tenant })) {
                return;
            }
            self.ready[ready as usize].turns[kind].tenants.pop_front();
        }
    }

    /// Unparks mail. Ignores queues that are gone.
    pub fn unpark(&mut self, parked: Parked) {
        match parked.0 {
            What::Tenant { ready, kind, tenant } => {
                if self.ready_at(ready).is_some() {
                    self.unpark_tenant(ready.place, kind, tenant);
                }
            }
            What::Lane { lane, kind } => {
                let Some(destination) = self.destinations.get(lane.queue) else { return };
                if let Some(at) = destination.lanes.iter().position(|other| other.serial == lane.serial) {
                    self.unpark_lane(lane.queue.place, at, kind);
                }
            }
        }
    }

    /// Unparks all mail, after a change of the limits.
    pub fn unpark_all(&mut self) {
        for ready in 0..self.ready.len() as u32 {
            for kind in [0, 1] {
                let turns = &self.ready[ready as usize].turns[kind];
                let tenants: Vec<u32> = turns.lanes.keys().copied().collect();
                tenants.into_iter().for_each(|tenant| self.unpark_tenant(ready, kind, tenant));
            }
        }
        for id in self.destinations.ids() {
            for lane in 0..self.destinations.at(id.place).lanes.len() {
                [0, 1].into_iter().for_each(|kind| self.unpark_lane(id.place, lane, kind));
            }
        }
    }

    fn unpark_tenant(&mut self, ready: u32, kind: usize, tenant: u32) {
        let turns = &mut self.ready[ready as usize].turns[kind];
        if turns.lanes.contains_key(&tenant) && !turns.tenants.contains(&tenant) {
            turns.tenants.push_back(tenant);
            self.list_woken(ready);
        }
    }

    fn unpark_lane(&mut self, place: u32, at: usize, kind: usize) {
        let id = self.destinations.id(place);
        let destination = self.destinations.at_mut(place);
        let tenant = destination.key[0];
        let lane = &mut destination.lanes[at];
        if std::mem::take(&mut lane.is_parked[kind])
            && let Some(ready) = lane.ready
        {
            let lane = LaneId { queue: id, serial: lane.serial };
            self.give_turn(ready, kind, tenant, lane);
        }
    }
}
