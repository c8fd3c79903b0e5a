use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::counters::GroupCounters;
use super::medium::Medium;
use super::queue::RecordQueue;
use crate::StoreKind;
use crate::core::Core;
use crate::events::SpoolEvent;
use crate::lsn_set::LsnSet;

/// State shared with the writer.
pub(crate) struct GroupShared {
    pub(super) kind: StoreKind,
    pub(super) medium: Arc<dyn Medium>,
    pub(super) queue: RecordQueue,
    /// LSNs of published records that were not removed.
    pub(super) held: Mutex<LsnSet>,
    pub(super) poison: OnceLock<Arc<str>>,
    pub(super) record_bytes_max: usize,
    pub(super) counters: GroupCounters,
    pub(super) core: Arc<Core>,
    pub(super) events: crate::Events,
}

impl GroupShared {
    pub(super) fn held(&self) -> MutexGuard<'_, LsnSet> {
        self.held.lock().expect("nothing panics while it is held")
    }

    pub(super) fn poisoned(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    /// Refuses all later appends. Returns the first reason.
    pub(super) fn poison_with(&self, why: String) -> Arc<str> {
        let why: Arc<str> = why.into();
        if self.poison.set(why.clone()).is_ok() {
            self.events.tell(SpoolEvent::Poisoned { why: why.to_string() });
        }
        self.poison.get().expect("set by somebody").clone()
    }
}

/// Maximum records of a group: a medium of files keeps a descriptor open for each until it has its name.
pub(super) const GROUP_MAX: usize = 256;
