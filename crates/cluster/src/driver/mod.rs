//! Drives the [`ShardOwnership`] of a node: sends its requests to the engine, carries out its orders at spools and
//! services, and reports the results.
//!
//! The driver makes no decisions and never blocks: calls of the engine run elsewhere, and spools and services answer
//! later. Time and engine are passed in, so a test can drive it step by step.

mod calls;
pub(crate) mod inbox;
mod lease;
mod shard;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use posthaste_random::Random;

use crate::cell::{CellKey, NodeName};
use crate::clock::LeaseClock;
use crate::ownership::{LogState, OwnershipConfig, OwnershipEffect, ShardOwnership, StopReason};
use crate::queue::Told;
use crate::sender::{OwnerIdentity, SenderEnd};
use crate::{Cells, LogError, LogPosition, ShardLog};
pub use calls::{CallLane, CallThreads, EngineCall, EngineCalls};
use inbox::{BeforeLook, LogLook, NodeInbox, NodeInput};
pub use lease::{BegunTransaction, Lease};
use shard::{DrivenShard, Releasing, Tenure};
pub use shard::{NodeShard, ShardService};

/// Settings of a [`NodeDriver`].
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Settings of its ownership.
    pub ownership: OwnershipConfig,
    /// A planned hand-over waits this long for open transactions before the service has to end.
    pub transactions: Duration,
    /// A planned hand-over waits this long for all work in progress. Then undecided batches fail; they return through
    /// the log if they are stored.
    pub release: Duration,
}

/// Dependencies of a [`NodeDriver`].
#[derive(Clone)]
pub struct DriverWorld {
    /// Cells of the engine.
    pub cells: Arc<dyn Cells>,
    /// Makes the calls of cells and logs.
    pub calls: Arc<dyn EngineCalls>,
    /// The time of leases.
    pub clock: Arc<dyn LeaseClock>,
}

/// Events of a node, for the operator and for callers that wait for a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeNews {
    /// This node acts for a shard.
    Owner {
        /// The shard.
        shard: u16,
        /// The number of the ownership.
        epoch: u64,
    },
    /// A shard that this node opened or owned is another's, or free.
    Standby {
        /// The shard.
        shard: u16,
    },
    /// The digest of a member differs from the owner's: the member cannot take over.
    Differs {
        /// The shard.
        shard: u16,
        /// The member.
        node: NodeName,
    },
    /// A shard has stopped until an operator intervenes.
    Stopped {
        /// The shard.
        shard: u16,
        /// The cause.
        why: StopReason,
    },
    /// This node's member of a shard applies nothing more and cannot take over until the process restarts. An owner
    /// gives the shard away.
    MemberStopped {
        /// The shard.
        shard: u16,
        /// The cause: a record that cannot be read, or the local spool.
        why: Arc<str>,
    },
    /// Another process has this node's name. This one is inactive and should exit.
    NameTaken,
    /// An operator has removed this node. This process is inactive and should exit.
    Removed,
}

/// Drives a node. [`ClusterNode`](crate::ClusterNode) does so on a thread.
pub struct NodeDriver {
    ownership: ShardOwnership,
    shards: BTreeMap<u16, DrivenShard>,
    inbox: Arc<NodeInbox>,
    world: DriverWorld,
    report: Duration,
    transactions: Duration,
    release: Duration,
    /// Random source of log ids.
    random: Random,
    tell: Box<dyn FnMut(NodeNews) + Send>,
    /// Called once this node owns nothing.
    drains: Vec<Told>,
    turned_at: Duration,
}

impl NodeDriver {
    /// For a process that has just started. Calls `tell` with news during a turn; `tell` must not block.
    ///
    /// # Errors
    /// The thread that watches the cells could not be started.
    pub fn new(
        config: DriverConfig,
        world: DriverWorld,
        shards: Vec<NodeShard>,
        tell: Box<dyn FnMut(NodeNews) + Send>,
    ) -> io::Result<Self> {
        let DriverConfig { ownership, transactions, release } = config;
        let report = ownership.times.report;
        let incarnation = ownership.incarnation;
        let mut ownership = ShardOwnership::new(ownership);
        shards.iter().for_each(|shard| ownership.add(shard.number, shard.is_home));
        let inbox = Arc::<NodeInbox>::default();
        watch(inbox.clone(), world.cells.clone())?;
        let turned_at = world.clock.now();
        Ok(NodeDriver {
            ownership,
            shards: shards.into_iter().map(|shard| (shard.number, DrivenShard::new(shard))).collect(),
            inbox,
            world,
            report,
            transactions,
            release,
            random: Random::of(incarnation, 0x1061d),
            tell,
            drains: Vec::new(),
            turned_at,
        })
    }

