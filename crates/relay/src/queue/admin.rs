//! Acts of operators, and the rows that they see.

use std::sync::Arc;

use posthaste_spool::Lsn;

use super::entry::{Change, HoldReason, Key, QueueEntry, Status, What};
use super::table::{BUSY, DUE, HELD, Id, Recipient};
use super::{FIRST, Queue, QueueId, Secs};

/// An act of an operator on recipients. "Now" is never before the time from which on a message may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// They are not tried and do not expire: until then, or until they are released. What an operator holds until a time already is held until the new one;
    /// what is held without an end, or not by an operator, stays so.
    Hold(Option<Secs>),
    /// Held ones are tried again, now; what has become too old meanwhile has its whole age once more.
    Release,
    /// They are tried now, suspended ones once they are resumed, held ones not.
    Flush,
    /// Like `Flush`, as if for the first time.
    Requeue,
    /// They are removed without a word.
    Delete,
    /// They are given up; the caller records the DSN with the change.
    Bounce(Status),
}

impl Action {
    /// Of two actions that follow the same attempt, the one of the higher rank counts; of the same rank, the later.
    fn rank(self) -> u8 {
        match self {
            Action::Delete => 3,
            Action::Bounce(_) => 2,
            Action::Hold(_) => 1,
            Action::Release | Action::Flush | Action::Requeue => 0,
        }
    }
}

/// A selection of recipients. An empty one is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of this tenant.
    pub tenant: Option<Arc<str>>,
    /// Of this campaign.
    pub campaign: Option<Arc<str>>,
    /// To this domain, in lower case.
    pub domain: Option<Arc<str>>,
    /// Held ones, or those that are not.
    pub is_held: Option<bool>,
}

/// The cause of a recipient's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Its next attempt.
    Until(Secs),
    /// Its turn.
    Due,
    /// The end of a suspension; [`Secs::MAX`] without an end.
    Suspended(Secs),
    /// An operator, or another who may release it.
    Held(HoldReason),
    /// The outcome of an attempt, or its record.
    Busy,
}

/// Why a recipient waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientState {
    /// The recipient.
    pub key: Key,
    /// Its queue.
    pub queue: QueueId,
    /// When its message was received, or released if it was held back.
    pub received: Secs,
    /// When it is given up; `None` while it is held.
    pub expires: Option<Secs>,
    /// Attempts so far.
    pub attempts: u8,
    /// The end of the last one.
    pub status: Status,
    /// The cause of its wait.
    pub waits: Waits,
}

impl Queue {
    /// Decides an action on one recipient. The change is to be recorded and applied. `None`: there is nothing to record now; if the recipient is busy, the
    /// action is [pending](Self::pending), unless one of a higher rank is already: a deletion is above a bounce, that above a hold, and that above the others.
    pub fn act(&mut self, key: Key, action: Action) -> Option<Change> {
        let id = self.table.find(key)?;
        if self.table.get(id).is(BUSY) {
            let pending = self.pending.entry(key).or_insert(action);
            if action.rank() >= pending.rank() {
                *pending = action;
            }
            return None;
        }
        self.decide(id, action)
    }

    /// The action that follows what a recipient is busy with: it comes from [`take_actions`](Self::take_actions), unless the recipient is settled by then.
    pub fn pending(&self, key: Key) -> Option<Action> {
        self.pending.get(&key).copied()
    }

    /// Changes by actions on recipients that were busy, to be recorded and applied.
    pub fn take_actions(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for key in std::mem::take(&mut self.pending_due) {
            let Some(action) = self.pending.remove(&key) else { continue };
            let Some(id) = self.table.find(key) else { continue };
            match self.decide(id, action) {
                Some(change) => changes.push(change),
                None => self.free(id),
            }
        }
        changes
    }

    /// Releases recipients whose hold has ended, some of them if there are many: changes to be recorded and applied. The others come with the next call.
    pub fn end_holds(&mut self, most: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some(id) = self.table.first(self.ended_holds)
        {
            changes.extend(self.decide(id, Action::Release));
        }
        changes
    }

    /// A change could not be recorded: the recipient waits again as before. Never for an outcome of an attempt, which is to be recorded until that succeeds.
    pub fn abandon(&mut self, key: Key) {
        if let Some(id) = self.table.find(key) {
            self.free(id);
        }
    }

    fn decide(&mut self, id: Id, action: Action) -> Option<Change> {
        let key = self.table.key(id);
        // No action has a message leave before its sender wants it to.
        let next = self.now.max(self.table.message(id).1);
        let recipient = self.table.get(id);
        let held = recipient.is(HELD).then(|| HoldReason::of(recipient.due));
        let what = match (action, held) {
            (Action::Hold(until), held) => What::Held(self.new_hold(until, held)?),
            (Action::Release, Some(_)) => What::Released { next, expires: self.expires_anew(id) },
            (Action::Flush, None) if self.comes_forward(id, next) => {
                What::Rescheduled { attempts: recipient.attempts, next }
            }
            (Action::Requeue, None) if recipient.attempts > 0 || self.comes_forward(id, next) => {
                What::Rescheduled { attempts: 0, next }
            }
            (Action::Delete, _) => What::Deleted,
            (Action::Bounce(status), _) => What::Failed(status),
            (Action::Release, None) | (Action::Flush | Action::Requeue, _) => return None,
        };
        self.table.unlink(id);
        self.table.change(id, Recipient::begin_work);
        Some(Change { key, what })
    }

