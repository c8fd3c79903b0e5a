//! Entries in force for some scopes until a time comes.

use std::collections::BTreeMap;

use super::{Scope, Secs};

/// Has an end.
pub(super) trait Until {
    /// [`Secs::MAX`] without an end.
    fn until(&self) -> Secs;
}

#[derive(Debug)]
pub(super) struct Temporary<T> {
    pub by_scope: BTreeMap<Scope, T>,
    has_changed: bool,
}

impl<T> Default for Temporary<T> {
    fn default() -> Self {
        Temporary { by_scope: BTreeMap::new(), has_changed: false }
    }
}

impl<T: Until> Temporary<T> {
    pub fn insert(&mut self, scope: Scope, value: T) {
        self.by_scope.insert(scope, value);
        self.has_changed = true;
    }

    pub fn remove(&mut self, scope: &Scope) {
        self.has_changed |= self.by_scope.remove(scope).is_some();
    }

    /// Removes what has ended.
    pub fn end(&mut self, now: Secs) {
        if self.by_scope.is_empty() {
            return;
        }
        let before = self.by_scope.len();
        self.by_scope.retain(|_, value| value.until() > now);
        self.has_changed |= self.by_scope.len() < before;
    }

    /// True if anything has changed since that was taken.
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// True if anything has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}
