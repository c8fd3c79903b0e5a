//! Bounds of waiting mail: one of the queue, and one for each tenant that has one. Mail beyond them is refused with
//! 452.
//!
//! The bound is checked before a message is durable, so mail in flight at that moment may exceed it. A queue counts as
//! full from the first refusal until a tenth of its bound is free again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::observer::{Observer, QueueLimitState};
use super::tenants::TenantSection;

/// Bounds of waiting recipients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueLimits {
    /// For all mail; at most 2^30.
    pub recipients: u64,
    /// By tenant.
    pub tenants: HashMap<Arc<str>, u64>,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits { recipients: RECIPIENTS, tenants: HashMap::new() }
    }
}

impl QueueLimits {
    pub(super) fn new(recipients: u64, tenants: &[TenantSection]) -> Self {
        let of = |tenant: &TenantSection| Some((tenant.name.as_str().into(), tenant.queue_recipients?));
        QueueLimits { recipients, tenants: tenants.iter().filter_map(of).collect() }
    }
}

/// Fill state of a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueLimitNow {
    /// The tenant; empty for the whole queue.
    pub tenant: Arc<str>,
    /// Recipients that wait.
    pub recipients: u64,
    /// Recipients that may wait at most.
    pub max: u64,
    /// Recipients refused since opening.
    pub refused: u64,
    /// True if it is full.
    pub is_full: bool,
}

pub(super) struct QueueBounds {
    whole: Bound,
    has_tenants: AtomicBool,
    tenants: Mutex<HashMap<Arc<str>, Bound>>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Debug, Default)]
struct Bound {
    max: AtomicU64,
    is_full: AtomicBool,
    /// Recipients refused since the bound was reached.
    refused: AtomicU64,
    /// Recipients refused before that, since opening.
    refused_before: AtomicU64,
}

impl Bound {
    fn new(max: u64) -> Self {
        Bound { max: max.into(), ..Bound::default() }
    }

    /// Checks if `more` recipients fit. `Err`: no room; true at the first refusal.
    fn takes(&self, open: u64, more: u64) -> Result<(), bool> {
        if open.saturating_add(more) <= self.max.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(more, Ordering::Relaxed);
        Err(!self.is_full.swap(true, Ordering::Relaxed))
    }

    /// The number of refused recipients, if the bound was reached and has room again.
    fn ended(&self, open: u64) -> Option<u64> {
        let max = self.max.load(Ordering::Relaxed);
        let low = max - max.div_ceil(10);
        if !self.is_full.load(Ordering::Relaxed) || open > low {
            return None;
        }
        self.is_full.store(false, Ordering::Relaxed);
        let refused = self.refused.swap(0, Ordering::Relaxed);
        self.refused_before.fetch_add(refused, Ordering::Relaxed);
        Some(refused)
    }

    fn now(&self, tenant: Arc<str>, recipients: u64) -> QueueLimitNow {
        QueueLimitNow {
            tenant,
            recipients,
            max: self.max.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed) + self.refused_before.load(Ordering::Relaxed),
            is_full: self.is_full.load(Ordering::Relaxed),
        }
    }
}

impl QueueBounds {
    pub fn new(limits: &QueueLimits, observer: Option<Arc<dyn Observer>>) -> Self {
        let whole = Bound::new(0);
        let has_tenants = AtomicBool::new(false);
        let bounds = QueueBounds { whole, has_tenants, tenants: Mutex::default(), observer };
        bounds.set(limits);
        bounds
    }

    /// Replaces the limits; counts stay.
    pub fn set(&self, limits: &QueueLimits) {
        self.whole.max.store(limits.recipients, Ordering::Relaxed);
        let mut tenants = self.tenants();
        tenants.retain(|tenant, _| limits.tenants.contains_key(tenant));
        for (tenant, max) in &limits.tenants {
            tenants.entry(tenant.clone()).or_default().max.store(*max, Ordering::Relaxed);
        }
        self.has_tenants.store(!tenants.is_empty(), Ordering::Relaxed);
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<Arc<str>, Bound>> {
        self.tenants.lock().expect("the tenants")
    }

    /// True if `more` recipients fit into the queue. `open`: the used part.
    pub fn has_room(&self, open: u64, more: u64) -> bool {
        self.takes("", &self.whole, open, more)
    }

    /// True if `more` recipients fit into a tenant's part of the queue. `open` returns the used part; not called for a
    /// tenant without a limit.
    pub fn has_room_for(&self, tenant: &str, open: impl FnOnce() -> u64, more: u64) -> bool {
        if !self.has_tenants.load(Ordering::Relaxed) {
            return true;
        }
        let tenants = self.tenants();
        tenants.get(tenant).is_none_or(|bound| self.takes(tenant, bound, open(), more))
    }

    fn takes(&self, tenant: &str, bound: &Bound, recipients: u64, more: u64) -> bool {
        let taken = bound.takes(recipients, more);
        if let (Err(true), Some(observer)) = (taken, &self.observer) {
            observer.queue_limit(&QueueLimitState::Full { tenant, recipients, max: bound.max.load(Ordering::Relaxed) });
        }
        taken.is_ok()
    }

    /// Reports limits that have room again. Call it every second. `open`: use of the queue, and of a tenant's part.
    pub fn look(&self, open: u64, open_of: impl Fn(&str) -> u64) {
        let look = |tenant: &str, bound: &Bound, open: u64| {
            if let (Some(refused), Some(observer)) = (bound.ended(open), &self.observer) {
                observer.queue_limit(&QueueLimitState::Again { tenant, refused });
            }
        };
        look("", &self.whole, open);
        if self.has_tenants.load(Ordering::Relaxed) {
            self.tenants().iter().for_each(|(tenant, bound)| look(tenant, bound, open_of(tenant)));
        }
    }

    /// The whole queue, then the tenants with a limit, by name. `open` as for [`look`](Self::look).
    pub fn now(&self, open: u64, open_of: impl Fn(&str) -> u64) -> Vec<QueueLimitNow> {
        let mut all = vec![self.whole.now("".into(), open)];
        all.extend(self.tenants().iter().map(|(tenant, bound)| bound.now(tenant.clone(), open_of(tenant))));
        all.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        all
    }
}

/// About 400 MB of memory.
pub(super) const RECIPIENTS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_exact_and_full_until_a_tenth_is_free() {
        let bound = Bound::new(100);
        assert_eq!((bound.takes(99, 1), bound.takes(0, 100), bound.ended(0)), (Ok(()), Ok(()), None));
        assert_eq!(
            (bound.takes(100, 1), bound.takes(90, 11), bound.takes(u64::MAX, 1)),
            (Err(true), Err(false), Err(false))
        );
        assert_eq!(bound.takes(99, 1), Ok(()), "whoever fits gets in");
        assert_eq!((bound.ended(91), bound.ended(90), bound.ended(90)), (None, Some(13), None));
        assert_eq!((bound.takes(100, 1), bound.ended(0)), (Err(true), Some(1)));
        let now = bound.now("a".into(), 7);
        assert_eq!((now.recipients, now.max, now.refused, now.is_full), (7, 100, 14, false));
        let small = Bound::new(1);
        assert_eq!((small.takes(1, 1), small.ended(1), small.ended(0)), (Err(true), None, Some(1)));
    }
}