    /// True if a recipient that is not held is tried earlier if its time is `next`; one that is due is, if its site pauses, unless it is suspended.
    fn comes_forward(&self, id: Id, next: Secs) -> bool {
        let recipient = self.table.get(id);
        let message = self.table.message(id).0;
        let is_suspended = || self.suspension_of(message, recipient.queue, recipient.attempts).is_some();
        next < recipient.due || next <= self.now && !is_suspended()
    }

    /// `None`: it stays as it is. An operator does not change what others hold; a hold without an end ends by a release alone; and an end that has come already
    /// holds nothing.
    fn new_hold(&self, until: Option<Secs>, held: Option<HoldReason>) -> Option<HoldReason> {
        let new = until.map_or(HoldReason::Operator, HoldReason::Until);
        let may_change = held.is_none_or(|held| matches!(held, HoldReason::Until(_)) && held != new);
        (may_change && until.is_none_or(|until| until > self.now)).then_some(new)
    }

    /// When a released recipient expires, if it would at once otherwise; 0 if not.
    fn expires_anew(&self, id: Id) -> Secs {
        if self.expires(id) > self.now { 0 } else { self.schedule_of(id).expires(self.now) }
    }

    fn expires(&self, id: Id) -> Secs {
        let (message, received) = self.table.message(id);
        self.expires.get(&message).copied().unwrap_or_else(|| self.schedule_of(id).expires(received))
    }

    /// Some recipients of a selection, at or behind `from` (`None`: from the beginning), and where to go on; `None` at the end. And the number of those that
    /// were looked at. Reads memory only.
    pub fn select(&self, selection: &Selection, from: Option<Key>) -> (Vec<Key>, Option<Key>, usize) {
        let Some((ids, next)) = self.table.open_from(from.unwrap_or(FIRST)) else { return (Vec::new(), None, 0) };
        let looked_at = ids.len();
        let is =
            |wanted: &Option<Arc<str>>, name: u32| wanted.as_ref().is_none_or(|wanted| wanted == self.names.get(name));
        let fits = |id: &Id| {
            let recipient = self.table.get(*id);
            let [tenant, campaign, domain, _] = self.destinations.at(recipient.queue).key;
            is(&selection.tenant, tenant)
                && is(&selection.campaign, campaign)
                && is(&selection.domain, domain)
                && selection.is_held.is_none_or(|is_held| is_held == recipient.is(HELD))
        };
        (ids.into_iter().filter(fits).map(|id| self.table.key(id)).collect(), Some(next), looked_at)
    }

    fn suspension_of(&self, message: Lsn, queue: u32, attempts: u8) -> Option<Secs> {
        let lane = self.destinations.at(queue).lane_of(message, attempts);
        self.suspended_until(queue, lane.unwrap_or(0))
    }

    /// True if recipients of a message wait.
    pub fn has_message(&self, message: Lsn) -> bool {
        self.table.has(message)
    }

    /// True if recipients of a message wait for their first attempt, and none is under way for them.
    pub fn has_untried(&self, message: Lsn) -> bool {
        self.table.has_untried(message)
    }

    /// Why a recipient waits; `None` if it is settled.
    pub fn show(&self, key: Key) -> Option<RecipientState> {
        let id = self.table.find(key)?;
        let recipient = self.table.get(id);
        let waits = if recipient.is(BUSY) {
            Waits::Busy
        } else if recipient.is(HELD) {
            Waits::Held(HoldReason::of(recipient.due))
        } else if let Some(until) = self.suspension_of(key.message, recipient.queue, recipient.attempts) {
            Waits::Suspended(until)
        } else if recipient.is(DUE) {
            Waits::Due
        } else {
            Waits::Until(recipient.due)
        };
        Some(RecipientState {
            key,
            queue: self.destinations.id(recipient.queue),
            received: self.table.message(id).1,
            expires: (!recipient.is(HELD)).then(|| self.expires(id)),
            attempts: recipient.attempts,
            status: recipient.status,
            waits,
        })
    }

    /// The suspensions, until when and why. To change them, record and apply [`QueueEntry::Suspended`] or [`QueueEntry::Resumed`].
    pub fn suspensions(&self) -> impl Iterator<Item = QueueEntry> {
        self.suspended.iter().map(|(scope, (until, reason))| QueueEntry::Suspended {
            scope: scope.clone(),
            until: *until,
            reason: reason.clone(),
        })
    }
}
