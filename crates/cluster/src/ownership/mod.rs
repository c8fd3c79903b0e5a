//! Decides which node owns a shard, as a state machine without IO. Times, cells and reports go in; requests to the
//! engine and orders to the shard come out.
//!
//! A shard's cell names the owner. The owner renews it; its lease counts from the moment it sent the last renewal that
//! succeeded. A standby counts the answered writes of its own node's cell since the shard's cell changed. So an engine
//! that pauses moves no shard. The lease only bounds doubles. The log is fenced by `open(epoch)`, whatever the clocks
//! say.
//!
//! Times are those of `CLOCK_BOOTTIME` of this machine; no two machines have one in common.

pub(crate) mod marks;
mod node;
mod settings;
mod shard;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use posthaste_random::Random;

use crate::cell::{CellKey, MemberReport, NodeCell, NodeName};
use crate::sender::SenderEnd;
use crate::{LogError, LogPosition};
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

/// A request to the engine, or an order to the shard. In order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnershipEffect {
    /// Read a cell and call [`ShardOwnership::got`].
    Get {
        /// Key of the cell.
        key: CellKey,
        /// Returned with the answer.
        request: u64,
    },
    /// Swap a cell and call [`ShardOwnership::swapped`], after a few seconds at most.
    Swap {
        /// Key of the cell.
        key: CellKey,
        /// The revision that it must have.
        revision: u64,
        /// New value of the cell.
        value: Bytes,
        /// Returned with the answer.
        request: u64,
    },
    /// Ask the log for its end and call [`ShardOwnership::log_end`].
    LogEnd {
        /// The shard.
        shard: u16,
    },
    /// Append an `open` at the end of the log, apply the log up to it, and call [`ShardOwnership::opened`] or
    /// [`ShardOwnership::ended`].
    Open {
        /// The shard.
        shard: u16,
        /// The epoch.
        epoch: u64,
        /// Nonce of the `open` record.
        nonce: u64,
    },
    /// This node owns the shard: begin to act.
    Promote {
        /// The shard.
        shard: u16,
    },
    /// Take nothing new, let all work in progress end, and call [`ShardOwnership::released`].
    Release {
        /// The shard.
        shard: u16,
    },
    /// This node no longer owns the shard: become a standby.
    Demote {
        /// The shard.
        shard: u16,
    },
    /// Cut the log.
    Cut {
        /// The shard.
        shard: u16,
        /// The first position to keep.
        below: LogPosition,
    },
    /// Append a `digest` record.
    Digest {
        /// The shard.
        shard: u16,
    },
    /// The state of a member differs from the owner's: it needs seeding.
    Differs {
        /// The shard.
        shard: u16,
        /// The member.
        node: NodeName,
    },
    /// The shard stops until an operator intervenes.
    Stopped {
        /// The shard.
        shard: u16,
        /// The cause.
        why: StopReason,
    },
    /// Another process uses this node's name: this one must exit.
    NameTaken,
    /// This node was removed: this process must exit.
    Removed,
}

/// Why a shard stops.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopReason {
    /// Records that a member has applied are gone.
    #[error("{}, and {node} has applied position {applied}", end_of(*.end))]
    LogRolledBack {
        /// The last position of the log.
        end: LogPosition,
        /// A member that has more.
        node: NodeName,
        /// The last position that it has applied.
        applied: LogPosition,
    },
    /// The cell is older than the last one read.
    #[error("the shard's cell is older than one that was read before: the engine was restored or its data lost")]
    CellRolledBack,
    /// The cell cannot be decoded.
    #[error("the shard's cell is damaged, or a newer release wrote it")]
    CellDamaged,
    /// The log cannot be read or written any further.
    #[error("{0}")]
    Log(SenderEnd),
}

fn end_of(end: LogPosition) -> String {
    if end == LogPosition::START { "the log is gone".to_owned() } else { format!("the log ends at position {end}") }
}

/// The state of this node's member of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnReport {
    /// Published in the node's cell.
    pub report: MemberReport,
    /// Age of the first record that it has not applied, by the engine's times.
    pub lag: Duration,
}

/// The log's state, as known to the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogState {
    /// The position that this node's member had applied before the log was asked.
    pub applied: LogPosition,
    /// The lowest stored position.
    pub first: LogPosition,
    /// The highest stored position.
    pub end: LogPosition,
    /// Bytes appended since a fixed moment of this ownership.
    pub bytes: u64,
    /// Bytes stored, and the limit.
    pub room: (u64, u64),
    /// True if all of the engine's replicas have all records.
    pub is_current: bool,
}

#[derive(Debug)]
pub(crate) struct Me {
    node: NodeName,
    incarnation: u64,
    times: OwnershipTimes,
    rules: OwnershipRules,
    /// True if it owns nothing and takes nothing.
    is_draining: bool,
}

#[derive(Debug)]
pub(crate) struct SeenNode {
    cell: NodeCell,
    revision: u64,
    at: Duration,
}

/// Effects, and numbers for them.
#[derive(Debug)]
pub(crate) struct Outbox {
    effects: VecDeque<OwnershipEffect>,
    random: Random,
    requests: u64,
}

impl Outbox {
    fn push(&mut self, effect: OwnershipEffect) {
        self.effects.push_back(effect);
    }

    fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    fn nonce(&mut self) -> u64 {
        self.random.next()
    }

    fn get(&mut self, key: CellKey) -> u64 {
        let request = self.request();
        self.push(OwnershipEffect::Get { key, request });
        request
    }

    fn swap(&mut self, key: CellKey, revision: u64, value: Bytes) -> u64 {
        let request = self.request();
        self.push(OwnershipEffect::Swap { key, revision, value, request });
        request
    }
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
            out: Outbox { effects: VecDeque::new(), random: Random::of(incarnation, 0x0e), requests: 0 },
        }
    }

    /// Adds a shard that this node is a member of. Its home makes the cell of a new shard, and gets the shard back.
    pub fn add(&mut self, shard: u16, is_home: bool) {
        self.shards.entry(shard).or_insert_with(|| ShardState::new(shard, is_home));
    }

    /// The next request or order, if any.
    pub fn effect(&mut self) -> Option<OwnershipEffect> {
        self.out.effects.pop_front()
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

    /// All work in progress for the shard has ended, after [`Release`](OwnershipEffect::Release).
    pub fn holds_none(&self) -> bool {
        self.shards.values().all(ShardState::is_not_held)
    }

    /// Everything under way for the shard has ended, after [`Release`](OwnershipEffect::Release).
    pub fn released(&mut self, shard: u16) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.released();
        }
    }
}
