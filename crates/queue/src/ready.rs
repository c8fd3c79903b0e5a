//! The ready level: queues by source and site. Tenants take turns, then the queues of each tenant.

use std::sync::Arc;

use posthaste_spool::Lsn;

use super::change::{Change, RecipientKey, Status, What};
use super::clock::Secs;
use super::destinations::QueueId;
use super::gate::{Gate, Parked};
use super::queue::Queue;
use super::recipient::{BEGUN, BUSY, DUE, Id};
use super::turns::{LaneId, Ready, ReadyId};

/// A connection's preference: half of a site's connections take first attempts while any wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// First attempts, or later ones if there are none.
    First,
    /// Later attempts, or first ones if there are none.
    Later,
}

impl Prefer {
    fn kinds(self) -> [usize; 2] {
        match self {
            Self::First => [0, 1],
            Self::Later => [1, 0],
        }
    }
}

/// Bounds of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// The preference.
    pub prefer: Prefer,
    /// Maximum recipients, at least 1.
    pub recipients_max: usize,
    /// Allows recipients of several domains.
    pub across_domains: bool,
}

/// One message for recipients at one site, for one SMTP transaction. They are busy until [`Queue::finish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The message.
    pub message: Lsn,
    /// Time of reception.
    pub received: Secs,
    /// The kind of its first recipient.
    pub kind: Prefer,
    /// At least one; the message's entry has their addresses.
    pub recipients: Vec<Taken>,
}

/// A recipient in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number of the recipient in its message.
    pub number: u16,
    /// Id of the recipient's queue.
    pub queue: QueueId,
    /// Attempts before this one.
    pub attempts: u8,
    /// Crashes during earlier attempts, for [`What::Begun`].
    pub crashes: u8,
}

/// Result of an attempt for a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// Delivered: the next hop has accepted it.
    Delivered(Status),
    /// Refused for good.
    Failed(Status),
    /// Refused for now, or with an unknown result: counts as an attempt.
    Deferred(Status),
    /// The address is on a suppression list.
    Suppressed,
    /// Not tried, because of a limit, a suspension or the host: counts as no attempt, and returns to the front of its
    /// queue.
    Untried,
}

impl Queue {
    /// The source and site of a ready queue; `None` if nothing is routed to it any more.
    pub fn ready(&self, id: ReadyId) -> Option<(Arc<str>, Arc<str>)> {
        let ready = self.ready_at(id)?;
        Some((ready.source.clone(), ready.site.clone()))
    }

    pub(super) fn ready_at(&self, id: ReadyId) -> Option<&Ready> {
        self.ready.get(id.place as usize).filter(|ready| ready.serial == id.serial && ready.lanes > 0)
    }

    pub(super) fn ready_id(&self, place: u32) -> ReadyId {
        ReadyId { place, serial: self.ready[place as usize].serial }
    }

    /// The next ready queue that was empty and has mail now.
    pub fn next_woken(&mut self) -> Option<ReadyId> {
        while let Some(id) = self.woken.pop_front() {
            if self.ready_at(id).is_some() {
                self.ready[id.place as usize].is_woken = false;
                return Some(id);
            }
        }
        None
    }

    /// True if a ready queue has mail to send, apart from suspensions and expired routes.
    pub fn has_waiting(&self, ready: ReadyId) -> bool {
        self.ready_at(ready).is_some_and(|ready| ready.turns.iter().any(|turns| !turns.tenants.is_empty()))
    }

    #[cfg(test)]
    pub(crate) fn kinds_waiting(&self, ready: ReadyId) -> [bool; 2] {
        let turns = self.ready_at(ready).map(|ready| ready.turns.each_ref());
        turns.map_or([false; 2], |turns| turns.map(|turns| !turns.tenants.is_empty()))
    }

    /// The next transaction of a ready queue, for a free connection or after the final dot of the last one. `None`:
    /// nothing waits.
    pub fn next(&mut self, ready: ReadyId, take: Take) -> Option<Transaction> {
        self.ready_at(ready)?;
        take.prefer.kinds().into_iter().find_map(|kind| self.next_of(ready.place, kind, take, None))
    }

    /// Like [`next`](Self::next), within the limits of a gate. `None`: nothing waits, or all of it is parked.
    pub fn next_within(&mut self, ready: ReadyId, take: Take, gate: &mut dyn Gate) -> Option<Transaction> {
        self.ready_at(ready)?;
        take.prefer.kinds().into_iter().find_map(|kind| self.next_of(ready.place, kind, take, Some(gate)))
    }

