//! Next hops that an operator has chosen instead of those of the configuration.

use std::sync::Arc;

use super::entry::QueueEntry;
use super::temporary::Until;
use super::{Queue, QueueName, Scope, Secs};

/// Where an operator has mail go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diversion {
    /// Which mail; no site.
    pub scope: Scope,
    /// Until when; [`Secs::MAX`] without an end.
    pub until: Secs,
    /// As of [`QueueEntry::Diverted`].
    pub to: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

impl Diversion {
    /// Whether it is for mail of a queue.
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
    /// [`QueueEntry::Diverted`] or [`QueueEntry::NotDiverted`].
    pub fn diversions(&self) -> impl Iterator<Item = &Diversion> {
        self.diverted.by_scope.values().rev()
    }

    /// Whether that has changed since the last call: all is to be [routed](Self::route) anew.
    pub fn take_diversions_changed(&mut self) -> bool {
        self.diverted.take_changed()
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
