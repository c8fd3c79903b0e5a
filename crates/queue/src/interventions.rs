//! The suspensions, diversions and slow-downs in force.

use posthaste_shaping::MailScope;

use super::destinations::QueueId;
use super::entry::QueueEntry;
use super::queue::Queue;
use super::tally::SuspendedPart;
use super::temporary::{Diversion, Slow};

impl Queue {
    /// The suspensions, with end and reason. To change them, record and apply [`QueueEntry::Suspended`] or
    /// [`QueueEntry::Resumed`].
    pub fn suspensions(&self) -> impl Iterator<Item = QueueEntry> {
        self.suspended.iter().map(|(scope, (until, reason))| QueueEntry::Suspended {
            scope: scope.clone(),
            until: *until,
            reason: reason.clone(),
        })
    }

    /// The diversions: those of a tenant or campaign at a domain first, then of a domain, a campaign, a tenant. To
    /// change them, record and apply [`QueueEntry::Diverted`] or [`QueueEntry::NotDiverted`]. From then on nothing has
    /// a route, until they are [taken](Self::take_diversions).
    pub fn diversions(&self) -> impl Iterator<Item = &Diversion> {
        self.diverted.by_scope.values().rev()
    }

    /// True if they changed since they were last [taken](Self::take_diversions).
    pub fn have_diversions_changed(&self) -> bool {
        self.diverted.has_changed()
    }

    /// Like [`diversions`](Self::diversions), for the routes made from now on.
    pub fn take_diversions(&mut self) -> Vec<Diversion> {
        self.diverted.take_changed();
        self.diversions().cloned().collect()
    }

    pub(super) fn diversion_entries(&self) -> impl Iterator<Item = QueueEntry> {
        self.diversions().cloned().map(|Diversion { scope, until, to, reason }| QueueEntry::Diverted {
            scope,
            until,
            to,
            reason,
        })
    }

    /// The slow-downs. To change them, record and apply [`QueueEntry::Slowed`] or [`QueueEntry::Resumed`].
    pub fn slowed(&self) -> impl Iterator<Item = (&MailScope, &Slow)> {
        self.slowed.by_scope.iter()
    }

    /// True if they changed since the last call.
    pub fn take_slowed_changed(&mut self) -> bool {
        self.slowed.take_changed()
    }

    /// The slow-downs as [`QueueEntry::Slowed`].
    pub fn slowed_entries(&self) -> impl Iterator<Item = QueueEntry> {
        self.slowed().map(|(scope, slow)| {
            let Slow { until, message_rate, connections, reason } = slow.clone();
            QueueEntry::Slowed { scope: scope.clone(), until, message_rate, connections, reason }
        })
    }

    /// True if an entry would change nothing.
    pub fn is_in_force(&self, entry: &QueueEntry) -> bool {
        match entry {
            QueueEntry::Suspended { scope, .. } => self.suspended.contains_key(scope),
            QueueEntry::Diverted { scope, .. } => self.diversions().any(|diversion| diversion.scope == *scope),
            QueueEntry::Slowed { scope, .. } => self.slowed.by_scope.contains_key(scope),
            _ => false,
        }
    }

    /// The suspended part of a queue.
    pub fn suspended_part(&self, id: QueueId) -> SuspendedPart {
        let lanes = self.destinations.get(id).map_or(0, |destination| destination.lanes.len());
        let mut untils = (0..lanes.max(1)).map(|lane| self.suspended_until(id.place, lane));
        if self.suspended.is_empty() || self.destinations.get(id).is_none() {
            return SuspendedPart::None;
        }
        let first = untils.next().flatten();
        match untils.try_fold(first, |least, until| match (least, until) {
            (None, None) => Some(None),
            (Some(least), Some(until)) => Some(Some(until.min(least))),
            _ => None,
        }) {
            Some(None) => SuspendedPart::None,
            Some(Some(until)) => SuspendedPart::All(until),
            None => SuspendedPart::Some,
        }
    }
}
