//! Diversions: next hops chosen by an operator in place of the configured ones.

use std::sync::Arc;

use super::entry::{EntryText, QueueEntry};
use super::temporary::Until;
use super::{MailScope, Queue, QueueName, Secs};

/// An operator's diversion of mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diversion {
    /// The scope; never a site.
    pub scope: MailScope,
    /// Its end; [`Secs::MAX`] without one.
    pub until: Secs,
    /// The next hop, as in [`QueueEntry::Diverted`].
    pub to: Arc<str>,
    /// The operator's reason.
    pub reason: EntryText,
}

impl Diversion {
    /// True if it covers a queue's mail.
    pub fn is_for(&self, name: &QueueName) -> bool {
        name.is_in(&self.scope)
    }
}

impl Until for Diversion {
    fn until(&self) -> Secs {
        self.until
    }
}

impl Queue {
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
}
