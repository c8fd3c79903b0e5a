//! Temporary slow-downs, requested by a host's replies.

use std::sync::Arc;

use super::entry::{EntryText, QueueEntry};
use super::temporary::Until;
use super::{MailScope, Queue, Secs};

/// Temporary limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slow {
    /// Their end.
    pub until: Secs,
    /// A [`Rate`](posthaste_units::Rate) of messages as text; empty for none.
    pub message_rate: Arc<str>,
    /// Connections of a site at a time; 0 for no limit.
    pub connections: u32,
    /// The reason.
    pub reason: EntryText,
}

impl Until for Slow {
    fn until(&self) -> Secs {
        self.until
    }
}

impl Queue {
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
}
