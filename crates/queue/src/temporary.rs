//! Temporary entries by scope.

use std::collections::BTreeMap;

use super::{MailScope, Secs};

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
