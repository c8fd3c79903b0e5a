//! Next hops that an operator has chosen instead of those of the configuration.

use std::sync::Arc;

use super::entry::{EntryText, QueueEntry};
use super::temporary::Until;
use super::{Queue, QueueName, Scope, Secs};

/// Where an operator has mail go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diversion {
    /// The scope; no site.
    pub scope: Scope,
    /// Until when; [`Secs::MAX`] without an end.
    pub until: Secs,
    /// As of [`QueueEntry::Diverted`].
    pub to: Arc<str>,
    /// Why.
    pub reason: EntryText,
}

impl Diversion {
    /// True if it is for mail of a queue.
    pub fn is_for(&self, name: &QueueName) -> bool {
        self.scope.has(name)
    }
}

impl Until for Diversion {
    fn until(&self) -> Secs {
        self.until
    }
}

impl Queue {
    /// Where an operator has mail go: those of a tenant or campaign at a domain first, then of a domain, of a campaign, of a tenant. To change it, record and apply
    /// [`QueueEntry::Diverted`] or [`QueueEntry::NotDiverted`]: from then on nothing has a route, until they are [taken](Self::take_diversions).
    pub fn diversions(&self) -> impl Iterator<Item = &Diversion> {
        self.diverted.by_scope.values().rev()
    }

    /// True if that has changed since it was [taken](Self::take_diversions) last.
    pub fn have_diversions_changed(&self) -> bool {
        self.diverted.has_changed()
    }

    /// Like [`diversions`](Self::diversions), for routes that are made from now on.
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
}