    fn next_of(&mut self, ready: u32, kind: usize, take: Take, mut gate: Option<&mut dyn Gate>) -> Option<Transaction> {
        loop {
            if let Some(gate) = &mut gate {
                self.park_tenants(ready, kind, &mut **gate);
            }
            let lane = self.ready[ready as usize].turns[kind].pop()?;
            let Some(destination) = self.destinations.get(lane.queue) else { continue };
            let Some(at) = destination.lanes.iter().position(|other| other.serial == lane.serial) else { continue };
            let place = lane.queue.place;
            let is_old = destination.route_until <= self.now;
            self.destinations.at_mut(place).lanes[at].has_turn[kind] = false;
            let Some(id) = self.table.first(self.destinations.at(place).lanes[at].lists[kind]) else { continue };
            if self.is_suspended(place, at) {
                continue;
            }
            if is_old {
                self.list_unrouted(place);
                continue;
            }
            if let Some(gate) = &mut gate {
                let [tenant, campaign, domain, _] = self.destinations.at(place).key.map(|name| self.names.get(name));
                if !gate.lane(tenant, campaign, domain, Parked::lane(lane, kind)) {
                    let lane = &mut self.destinations.at_mut(place).lanes[at];
                    (lane.has_turn[kind], lane.is_parked[kind]) = (true, true);
                    continue;
                }
                gate.take();
            }
            let transaction = self.take_siblings(id, take, Some(ready));
            self.wake(place, at, kind);
            return Some(transaction);
        }
    }

    /// Takes waiting recipients of one message of a queue, whatever its route, to end their attempts without a site.
    /// `None`: nothing waits.
    pub fn take(&mut self, queue: QueueId, recipients_max: usize) -> Option<Transaction> {
        let lanes = self.destinations.get(queue)?.lanes.len();
        let id = (0..lanes).find_map(|lane| self.waits(queue.place, lane))?;
        let take = Take { prefer: Prefer::First, recipients_max, across_domains: false };
        Some(self.take_siblings(id, take, None))
    }

    fn take_siblings(&mut self, first: Id, take: Take, ready: Option<u32>) -> Transaction {
        let (message, received) = self.table.message(first);
        let kind = if self.table.get(first).attempts > 0 { Prefer::Later } else { Prefer::First };
        let mut ids = vec![first];
        if take.recipients_max > 1 {
            let fits = |id: &Id| *id != first && self.joins(*id, first, take, ready);
            ids.extend(self.table.siblings(first).filter(fits).take(take.recipients_max - 1));
        }
        let mut recipients: Vec<Taken> = ids.into_iter().map(|id| self.work_on(id)).collect();
        recipients.sort_unstable_by_key(|taken| taken.number);
        Transaction { message, received, kind, recipients }
    }

    fn joins(&self, id: Id, first: Id, take: Take, ready: Option<u32>) -> bool {
        let recipient = self.table.get(id);
        let first = self.table.get(first);
        if !recipient.is(DUE) {
            return false;
        }
        if recipient.queue == first.queue {
            let destination = self.destinations.at(recipient.queue);
            let is_late = |attempts| destination.late.is_some_and(|(after, _)| attempts >= after);
            return ready.is_none() || is_late(recipient.attempts) == is_late(first.attempts);
        }
        let destination = self.destinations.at(recipient.queue);
        take.across_domains
            && destination.route_until > self.now
            && ready.is_some()
            && destination
                .lane_of(self.table.message(id).0, recipient.attempts)
                .is_some_and(|lane| destination.lanes[lane].ready == ready && !self.is_suspended(recipient.queue, lane))
    }

    fn work_on(&mut self, id: Id) -> Taken {
        self.table.unlink(id);
        let recipient = self.table.change(id, |recipient| {
            recipient.begin_work();
            *recipient
        });
        let number = recipient.number;
        let attempts = recipient.attempts;
        let crashes = recipient.crashes();
        let place = recipient.queue;
        Taken { number, queue: self.destinations.id(place), attempts, crashes }
    }

