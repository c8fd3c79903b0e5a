//! One shard: its cell as last read, and this node's role.

mod care;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::effect::{Outbox, OwnershipEffect, StopReason};
use super::facts::{Me, OwnReport, SeenNode};
use super::marks::Marks;
use crate::cell::{CellKey, CellOwner, MemberReport, NodeName, ShardCell};
use crate::sender::SenderEnd;
use crate::{LogError, LogPosition};

/// The state of a shard.
#[derive(Debug)]
pub(crate) struct ShardState {
    number: u16,
    is_home: bool,
    cell: ShardCell,
    /// Revision of the cell; 0 before it was read.
    revision: u64,
    /// A read has shown that the cell does not exist.
    is_absent: bool,
    role: Role,
    /// Answered writes of the node's own cell since the last change of this one.
    quiet: u32,
    changed_at: Duration,
    asked: Option<Asked>,
    /// Swaps at this revision with an unknown outcome.
    tries: Vec<Try>,
    /// The cell must be read: a swap was refused or not answered.
    is_unsure: bool,
    /// A request for the log's end is in flight.
    has_asked_end: bool,
    /// The member with the highest reported position when the end was asked for.
    reported: Option<(NodeName, LogPosition)>,
    /// Time since which each answer says that the log ends below that.
    short_since: Option<Duration>,
    /// The earliest time of the next request.
    again_at: Duration,
    /// Time of sending of the last swap that renewed the ownership.
    lease_from: Duration,
    /// Time of sending of the last swap.
    swapped_at: Duration,
    /// Time of the engine's last answer to the owner.
    answered_at: Duration,
    owned_since: Duration,
    /// Earliest time at which this node may take it.
    paused_until: Duration,
    own: Option<OwnReport>,
    marks: Marks,
    /// The log was cut below this position.
    cut_below: LogPosition,
    /// The highest epoch that another's `open` in the log had.
    log_epoch: u64,
    digest_at: Duration,
}

/// The role of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Role {
    Standby,
    /// Owner by the cell; compares the log's end with reports.
    Checking,
    /// Owner by the cell; opens the log.
    Opening,
    Owning,
    /// Ends work in progress before another node may have the shard.
    Releasing(Option<NodeName>),
    /// Frees the cell.
    Freeing(Option<NodeName>),
    Stopped,
}

#[derive(Debug)]
struct Asked {
    request: u64,
    sent: Duration,
    /// Revision at that time.
    revision: u64,
    /// `None` for a read.
    value: Option<ShardCell>,
}

#[derive(Debug)]
struct Try {
    nonce: u64,
    sent: Duration,
}

impl ShardState {
    pub fn new(number: u16, is_home: bool) -> Self {
        ShardState {
            number,
            is_home,
            cell: ShardCell::default(),
            revision: 0,
            is_absent: false,
            role: Role::Standby,
            quiet: 0,
            changed_at: Duration::ZERO,
            asked: None,
            tries: Vec::new(),
            is_unsure: true,
            has_asked_end: false,
            reported: None,
            short_since: None,
            again_at: Duration::ZERO,
            lease_from: Duration::ZERO,
            swapped_at: Duration::ZERO,
            answered_at: Duration::ZERO,
            owned_since: Duration::ZERO,
            paused_until: Duration::ZERO,
            own: None,
            marks: Marks::default(),
            cut_below: LogPosition::START,
            log_epoch: 0,
            digest_at: Duration::ZERO,
        }
    }

