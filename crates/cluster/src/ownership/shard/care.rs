//! The owner's care: members in sync, cuts of the log, digests, and handing the shard over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Role, ShardState};
use crate::LogPosition;
use crate::cell::{MemberReport, NodeName};
use crate::ownership::effect::{Outbox, OwnershipEffect, StopReason};
use crate::ownership::facts::{LogState, Me, SeenNode};

type Nodes = BTreeMap<NodeName, SeenNode>;
type Members = BTreeMap<NodeName, u64>;

impl ShardState {
    /// The current sets of members in sync and of members that need seeding. `None` if this node does not own the
    /// shard.
    pub(super) fn members_now(&self, me: &Me, nodes: &Nodes, now: Duration) -> Option<(Members, Members)> {
        let own = self.own.filter(|_| self.role == Role::Owning)?.report;
        let mut in_sync = self.cell.in_sync.clone();
        let mut seeding = self.cell.seeding.clone();
        in_sync.insert(me.node.clone(), own.spool);
        for (name, node) in nodes {
            if node.cell.is_removed {
                in_sync.remove(name);
                seeding.remove(name);
                continue;
            }
            let is_fresh = now.saturating_sub(node.at) < me.times.fresh;
            let Some(report) = node.cell.reports.get(&self.number) else {
                // Its member has stopped.
                if is_fresh {
                    in_sync.remove(name);
                }
                continue;
            };
            if me.rules.digests && differs(&own, report) {
                seeding.insert(name.clone(), report.spool);
            }
            // A changed spool has nothing of what the one before had.
            if in_sync.get(name).is_some_and(|spool| *spool != report.spool) {
                in_sync.remove(name);
            }
            let (age, bytes) = self.marks.behind(report.applied, now);
            if seeding.get(name) == Some(&report.spool)
                || age > me.times.behind_most.0
                || bytes > me.times.behind_most.1
            {
                in_sync.remove(name);
            } else if is_fresh && self.can_come_back(me, &own, report, bytes) {
                in_sync.insert(name.clone(), report.spool);
            }
        }
        Some((in_sync, seeding))
    }

    fn can_come_back(&self, me: &Me, own: &MemberReport, report: &MemberReport, bytes_behind: u64) -> bool {
        let is_readable = report.applied.next() >= self.cut_below && self.marks.cover(report.applied);
        report.log == own.log && is_readable && bytes_behind < me.times.behind_least
    }

    /// Stops an owner that the log has lost records of. Cuts below what all members in sync have, two at least.
    pub fn log_state(&mut self, me: &Me, out: &mut Outbox, nodes: &Nodes, now: Duration, log: Option<LogState>) {
        if !matches!(self.role, Role::Owning | Role::Releasing(_)) {
            return;
        }
        let Some(log) = log else {
            self.short_since = None;
            return;
        };
        if log.end < log.applied && me.rules.end_check {
            // What was acknowledged since is in the spools of members: no record may take its place.
            if self.is_short_for_long(me, now) {
                let node = me.node.clone();
                self.stop(out, StopReason::LogRolledBack { end: log.end, node, applied: log.applied });
            }
            return;
        }
        self.short_since = None;
        if self.role != Role::Owning {
            return;
        }
        self.marks.note(now, log.end, log.bytes, me.times.behind_most.0);
        self.cut_below = self.cut_below.max(log.first);
        if now.saturating_sub(self.digest_at) >= me.times.digest {
            self.digest_at = now;
            out.push(OwnershipEffect::Digest { shard: self.number });
        }
        if !log.is_current && log.room.0 < log.room.1 / 2 {
            return;
        }
        let (Some(durable), Some(old)) = (self.durable(me, nodes, now), self.marks.ago(me.times.keep, now)) else {
            return;
        };
        // The last record that all have stays: with it a member finds that the log is still the same.
        let below = durable.min(old);
        if below > self.cut_below && now < self.lease_end(me) {
            self.cut_below = below;
            out.push(OwnershipEffect::Cut { shard: self.number, below });
        }
    }

    /// The position that two members, and all members in sync, have on their disks.
    fn durable(&self, me: &Me, nodes: &Nodes, now: Duration) -> Option<LogPosition> {
        let own = self.own?.report;
        if !me.rules.cut_by_two {
            return Some(own.applied);
        }
        let mut lowest = own.applied;
        let others = self.cell.in_sync.iter().filter(|(name, _)| **name != me.node);
        let mut count = 1;
        for (name, spool) in others {
            let node = nodes.get(name)?;
            let report = node.cell.reports.get(&self.number)?;
            let is_fresh = now.saturating_sub(node.at) < me.times.fresh || !me.rules.fresh_reports;
            let is_same = report.spool == *spool && report.log == own.log;
            if !is_fresh || !is_same {
                return None;
            }
            lowest = lowest.min(report.applied);
            count += 1;
        }
        (count >= 2 && self.cell.in_sync.get(&me.node) == Some(&own.spool)).then_some(lowest)
    }

    /// Gives a shard back to its home, if the home requests it.
    pub(super) fn give_back(&mut self, me: &Me, out: &mut Outbox, nodes: &Nodes, now: Duration) {
        if now.saturating_sub(self.owned_since) < me.times.stay {
            return;
        }
        let asks = |name: &NodeName| nodes.get(name).is_some_and(|node| node.cell.asks.contains(&self.number));
        let home = self.cell.in_sync.keys().find(|name| asks(name) && self.is_near(me, nodes, name, now)).cloned();
        if let Some(home) = home {
            self.release(out, Some(home));
        }
    }

    /// True of a live member in sync that can take over at once.
    fn is_near(&self, me: &Me, nodes: &Nodes, name: &NodeName, now: Duration) -> bool {
        let Some(node) = nodes.get(name) else { return false };
        let Some(report) = node.cell.reports.get(&self.number) else { return false };
        now.saturating_sub(node.at) < me.times.fresh
            && self.cell.in_sync.get(name) == Some(&report.spool)
            && self.marks.behind(report.applied, now).1 < me.times.behind_least
    }

    pub fn hand_over(&mut self, me: &Me, out: &mut Outbox, nodes: &Nodes, now: Duration, to: Option<&NodeName>) {
        if self.role != Role::Owning {
            return;
        }
        let near = self.cell.in_sync.keys().filter(|name| self.is_near(me, nodes, name, now));
        let applied =
            |name: &&NodeName| nodes.get(*name).and_then(|it| it.cell.reports.get(&self.number)).map(|it| it.applied);
        let next = near.filter(|name| to.is_none_or(|to| to == *name)).max_by_key(applied).cloned();
        // A node that was named and cannot take it leaves the shard where it is.
        if to.is_none() || next.is_some() {
            self.release(out, next);
        }
    }

    /// See [`ShardOwnership::give_up`](crate::ShardOwnership::give_up).
    pub fn give_up(&mut self, me: &Me, out: &mut Outbox, nodes: &Nodes, now: Duration) {
        self.paused_until = now + me.times.pause;
        self.hand_over(me, out, nodes, now, None);
    }

    fn release(&mut self, out: &mut Outbox, to: Option<NodeName>) {
        self.role = Role::Releasing(to);
        out.push(OwnershipEffect::Release { shard: self.number });
    }

    pub fn released(&mut self) {
        if let Role::Releasing(to) = &self.role {
            self.role = Role::Freeing(to.clone());
        }
    }
}

/// True if both have a digest at the same position and the digests differ.
fn differs(own: &MemberReport, other: &MemberReport) -> bool {
    match (own.digest, other.digest) {
        (Some(own), Some(other)) => own.position == other.position && own.sum != other.sum,
        _ => false,
    }
}
