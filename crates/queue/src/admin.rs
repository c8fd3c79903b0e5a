//! Commands of operators, and the state that they see.

use std::sync::Arc;

use posthaste_spool::Lsn;

use super::change::{Change, HoldReason, QueueAction, RecipientKey, Status, What};
use super::clock::Secs;
use super::destinations::QueueId;
use super::queue::Queue;
use super::recipient::{BUSY, DUE, HELD, Id, Recipient};

/// A selection of recipients. Empty: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only this tenant's.
    pub tenant: Option<Arc<str>>,
    /// Only this campaign's.
    pub campaign: Option<Arc<str>>,
    /// Only to this domain, in lower case.
    pub domain: Option<Arc<str>>,
    /// Only held ones, or only those not held.
    pub is_held: Option<bool>,
}

/// The event that a recipient waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Its next attempt is at this time.
    Until(Secs),
    /// It is due and waits for a connection.
    Due,
    /// The end of a suspension; [`Secs::MAX`] without an end.
    Suspended(Secs),
    /// It is held, for this reason; [`HoldReason::Until`] has the end of the hold.
    Held(HoldReason),
    /// The outcome of an attempt, or its record.
    Busy,
}

/// State of a waiting recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientState {
    /// The recipient.
    pub key: RecipientKey,
    /// Id of the recipient's queue.
    pub queue: QueueId,
    /// When its message was received, or released for a later start.
    pub received: Secs,
    /// Time of expiry; `None` while it is held.
    pub expires: Option<Secs>,
    /// Attempts so far.
    pub attempts: u8,
    /// Result of the last attempt.
    pub status: Status,
    /// The event that it waits for.
    pub waits: Waits,
}

impl Queue {
    /// Decides an action on one recipient; record and apply the returned change. `None`: nothing to record now. On a
    /// busy recipient the action becomes [pending](Self::pending), unless one of higher rank is pending. A deletion is
    /// above a bounce, that above a hold, and that above the others.
    pub fn act(&mut self, key: RecipientKey, action: QueueAction) -> Option<Change> {
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

    /// The action that follows the work on a busy recipient. [`take_actions`](Self::take_actions) returns it, unless
    /// the recipient is settled by then.
    pub fn pending(&self, key: RecipientKey) -> Option<QueueAction> {
        self.pending.get(&key).copied()
    }

    /// Changes by actions on recipients that were busy; record and apply them.
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

    /// Releases at most `most` recipients whose hold has ended; record and apply the changes. The next call continues.
    pub fn end_holds(&mut self, most: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some(id) = self.table.first(self.ended_holds)
        {
            changes.extend(self.decide(id, QueueAction::Release));
        }
        changes
    }

    /// Gives up a change that could not be recorded: the recipient waits as before. Never for the outcome of an
    /// attempt, whose record must be repeated until it succeeds.
    pub fn abandon(&mut self, key: RecipientKey) {
        if let Some(id) = self.table.find(key) {
            self.free(id);
        }
    }

    fn decide(&mut self, id: Id, action: QueueAction) -> Option<Change> {
        let key = self.table.key(id);
        // No action lets a message leave before its sender wants.
        let next = self.now.max(self.table.message(id).1);
        let recipient = self.table.get(id);
        let held = recipient.is(HELD).then(|| HoldReason::of(recipient.due));
        let what = match (action, held) {
            (QueueAction::Hold(until), held) => What::Held(self.new_hold(until, held)?),
            (QueueAction::Release, Some(_)) => What::Released { next, expires: self.expires_anew(id) },
            (QueueAction::Flush, None) if self.comes_forward(id, next) => {
                What::Rescheduled { attempts: recipient.attempts, next }
            }
            (QueueAction::Requeue, None) if recipient.attempts > 0 || self.comes_forward(id, next) => {
                What::Rescheduled { attempts: 0, next }
            }
            (QueueAction::Delete, _) => What::Deleted,
            (QueueAction::Bounce(status), _) => What::Failed(status),
            (QueueAction::Release, None) | (QueueAction::Flush | QueueAction::Requeue, _) => return None,
        };
        self.table.unlink(id);
        self.table.change(id, Recipient::begin_work);
        Some(Change { key, what })
    }

    /// True if setting its time to `next` makes a recipient that is not held be tried earlier. A due one counts only if
    /// its site's pause delays it.
    fn comes_forward(&self, id: Id, next: Secs) -> bool {
        let recipient = self.table.get(id);
        let message = self.table.message(id).0;
        let is_suspended = || self.suspension_of(message, recipient.queue, recipient.attempts).is_some();
        next < recipient.due || next <= self.now && !is_suspended()
    }

    /// The new hold; `None` keeps the old one. An operator does not change others' holds; a hold without an end ends
    /// only by a release; an end in the past holds nothing.
    fn new_hold(&self, until: Option<Secs>, held: Option<HoldReason>) -> Option<HoldReason> {
        let new = until.map_or(HoldReason::Operator, HoldReason::Until);
        let may_change = held.is_none_or(|held| matches!(held, HoldReason::Until(_)) && held != new);
        (may_change && until.is_none_or(|until| until > self.now)).then_some(new)
    }

    /// New expiry of a released recipient that would expire at once; 0 leaves it.
    fn expires_anew(&self, id: Id) -> Secs {
        if self.expires(id) > self.now { 0 } else { self.schedule_of(id).expires(self.now) }
    }

    fn expires(&self, id: Id) -> Secs {
        let (message, received) = self.table.message(id);
        self.expires.get(&message).copied().unwrap_or_else(|| self.schedule_of(id).expires(received))
    }

    /// A part of the recipients of a selection, from `from` on (`None`: the beginning), the key to continue from
    /// (`None`: the end), and the number scanned. Reads memory only.
    pub fn select(
        &self,
        selection: &Selection,
        from: Option<RecipientKey>,
    ) -> (Vec<RecipientKey>, Option<RecipientKey>, usize) {
        let Some((ids, next)) = self.table.open_from(from.unwrap_or(RecipientKey::FIRST)) else {
            return (Vec::new(), None, 0);
        };
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

    /// True if recipients of a message wait for their first attempt, and no first attempt is in flight.
    pub fn has_untried(&self, message: Lsn) -> bool {
        self.table.has_untried(message)
    }

    /// State of a recipient; `None` if it is settled.
    pub fn show(&self, key: RecipientKey) -> Option<RecipientState> {
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
}
