//! Decides which node owns a shard, as a state machine without IO. Times, cells and reports go in; requests to the
//! engine and orders to the shard come out.
//!
//! A shard's cell names the owner. The owner renews it; its lease counts from the moment it sent the last renewal that
//! succeeded. A standby counts the answered writes of its own node's cell since the shard's cell changed. So an engine
//! that pauses moves no shard. The lease only bounds doubles. The log is fenced by `open(epoch)`, whatever the clocks
//! say.
//!
//! Times are those of `CLOCK_BOOTTIME` of this machine; no two machines have one in common.

mod effect;
mod facts;
pub(crate) mod marks;
mod node;
mod settings;
mod shard;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::cell::{CellKey, MemberReport, NodeCell, NodeName};
use crate::sender::SenderEnd;
use crate::{LogError, LogPosition};
use effect::Outbox;
pub use effect::{OwnershipEffect, StopReason};
pub use facts::{LogState, OwnReport};
use facts::{Me, SeenNode};
use node::OwnNode;
pub use settings::{OwnershipConfig, OwnershipRules, OwnershipTimes};
use shard::ShardState;

/// The ownership of all shards that a node is a member of.
#[derive(Debug)]
pub struct ShardOwnership {
    me: Me,
    own: OwnNode,
    shards: BTreeMap<u16, ShardState>,
    nodes: BTreeMap<NodeName, SeenNode>,
    /// The last time that it took a silent owner's shard.
    taken_at: Option<Duration>,
    out: Outbox,
}

impl ShardOwnership {
    /// For a process that has just started. Call [`tick`](Self::tick) at once.
    pub fn new(config: OwnershipConfig) -> Self {
        let OwnershipConfig { node, incarnation, times, rules } = config;
        ShardOwnership {
            me: Me { node, incarnation, times, rules, is_draining: false },
            own: OwnNode::new(env!("CARGO_PKG_VERSION")),
            shards: BTreeMap::new(),
            nodes: BTreeMap::new(),
            taken_at: None,
            out: Outbox::new(incarnation),
        }
    }

    /// Adds a shard that this node is a member of. Its home makes the cell of a new shard, and gets the shard back.
    pub fn add(&mut self, shard: u16, is_home: bool) {
        self.shards.entry(shard).or_insert_with(|| ShardState::new(shard, is_home));
    }

    /// The next request or order, if any.
    pub fn effect(&mut self) -> Option<OwnershipEffect> {
        self.out.pop()
    }

    /// True while the owner of a shard may have effects: deliver, and answer the end of a body.
    pub fn may_act(&self, shard: u16, now: Duration) -> bool {
        now < self.act_until(shard)
    }

    /// True while a transaction may begin.
    pub fn may_begin(&self, shard: u16, now: Duration) -> bool {
        now < self.begin_until(shard)
    }

    /// End of the time in which [`may_act`](Self::may_act) holds without further renewals; zero if it does not hold.
    pub fn act_until(&self, shard: u16) -> Duration {
        self.owned(shard).map_or(Duration::ZERO, |it| it.act_until(&self.me))
    }

    /// Likewise for [`may_begin`](Self::may_begin).
    pub fn begin_until(&self, shard: u16) -> Duration {
        self.owned(shard).map_or(Duration::ZERO, |it| it.begin_until(&self.me))
    }

    fn owned(&self, shard: u16) -> Option<&ShardState> {
        self.shards.get(&shard).filter(|_| !self.own.is_taken())
    }

    /// The epoch in which this node owns a shard, if any.
    pub fn epoch(&self, shard: u16) -> Option<u64> {
        self.shards.get(&shard)?.owned_epoch()
    }

    /// The machine's clock, in time since 1970: it is published in the node's cell.
    pub fn set_wall(&mut self, wall: Duration) {
        self.own.cell.wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
    }

    /// Advances time. Call it at least four times a second.
    pub fn tick(&mut self, now: Duration) {
        if self.own.is_taken() {
            return;
        }
        for (shard, state) in &mut self.shards {
            if state.is_lent(&self.me, now) {
                self.own.cell.asks.insert(*shard);
            } else {
                self.own.cell.asks.remove(shard);
            }
        }
        self.own.tick(&self.me, &mut self.out, now);
        if !self.own.is_ready() {
            return;
        }
        for state in self.shards.values_mut() {
            if self.me.is_draining {
                state.hand_over(&self.me, &mut self.out, &self.nodes, now, None);
            }
            let may_take = !self.me.rules.one_at_a_time
                || self.taken_at.is_none_or(|at| now.saturating_sub(at) >= self.me.times.between);
            if state.tick(&self.me, &mut self.out, &self.nodes, may_take, now) {
                self.taken_at = Some(now);
            }
        }
    }