    /// Ends an attempt. Record the change within 50 ms and apply it; until then the recipient is busy. `None`: nothing
    /// to record.
    pub fn finish(&mut self, key: RecipientKey, outcome: AttemptOutcome) -> Option<Change> {
        let id = self.table.find(key)?;
        let what = match outcome {
            AttemptOutcome::Delivered(status) => What::Delivered(status),
            AttemptOutcome::Failed(status) => What::Failed(status),
            AttemptOutcome::Suppressed => What::Suppressed,
            AttemptOutcome::Deferred(status) => {
                let attempts = self.table.get(id).attempts.saturating_add(1);
                let pause = self.schedule_of(id).pause(attempts, key, self.seed);
                What::Deferred { attempts, next: self.now.saturating_add(pause), status }
            }
            AttemptOutcome::Untried if self.pending.contains_key(&key) => {
                self.free(id);
                return None;
            }
            // The recipient is recorded as in flight.
            AttemptOutcome::Untried if self.table.get(id).is(BEGUN) => What::GivenBack,
            AttemptOutcome::Untried => {
                self.table.change(id, |recipient| recipient.set(BUSY, false));
                self.enqueue(id, true);
                return None;
            }
        };
        Some(Change { key, what })
    }

    /// Puts a due recipient, in no list yet, into its queue.
    pub(super) fn enqueue(&mut self, id: Id, in_front: bool) {
        let message = self.table.message(id).0;
        let (place, attempts) = self.table.change(id, |recipient| {
            recipient.set(DUE, true);
            (recipient.queue, recipient.attempts)
        });
        let kind = usize::from(attempts > 0);
        let at = match self.destinations.at(place).lane_of(message, attempts) {
            Some(at) => at,
            None => {
                let lane = self.lane(None, 1);
                self.destinations.at_mut(place).lanes.push(lane);
                0
            }
        };
        let list = self.destinations.at(place).lanes[at].lists[kind];
        if in_front {
            self.table.push_front(list, id)
        } else {
            self.table.push_back(list, id)
        }
        self.wake(place, at, kind);
    }

    /// Puts a lane in turn if mail waits in it.
    pub(super) fn wake(&mut self, place: u32, at: usize, kind: usize) {
        let id = self.destinations.id(place);
        let destination = self.destinations.at_mut(place);
        let tenant = destination.key[0];
        let lane = &mut destination.lanes[at];
        if self.table.first(lane.lists[kind]).is_none() {
            return;
        }
        let ready = lane.ready.filter(|_| destination.route_until > self.now);
        let Some(ready) = ready else { return self.list_unrouted(place) };
        if !std::mem::replace(&mut lane.has_turn[kind], true) {
            let lane = LaneId { queue: id, serial: lane.serial };
            self.give_turn(ready, kind, tenant, lane);
        }
    }

    pub(super) fn give_turn(&mut self, ready: u32, kind: usize, tenant: u32, lane: LaneId) {
        self.ready[ready as usize].turns[kind].push(tenant, lane);
        self.list_woken(ready);
    }

    pub(super) fn list_woken(&mut self, ready: u32) {
        let queue = &mut self.ready[ready as usize];
        if !std::mem::replace(&mut queue.is_woken, true) {
            let id = ReadyId { place: ready, serial: queue.serial };
            self.woken.push_back(id);
        }
    }

    /// Puts all lanes with waiting mail in turn, after the end of a suspension.
    pub(super) fn wake_all(&mut self) {
        for id in self.destinations.ids() {
            for lane in 0..self.destinations.at(id.place).lanes.len() {
                self.wake(id.place, lane, 0);
                self.wake(id.place, lane, 1);
            }
        }
    }

    pub(super) fn waits(&self, place: u32, lane: usize) -> Option<Id> {
        let [first, later] = self.destinations.at(place).lanes[lane].lists;
        self.table.first(first).or_else(|| self.table.first(later))
    }

    /// End of the suspension of a queue's lane, if suspended.
    pub(super) fn suspended_until(&self, place: u32, lane: usize) -> Option<Secs> {
        if self.suspended.is_empty() {
            return None;
        }
        let (name, _) = self.queue(self.destinations.id(place))?;
        let ready = self.destinations.at(place).lanes.get(lane).and_then(|lane| lane.ready);
        let site = ready.map(|ready| self.ready[ready as usize].site.clone());
        let untils = name.scopes(site).filter_map(|scope| self.suspended.get(&scope)).map(|(until, _)| *until);
        untils.filter(|until| *until > self.now).max()
    }

    pub(super) fn is_suspended(&self, place: u32, lane: usize) -> bool {
        self.suspended_until(place, lane).is_some()
    }
}
