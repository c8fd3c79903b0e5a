//! Bounds of waiting mail: one of the queue, and one for each tenant that has one. Mail beyond them is refused with
//! 452.
//!
//! The bound is checked before a message is durable, so mail in flight at that moment may exceed it. It counts as full
//! from the first refusal until a tenth of it is free again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::observer::QueueLimitState;
use super::shared::Shared;
use super::{Relay, TenantSection};

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
}

#[derive(Debug, Default)]
struct Bound {
    max: AtomicU64,
    is_full: AtomicBool,
    /// Recipients refused since it was full.
    refused: AtomicU64,
    /// Recipients refused before that, since opening.
    refused_before: AtomicU64,
}

impl Bound {
    fn new(max: u64) -> Self {
        Bound { max: max.into(), ..Bound::default() }
    }

    /// `Err`: no room; true at the first refusal.
    fn takes(&self, open: u64, more: u64) -> Result<(), bool> {
        if open.saturating_add(more) <= self.max.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(more, Ordering::Relaxed);
        Err(!self.is_full.swap(true, Ordering::Relaxed))
    }

    /// If it was full and is no more: the number refused meanwhile.
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
    pub fn new(limits: &QueueLimits) -> Self {
        let room = QueueBounds { whole: Bound::new(0), has_tenants: AtomicBool::new(false), tenants: Mutex::default() };
        room.set(limits);
        room
    }

    /// Replaces the limits; counts stay.
    fn set(&self, limits: &QueueLimits) {
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
}

impl Relay {
    /// True if `recipients` more fit; if not, reply 452 4.3.1.
    pub fn has_room(&self, recipients: u64) -> bool {
        self.0.shared.has_room(recipients)
    }

    /// True if a tenant's part of the queue has room for `recipients` more.
    pub fn has_room_for(&self, tenant: &str, recipients: u64) -> bool {
        self.0.shared.has_room_for(tenant, recipients)
    }

    /// Replaces the limits.
    pub fn set_queue_limits(&self, limits: &QueueLimits) {
        self.0.shared.room.set(limits);
    }

    /// The whole queue, then the tenants that have a limit, by name.
    pub fn room(&self) -> Vec<QueueLimitNow> {
        let shared = &self.0.shared;
        let mut all = vec![shared.room.whole.now("".into(), shared.queue().filling())];
        let of = |(tenant, bound): (&Arc<str>, &Bound)| {
            bound.now(tenant.clone(), shared.queue().recipients_of_tenant(tenant))
        };
        all.extend(shared.room.tenants().iter().map(of));
        all.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        all
    }
}

impl Shared {
    pub fn has_room(&self, recipients: u64) -> bool {
        let open = self.queue().filling();
        let taken = self.room.whole.takes(open, recipients);
        self.told("", &self.room.whole, open, taken)
    }

    fn has_room_for(&self, tenant: &str, recipients: u64) -> bool {
        if !self.room.has_tenants.load(Ordering::Relaxed) {
            return true;
        }
        let tenants = self.room.tenants();
        let Some(bound) = tenants.get(tenant) else { return true };
        let open = self.queue().recipients_of_tenant(tenant);
        self.told(tenant, bound, open, bound.takes(open, recipients))
    }

    fn told(&self, tenant: &str, bound: &Bound, recipients: u64, taken: Result<(), bool>) -> bool {
        if let (Err(true), Some(observer)) = (taken, &self.config.observer) {
            observer.room(&QueueLimitState::Full { tenant, recipients, max: bound.max.load(Ordering::Relaxed) });
        }
        taken.is_ok()
    }

    /// Reports bounds that have room again. Call it every second.
    pub fn look_at_queue_limits(&self) {
        let ended = |tenant: &str, bound: &Bound, open: u64| {
            if let (Some(refused), Some(observer)) = (bound.ended(open), &self.config.observer) {
                observer.room(&QueueLimitState::Again { tenant, refused });
            }
        };
        ended("", &self.room.whole, self.queue().filling());
        if self.room.has_tenants.load(Ordering::Relaxed) {
            let tenants = self.room.tenants();
            tenants.iter().for_each(|(name, bound)| ended(name, bound, self.queue().recipients_of_tenant(name)));
        }
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