    pub fn is_asked(&self, request: u64) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.request == request)
    }

    pub fn act_until(&self, me: &Me) -> Duration {
        match self.role {
            Role::Owning | Role::Releasing(_) => self.lease_end(me),
            _ => Duration::ZERO,
        }
    }

    pub fn begin_until(&self, me: &Me) -> Duration {
        match self.role {
            Role::Owning => self.lease_end(me).min(self.answered_at + me.times.begin),
            _ => Duration::ZERO,
        }
    }

    pub fn is_not_held(&self) -> bool {
        matches!(self.role, Role::Standby | Role::Stopped)
    }

    pub fn owned_epoch(&self) -> Option<u64> {
        matches!(self.role, Role::Owning | Role::Releasing(_)).then_some(self.cell.epoch)
    }

    fn lease_end(&self, me: &Me) -> Duration {
        if me.rules.lease_ends { self.lease_from + me.times.lease } else { Duration::MAX }
    }

    /// True if this node is its home and able to own it, and another node does.
    pub fn is_lent(&self, me: &Me, now: Duration) -> bool {
        let is_others = self.cell.owner.as_ref().is_some_and(|owner| owner.node != me.node);
        self.is_home && is_others && self.role == Role::Standby && self.may_take(me, now)
    }

    fn may_take(&self, me: &Me, now: Duration) -> bool {
        !me.is_draining && now >= self.paused_until
    }

    /// True if the cell names this process as the owner.
    fn is_mine(&self, me: &Me) -> bool {
        if me.rules.incarnation {
            self.cell.is_owned_by(&me.node, me.incarnation)
        } else {
            self.cell.owner.as_ref().is_some_and(|owner| owner.node == me.node)
        }
    }

    /// A write of the node's cell that was sent then has been answered.
    pub fn count(&mut self, sent: Duration) {
        if sent >= self.changed_at {
            self.quiet += 1;
        }
    }

    pub fn appended(&mut self, now: Duration) {
        self.answered_at = self.answered_at.max(now);
    }

    pub fn report(&mut self, report: OwnReport) {
        self.own = Some(report);
    }

    pub fn forget_report(&mut self) {
        self.own = None;
    }

    /// True if it has just requested a silent owner's shard.
    pub fn tick(
        &mut self,
        me: &Me,
        out: &mut Outbox,
        nodes: &BTreeMap<NodeName, SeenNode>,
        may_take: bool,
        now: Duration,
    ) -> bool {
        if self.role == Role::Stopped || self.asked.is_some() || now < self.again_at {
            return false;
        }
        if self.is_unsure {
            let request = out.get(CellKey::Shard(self.number));
            self.again_at = now + RETRY;
            self.asked = Some(Asked { request, sent: now, revision: self.revision, value: None });
            return false;
        }
        match &self.role {
            Role::Standby => return self.take_over(me, out, may_take, now),
            Role::Checking if !self.has_asked_end => {
                (self.has_asked_end, self.reported) = (true, self.most_reported(me, nodes));
                out.push(OwnershipEffect::LogEnd { shard: self.number });
            }
            Role::Freeing(next) => {
                let cell = ShardCell { owner: None, next: next.clone(), ..self.cell.clone() };
                self.swap(out, now, cell);
                return false;
            }
            Role::Owning => self.give_back(me, out, nodes, now),
            _ => {}
        }
        let members = self.members_now(me, nodes, now);
        let has_changed = members.as_ref().is_some_and(|it| (&it.0, &it.1) != (&self.cell.in_sync, &self.cell.seeding));
        let is_due = now.saturating_sub(self.swapped_at) >= me.times.renew;
        if is_due || has_changed {
            let mut cell = self.cell.clone();
            if let Some((in_sync, seeding)) = members {
                (cell.in_sync, cell.seeding) = (in_sync, seeding);
            }
            self.swap(out, now, cell);
        }
        false
    }

    fn swap(&mut self, out: &mut Outbox, now: Duration, mut cell: ShardCell) {
        cell.nonce = out.nonce();
        self.tries.push(Try { nonce: cell.nonce, sent: now });
        let request = out.swap(CellKey::Shard(self.number), self.revision, cell.encode());
        self.swapped_at = now;
        self.asked = Some(Asked { request, sent: now, revision: self.revision, value: Some(cell) });
    }

    /// Takes the shard, if it is this node's turn.
    fn take_over(&mut self, me: &Me, out: &mut Outbox, may_take: bool, now: Duration) -> bool {
        let Some(own) = self.own.filter(|_| self.may_take(me, now)) else { return false };
        let owner = Some(CellOwner { node: me.node.clone(), incarnation: me.incarnation });
        if self.is_absent {
            if self.is_home {
                let in_sync = BTreeMap::from([(me.node.clone(), own.report.spool)]);
                self.swap(out, now, ShardCell { epoch: self.log_epoch + 1, owner, in_sync, ..ShardCell::default() });
            }
            return false;
        }
        let spool = self.cell.in_sync.get(&me.node);
        let is_in_sync = spool.is_some_and(|spool| *spool == own.report.spool);
        if me.rules.in_sync_only && !is_in_sync {
            return false;
        }
        let is_free = self.cell.owner.is_none();
        let is_next = is_free && self.cell.next.as_ref() == Some(&me.node);
        if !is_next && (!may_take || !self.is_silent(me, own.lag, is_free, now)) {
            return false;
        }
        // Above the log's, should the cells be older than that: an epoch is never used again.
        let epoch = self.cell.epoch.max(self.log_epoch) + 1;
        let cell = ShardCell { epoch, owner, next: None, ..self.cell.clone() };
        self.swap(out, now, cell);
        !is_next
    }

    fn is_silent(&self, me: &Me, lag: Duration, is_free: bool, now: Duration) -> bool {
        let wanted = if is_free { me.times.free_writes } else { me.times.silent_writes };
        let lag = lag.as_millis() / me.times.lag_of_write.as_millis().max(1);
        let wanted = wanted.saturating_add(u32::try_from(lag).unwrap_or(u32::MAX));
        if me.rules.count_answered {
            self.quiet >= wanted
        } else {
            now.saturating_sub(self.changed_at) >= me.times.report * wanted
        }
    }

    /// A value of the cell, by a watch or a read.
    pub fn take(&mut self, me: &Me, out: &mut Outbox, now: Duration, value: &[u8], revision: u64) {
        if revision <= self.revision || self.role == Role::Stopped {
            return;
        }
        let Some(cell) = ShardCell::decode(value) else { return self.stop(out, StopReason::CellDamaged) };
        if cell.epoch < self.cell.epoch {
            return self.stop(out, StopReason::CellRolledBack);
        }
        let sent = self.tries.iter().find(|it| it.nonce == cell.nonce).map(|it| it.sent);
        self.adopt(me, out, now, cell, revision, sent);
    }

    /// `sent`: of the swap that wrote it, if it is this process's own.
    fn adopt(
        &mut self,
        me: &Me,
        out: &mut Outbox,
        now: Duration,
        cell: ShardCell,
        revision: u64,
        sent: Option<Duration>,
    ) {
        let is_new = |(node, spool): &(&NodeName, &u64)| self.cell.seeding.get(*node) != Some(*spool);
        for (node, _) in cell.seeding.iter().filter(is_new) {
            out.push(OwnershipEffect::Differs { shard: self.number, node: node.clone() });
        }
        (self.cell, self.revision, self.is_absent) = (cell, revision, false);
        (self.quiet, self.changed_at) = (0, now);
        self.tries.clear();
        if !self.is_mine(me) {
            return self.lose(out);
        }
        let Some(sent) = sent else {
            if !me.rules.incarnation && self.role == Role::Standby {
                // Broken: it goes on where the process before it ended.
                (self.role, self.lease_from, self.answered_at) = (Role::Owning, now, now);
                out.push(OwnershipEffect::Promote { shard: self.number });
            }
            return;
        };
        self.lease_from = if me.rules.lease_from_sending { sent } else { now };
        if self.role == Role::Standby {
            (self.role, self.owned_since, self.has_asked_end) = (Role::Checking, now, false);
            self.short_since = None;
            (self.again_at, self.marks, self.cut_below) = (now, Marks::default(), LogPosition::START);
        }
    }

    /// Ends the ownership: another node or none owns the shard.
    fn lose(&mut self, out: &mut Outbox) {
        if !matches!(self.role, Role::Standby | Role::Stopped) {
            self.role = Role::Standby;
            out.push(OwnershipEffect::Demote { shard: self.number });
        }
    }

    fn stop(&mut self, out: &mut Outbox, why: StopReason) {
        self.lose(out);
        self.role = Role::Stopped;
        out.push(OwnershipEffect::Stopped { shard: self.number, why });
    }

    pub fn swapped(&mut self, me: &Me, out: &mut Outbox, now: Duration, outcome: Result<u64, LogError>) {
        let Some(Asked { sent, value: Some(cell), .. }) = self.asked.take() else { return };
        match outcome {
            Ok(revision) => {
                self.answered_at = now;
                // A watch may have shown it before.
                if revision > self.revision {
                    self.adopt(me, out, now, cell, revision, Some(sent));
                }
            }
            Err(LogError::Unknown(_)) if !me.rules.unknown_by_reading => {
                self.adopt(me, out, now, cell, self.revision + 1, Some(sent));
            }
            Err(_) => (self.is_unsure, self.again_at) = (true, now),
        }
    }

    pub fn got(&mut self, me: &Me, out: &mut Outbox, now: Duration, outcome: Result<(Bytes, u64), LogError>) {
        let (Some(asked), Ok((value, revision))) = (self.asked.take(), outcome) else { return };
        self.again_at = now;
        if revision < asked.revision {
            return self.stop(out, StopReason::CellRolledBack);
        }
        // A watch may have shown a later one: then it is read again.
        self.is_unsure = revision < self.revision;
        if revision > self.revision {
            self.take(me, out, now, &value, revision)
        } else {
            // A swap that may be under way still has its nonce among the tries.
            self.is_absent = self.revision == 0
        }
    }

    fn most_reported(&self, me: &Me, nodes: &BTreeMap<NodeName, SeenNode>) -> Option<(NodeName, LogPosition)> {
        let own = self.own?.report;
        let of_others = nodes.iter().filter_map(|(name, node)| Some((name, node.cell.reports.get(&self.number)?)));
        let is_same = |report: &MemberReport| report.log == own.log || own.log == 0;
        let all = of_others.filter(|(_, report)| is_same(report)).chain([(&me.node, &own)]);
        all.max_by_key(|(_, report)| report.applied).map(|(name, report)| (name.clone(), report.applied))
    }

    pub fn log_end(&mut self, me: &Me, out: &mut Outbox, now: Duration, outcome: Result<LogPosition, LogError>) {
        if self.role != Role::Checking {
            return;
        }
        let Ok(end) = outcome else {
            (self.has_asked_end, self.again_at, self.short_since) = (false, now + RETRY, None);
            return;
        };
        if let Some((node, applied)) = self.reported.take().filter(|it| it.1 > end && me.rules.end_check) {
            if !self.is_short_for_long(me, now) {
                (self.has_asked_end, self.again_at) = (false, now + RETRY);
                return;
            }
            return self.stop(out, StopReason::LogRolledBack { end, node, applied });
        }
        self.role = Role::Opening;
        let nonce = out.nonce();
        out.push(OwnershipEffect::Open { shard: self.number, epoch: self.cell.epoch, nonce });
    }

    /// The log ends too early now. False while the server that answers may only lag. An unanswered question in between
    /// starts the time anew: nobody knows the end then.
    fn is_short_for_long(&mut self, me: &Me, now: Duration) -> bool {
        now.saturating_sub(*self.short_since.get_or_insert(now)) >= me.times.short
    }

    pub fn opened(&mut self, out: &mut Outbox) {
        if self.role == Role::Opening {
            (self.role, self.short_since) = (Role::Owning, None);
            out.push(OwnershipEffect::Promote { shard: self.number });
        }
    }

    pub fn ended(&mut self, out: &mut Outbox, end: SenderEnd) {
        let has_sender = matches!(self.role, Role::Opening | Role::Owning | Role::Releasing(_) | Role::Freeing(_));
        match end {
            _ if !has_sender => {}
            SenderEnd::Fenced { epoch } => {
                self.lose(out);
                (self.is_unsure, self.log_epoch) = (true, self.log_epoch.max(epoch));
            }
            end => self.stop(out, StopReason::Log(end)),
        }
    }
}

/// Pause after an unanswered question.
const RETRY: Duration = Duration::from_secs(1);