    /// Does all due work. To be called when [`wait`](Self::wait) returns, and four times a second. True if there was
    /// work.
    pub fn turn(&mut self) -> bool {
        let now = self.world.clock.now();
        let inputs = self.inbox.take();
        let mut has_acted = !inputs.is_empty();
        inputs.into_iter().for_each(|input| self.handle(now, input));
        self.look_at_shards(now);
        self.ownership.set_wall(self.world.clock.wall());
        self.ownership.tick(now);
        while let Some(effect) = self.ownership.effect() {
            self.follow(now, effect);
            has_acted = true;
        }
        for shard in self.shards.values() {
            if let Some(tenure) = &shard.tenure {
                let act_until = self.ownership.act_until(shard.number);
                let begin_until = self.ownership.begin_until(shard.number);
                tenure.lease.set(act_until, begin_until);
            }
        }
        if self.ownership.holds_none() && !self.is_waiting() {
            self.drains.drain(..).for_each(|told| told());
        }
        self.turned_at = now;
        has_acted
    }

    /// Waits for news, up to `timeout` if there is one. False once the node is closed.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.inbox.wait(timeout)
    }

    /// True while a spool, a service or a transaction has not answered an order.
    pub fn is_waiting(&self) -> bool {
        let has_release = |shard: &DrivenShard| shard.tenure.as_ref().is_some_and(|tenure| tenure.release.is_some());
        self.shards.values().any(|shard| shard.orders > 0 || has_release(shard))
    }

    /// Gives a shard to a node, or to the most advanced member in sync. Does nothing if this node does not own it.
    pub fn hand_over(&mut self, shard: u16, to: Option<&NodeName>) {
        self.ownership.hand_over(self.world.clock.now(), shard, to);
    }

    /// Gives all shards away and takes no more. Calls `then` during a turn once this node owns none.
    pub fn drain(&mut self, then: Box<dyn FnOnce() + Send>) {
        self.ownership.drain();
        self.drains.push(then);
    }

    pub(crate) fn inbox(&self) -> Arc<NodeInbox> {
        self.inbox.clone()
    }

    fn handle(&mut self, now: Duration, input: NodeInput) {
        match input {
            NodeInput::Seen(key, value, revision) => self.ownership.seen(now, &key, &value, revision),
            NodeInput::Got(request, outcome) => {
                self.note_answer(&outcome);
                self.ownership.got(now, request, outcome);
            }
            NodeInput::Swapped(request, outcome) => {
                self.note_answer(&outcome);
                self.ownership.swapped(now, request, outcome);
            }
            NodeInput::LogEnd(shard, outcome) => self.ownership.log_end(now, shard, outcome),
            NodeInput::LogLooked(shard, before, outcome) => self.log_looked(now, shard, before, outcome),
            NodeInput::Opened(number, epoch, outcome) => {
                let shard = self.shard(number);
                shard.orders -= 1;
                // Another ownership may have come since.
                if shard.opening.take_if(|opening| *opening == epoch).is_some() {
                    match outcome {
                        Ok(()) => self.ownership.opened(number),
                        Err(SenderEnd::GivenUp) => {}
                        Err(end) => self.ownership.ended(number, end),
                    }
                }
            }
            NodeInput::TransactionsEnded(number, epoch) => {
                let told = self.inbox.told(NodeInput::ServiceReleased(number, epoch));
                self.shard(number).release_service(epoch, told);
            }
            NodeInput::ServiceReleased(number, epoch) => self.service_released(number, epoch),
            NodeInput::Drained(number, epoch) => {
                let shard = self.shard(number);
                shard.orders -= 1;
                if shard.tenure_of(epoch).is_some() {
                    self.ownership.released(number);
                }
            }
            NodeInput::Demoted(number, has_acted) => {
                let shard = self.shard(number);
                shard.orders -= 1;
                if has_acted {
                    shard.service.demote();
                }
                (self.tell)(NodeNews::Standby { shard: number });
            }
            NodeInput::HandOver(shard, to) => self.hand_over(shard, to.as_ref()),
            NodeInput::Applied(shard, report) => self.ownership.publish(shard, report),
            NodeInput::Drain(then) => self.drain(then),
        }
    }

    fn shard(&mut self, number: u16) -> &mut DrivenShard {
        self.shards.get_mut(&number).expect("ownership names its shards alone")
    }

    /// Restarts a failed watch when the engine answers again.
    fn note_answer<T>(&self, outcome: &Result<T, LogError>) {
        if matches!(outcome, Ok(_) | Err(LogError::Conflict)) {
            self.inbox.has_answer();
        }
    }

    fn log_looked(&mut self, now: Duration, number: u16, before: BeforeLook, outcome: Result<LogLook, LogError>) {
        self.shard(number).is_looking = false;
        let BeforeLook { applied, bytes } = before;
        let state = outcome.ok().map(|look| {
            let LogLook { first, end, room, is_current } = look;
            LogState { applied, first, end, bytes, room, is_current }
        });
        self.ownership.log_state(now, number, state);
    }

    /// Handles the end of all appends. The engine decides all appended batches before the next owner opens the log.
    fn service_released(&mut self, number: u16, epoch: u64) {
        let drained = self.inbox.told(NodeInput::Drained(number, epoch));
        let shard = self.shard(number);
        if shard.tenure_of(epoch).is_some_and(|tenure| tenure.release.is_some()) {
            shard.orders += 1;
            shard.spool.drain_then(drained);
        }
    }

    /// Reports the state of this node's members, and the progress of its owners.
    fn look_at_shards(&mut self, now: Duration) {
        for (number, shard) in &mut self.shards {
            let number = *number;
            let ownership = &mut self.ownership;
            match shard.report(now) {
                Ok(report) => ownership.report(number, report),
                Err(why) => {
                    ownership.needs_seeding(number);
                    ownership.hand_over(now, number, None);
                    if !std::mem::replace(&mut shard.is_stop_told, true) {
                        (self.tell)(NodeNews::MemberStopped { shard: number, why });
                    }
                }
            }
            if shard.service.has_failed() {
                ownership.give_up(now, number);
            }
            let Some(tenure) = &shard.tenure else { continue };
            let epoch = tenure.lease.epoch();
            let waited = tenure.release.as_ref().map(|release| now.saturating_sub(release.since));
            if waited.is_some_and(|waited| waited >= self.transactions) {
                shard.release_service(epoch, self.inbox.told(NodeInput::ServiceReleased(number, epoch)));
            }
            if waited.is_some_and(|waited| waited >= self.release) {
                ownership.released(number);
            }
            if let Some(end) = shard.spool.ended() {
                ownership.ended(number, end);
            }
            if shard.has_new_answers() {
                // They came after the last turn: no earlier moment is certain.
                ownership.appended(self.turned_at, number);
            }
            if shard.begin_look(now, self.report) {
                let log = shard.spool.log().clone();
                let inbox = self.inbox.clone();
                let applied = shard.spool.place().map_or(LogPosition::START, |place| place.applied);
                let before = BeforeLook { applied, bytes: shard.spool.progress().sent_bytes() };
                let call = move || inbox.push(NodeInput::LogLooked(number, before, look(&*log)));
                self.world.calls.call(CallLane::Shards, Box::new(call));
            }
        }
    }

    /// Carries out the effects of ownership.
    fn follow(&mut self, now: Duration, effect: OwnershipEffect) {
        let inbox = self.inbox.clone();
        match effect {
            OwnershipEffect::Get { key, request } => {
                let lane = lane(&key);
                let cells = self.world.cells.clone();
                let call = move || inbox.push(NodeInput::Got(request, cells.get(&key.to_string())));
                self.world.calls.call(lane, Box::new(call));
            }
            OwnershipEffect::Swap { key, revision, value, request } => {
                let lane = lane(&key);
                let cells = self.world.cells.clone();
                let call =
                    move || inbox.push(NodeInput::Swapped(request, cells.swap(&key.to_string(), revision, value)));
                self.world.calls.call(lane, Box::new(call));
            }
            OwnershipEffect::LogEnd { shard } => {
                let log = self.shard(shard).spool.log().clone();
                let call = move || inbox.push(NodeInput::LogEnd(shard, log.end()));
                self.world.calls.call(CallLane::Shards, Box::new(call));
            }
            OwnershipEffect::Cut { shard, below } => {
                let log = self.shard(shard).spool.log().clone();
                // One that fails leaves records for the next.
                self.world.calls.call(CallLane::Shards, Box::new(move || drop(log.cut(below))));
            }
            OwnershipEffect::Open { shard: number, epoch, nonce } => {
                let identity = OwnerIdentity { nonce, log: self.random.next(), epoch: Some(epoch) };
                let shard = self.shard(number);
                shard.opening = Some(epoch);
                shard.orders += 1;
                let then = move |outcome| inbox.push(NodeInput::Opened(number, epoch, outcome));
                shard.spool.promote_then(identity, Box::new(then));
            }
            OwnershipEffect::Promote { shard } => self.promote(shard),
            OwnershipEffect::Release { shard } => self.release(now, shard),
            OwnershipEffect::Demote { shard: number } => {
                let shard = self.shard(number);
                shard.opening = None;
                let tenure = shard.tenure.take();
                if let Some(tenure) = &tenure {
                    tenure.lease.revoke();
                }
                shard.orders += 1;
                shard.spool.demote_then(inbox.told(NodeInput::Demoted(number, tenure.is_some())));
            }
            OwnershipEffect::Digest { shard } => self.shard(shard).spool.log_digest(),
            OwnershipEffect::Differs { shard, node } => (self.tell)(NodeNews::Differs { shard, node }),
            OwnershipEffect::Stopped { shard, why } => (self.tell)(NodeNews::Stopped { shard, why }),
            OwnershipEffect::NameTaken => (self.tell)(NodeNews::NameTaken),
            OwnershipEffect::Removed => (self.tell)(NodeNews::Removed),
        }
    }

    fn promote(&mut self, number: u16) {
        let Some(epoch) = self.ownership.epoch(number) else { return };
        let lease = Lease::new(number, epoch, self.world.clock.clone());
        lease.set(self.ownership.act_until(number), self.ownership.begin_until(number));
        let shard = self.shard(number);
        shard.tenure = Some(Tenure { lease: lease.clone(), release: None });
        shard.service.promote(lease);
        (self.tell)(NodeNews::Owner { shard: number, epoch });
    }

    fn release(&mut self, now: Duration, number: u16) {
        let inbox = self.inbox.clone();
        let shard = self.shard(number);
        let Some(tenure) = &mut shard.tenure else { return self.ownership.released(number) };
        tenure.release = Some(Releasing { since: now, is_service_told: false });
        // Clients that have begun get their answer first.
        tenure.lease.close(inbox.told(NodeInput::TransactionsEnded(number, tenure.lease.epoch())));
    }
}

impl Drop for NodeDriver {
    fn drop(&mut self) {
        self.inbox.close();
        for tenure in self.shards.values().filter_map(|shard| shard.tenure.as_ref()) {
            tenure.lease.revoke();
        }
    }
}

fn lane(key: &CellKey) -> CallLane {
    match key {
        CellKey::Node(_) => CallLane::Node,
        CellKey::Shard(_) => CallLane::Shards,
    }
}

fn look(log: &dyn ShardLog) -> Result<LogLook, LogError> {
    Ok(LogLook { first: log.first()?, end: log.end()?, room: log.room()?, is_current: log.is_current()? })
}

/// Reports cells to a node during its lifetime. Nobody waits for this thread: a watch may be silent for long.
fn watch(inbox: Arc<NodeInbox>, cells: Arc<dyn Cells>) -> io::Result<()> {
    std::thread::Builder::new().name("cluster-watch".to_owned()).spawn(move || {
        loop {
            // An engine that cannot be reached shows all of them again later.
            drop(cells.watch(&mut |key, value, revision| inbox.saw(key, value, revision)));
            if !inbox.wait_for_engine() {
                return;
            }
        }
    })?;
    Ok(())
}
