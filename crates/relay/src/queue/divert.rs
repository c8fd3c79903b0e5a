//! Next hops that an operator has chosen instead of those of the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::{QueueEntry, Scope};
use super::{Queue, QueueName, Secs};

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
        match &self.scope {
            Scope::Tenant(tenant) => *tenant == name.tenant,
            Scope::Campaign(campaign) => *campaign == name.campaign,
            Scope::Domain(domain) => *domain == name.domain,
            Scope::Site(_) => false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Diversions {
    by_scope: BTreeMap<Scope, Diversion>,
    has_changed: bool,
}

impl Diversions {
    pub fn insert(&mut self, diversion: Diversion) {
        self.by_scope.insert(diversion.scope.clone(), diversion);
        self.has_changed = true;
    }

    pub fn remove(&mut self, scope: &Scope) {
        self.has_changed |= self.by_scope.remove(scope).is_some();
    }

    pub fn end(&mut self, now: Secs) {
        if self.by_scope.is_empty() {
            return;
        }
        let before = self.by_scope.len();
        self.by_scope.retain(|_, diversion| diversion.until > now);
        self.has_changed |= self.by_scope.len() < before;
    }
}

impl Queue {
    /// Where an operator has mail go: those of a domain first, then of a campaign, then of a tenant. To change it, record and apply
    /// [`QueueEntry::Diverted`] or [`QueueEntry::NotDiverted`].
    pub fn diversions(&self) -> impl Iterator<Item = &Diversion> {
        self.diverted.by_scope.values().rev()
    }

    /// Whether that has changed since the last call: all is to be [routed](Self::route) anew.
    pub fn take_diversions_changed(&mut self) -> bool {
        std::mem::take(&mut self.diverted.has_changed)
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
