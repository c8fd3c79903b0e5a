//! Diversions, by which an operator chooses next hops in place of the configured ones, and slow-downs, requested by a
//! host's replies: each for a scope, with an end.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_shaping::MailScope;

use super::clock::Secs;
use super::codec::EntryText;
use super::destinations::QueueName;

/// An operator's diversion of mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diversion {
    /// The scope; never a site.
    pub scope: MailScope,
    /// End of the diversion; [`Secs::MAX`] without one.
    pub until: Secs,
    /// The next hop, as in [`QueueEntry::Diverted`](super::QueueEntry::Diverted).
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

/// Temporary limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slow {
    /// End of the limits, on the queue's clock.
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

/// An entry with an end.
pub(super) trait Until {
    /// Its end; [`Secs::MAX`] without one.
    fn until(&self) -> Secs;
}

#[derive(Debug)]
pub(super) struct Temporary<T> {
    pub by_scope: BTreeMap<MailScope, T>,
    has_changed: bool,
}

impl<T> Default for Temporary<T> {
    fn default() -> Self {
        Temporary { by_scope: BTreeMap::new(), has_changed: false }
    }
}

impl<T: Until> Temporary<T> {
    pub fn insert(&mut self, scope: MailScope, value: T) {
        self.by_scope.insert(scope, value);
        self.has_changed = true;
    }

    pub fn remove(&mut self, scope: &MailScope) {
        self.has_changed |= self.by_scope.remove(scope).is_some();
    }

    /// Removes expired entries.
    pub fn end(&mut self, now: Secs) {
        if self.by_scope.is_empty() {
            return;
        }
        let before = self.by_scope.len();
        self.by_scope.retain(|_, value| value.until() > now);
        self.has_changed |= self.by_scope.len() < before;
    }

    /// True if they changed since the last [`take_changed`](Self::take_changed).
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// True if they changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}
