//! The ready queues and their round robin, by tenant, then by queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::destinations::QueueId;

/// Identifies a ready queue: a source and a site, while a queue is routed to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadyId {
    pub(super) place: u32,
    pub(super) serial: u32,
}

#[derive(Debug)]
pub(super) struct Ready {
    pub serial: u32,
    /// Number of lanes routed to it; 0: its place is free.
    pub lanes: u32,
    pub source: Arc<str>,
    pub site: Arc<str>,
    pub turns: [Turns; 2],
    pub is_woken: bool,
}

/// Queues in the order of service: one of each tenant in turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub tenants: VecDeque<u32>,
    /// Includes tenants parked at a limit, which are not in `tenants`.
    pub lanes: HashMap<u32, VecDeque<LaneId>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LaneId {
    pub queue: QueueId,
    pub serial: u32,
}

impl Turns {
    pub fn push(&mut self, tenant: u32, lane: LaneId) {
        let lanes = self.lanes.entry(tenant).or_default();
        if lanes.is_empty() {
            self.tenants.push_back(tenant);
        }
        lanes.push_back(lane);
    }

    pub fn pop(&mut self) -> Option<LaneId> {
        let tenant = self.tenants.pop_front()?;
        let lanes = self.lanes.get_mut(&tenant).expect("a tenant with a turn has queues");
        let lane = lanes.pop_front().expect("a tenant with a turn has queues");
        if lanes.is_empty() {
            self.lanes.remove(&tenant);
        } else {
            self.tenants.push_back(tenant);
        }
        Some(lane)
    }
}