    /// Handles a cell that a watch has reported.
    pub fn seen(&mut self, now: Duration, key: &CellKey, value: &[u8], revision: u64) {
        match key {
            CellKey::Shard(shard) => {
                if let Some(state) = self.shards.get_mut(shard) {
                    state.take(&self.me, &mut self.out, now, value, revision);
                }
            }
            CellKey::Node(name) if *name != self.me.node => {
                if self.nodes.get(name).is_some_and(|seen| seen.revision >= revision) {
                    return;
                }
                if let Some(cell) = NodeCell::decode(value) {
                    self.nodes.insert(name.clone(), SeenNode { cell, revision, at: now });
                }
            }
            CellKey::Node(_) => {}
        }
    }

    /// The answer to a [`Get`](OwnershipEffect::Get).
    pub fn got(&mut self, now: Duration, request: u64, outcome: Result<(Bytes, u64), LogError>) {
        if self.own.is_asked(request) {
            return self.own.got(&self.me, &mut self.out, now, outcome);
        }
        if let Some(state) = self.shards.values_mut().find(|it| it.is_asked(request)) {
            state.got(&self.me, &mut self.out, now, outcome);
        }
    }

    /// The answer to a [`Swap`](OwnershipEffect::Swap).
    pub fn swapped(&mut self, now: Duration, request: u64, outcome: Result<u64, LogError>) {
        if self.own.is_asked(request) {
            if let Some(sent) = self.own.swapped(&self.me, &mut self.out, now, outcome) {
                self.shards.values_mut().for_each(|state| state.count(sent));
            }
            return;
        }
        if let Some(state) = self.shards.values_mut().find(|it| it.is_asked(request)) {
            state.swapped(&self.me, &mut self.out, now, outcome);
        }
    }

    /// The answer to a [`LogEnd`](OwnershipEffect::LogEnd).
    pub fn log_end(&mut self, now: Duration, shard: u16, outcome: Result<LogPosition, LogError>) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.log_end(&self.me, &mut self.out, now, outcome);
        }
    }

    /// The log is open in the requested epoch, and the member has applied all of it.
    pub fn opened(&mut self, shard: u16) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.opened(&mut self.out);
        }
    }

    /// The sender of the member has ended, and why.
    pub fn ended(&mut self, shard: u16, end: SenderEnd) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.ended(&mut self.out, end);
        }
    }

    /// The engine has answered an append of the owner.
    pub fn appended(&mut self, now: Duration, shard: u16) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.appended(now);
        }
    }

    /// The state of this node's member.
    pub fn report(&mut self, shard: u16, report: OwnReport) {
        self.own.cell.reports.insert(shard, report.report);
        if let Some(state) = self.shards.get_mut(&shard) {
            state.report(report);
        }
    }

    /// The state of this node in a shard that no node owns.
    pub fn publish(&mut self, shard: u16, report: MemberReport) {
        self.own.cell.reports.insert(shard, report);
    }

    /// This node's member has stopped applying: it cannot take over, and leaves the members in sync.
    pub fn needs_seeding(&mut self, shard: u16) {
        self.own.cell.reports.remove(&shard);
        if let Some(state) = self.shards.get_mut(&shard) {
            state.forget_report();
        }
    }

    /// The state of the log that this node owns; `None`: the engine has not answered. Its cuts follow from it.
    pub fn log_state(&mut self, now: Duration, shard: u16, log: Option<LogState>) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.log_state(&self.me, &mut self.out, &self.nodes, now, log);
        }
    }

    /// Gives a shard to `to` if that node is in sync and alive, or else to the member in sync that has the most. A
    /// drain, an operator, or a local ring that fails or hangs asks for it.
    pub fn hand_over(&mut self, now: Duration, shard: u16, to: Option<&NodeName>) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.hand_over(&self.me, &mut self.out, &self.nodes, now, to);
        }
    }

    /// Gives away a shard for which this node cannot act, and does not take it back for [a
    /// while](OwnershipTimes::pause).
    pub fn give_up(&mut self, now: Duration, shard: u16) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.give_up(&self.me, &mut self.out, &self.nodes, now);
        }
    }

    /// Gives each shard away, to the most advanced member in sync, and takes no more. For a node that is about to stop.
    pub fn drain(&mut self) {
        self.me.is_draining = true;
    }

    /// True if this node owns no shard and opens none.
    pub fn holds_none(&self) -> bool {
        self.shards.values().all(ShardState::is_not_held)
    }

    /// All work in progress for the shard has ended, after [`Release`](OwnershipEffect::Release).
    pub fn released(&mut self, shard: u16) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.released();
        }
    }
}
