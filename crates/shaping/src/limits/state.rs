//! Limits in use, found by the names of the mail that they limit.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_units::{Bucket, Rate};

use super::lent::Lender;
use super::open::OpenLimit;
use super::rate::RateLimit;
use crate::{DomainOrSite, Label, MailScope, NamedLimit, ShapingRules, Sourced};

/// A temporary limit of some mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowDown {
    /// The rate of messages; `None`: not limited.
    pub message_rate: Option<Rate>,
    /// Connections of a site at a time; 0 for no limit.
    pub connections: u32,
    /// Origin and reason of the limit, for display.
    pub reason: Arc<str>,
}

/// A source, a tenant and a domain.
type Lane = (Arc<str>, Arc<str>, Arc<str>);

/// Message rates that apply together; `None` for none.
pub type RatesTogether<W> = Option<Arc<[Arc<RateLimit<W>>]>>;

pub(super) struct State<W, S> {
    pub rules: Arc<ShapingRules>,
    /// Lends the tokens of the rules' limits.
    pub lender: Option<Arc<dyn Lender>>,
    /// Counts changes of the rules.
    pub version: u64,
    pub rates: HashMap<Arc<str>, Arc<RateLimit<W>>>,
    pub open: HashMap<Arc<str>, Arc<OpenLimit<S>>>,
    pub lanes: HashMap<Lane, RatesTogether<W>>,
    pub tenants: HashMap<Arc<str>, RatesTogether<W>>,
    /// Slow-downs in force.
    pub slowed: HashMap<MailScope, SlowDown>,
    /// Number of limits at which unused ones are dropped.
    pub tidy_at: usize,
}

impl<W, S> State<W, S> {
    pub fn tenant(&mut self, tenant: &Arc<str>, now: u64) -> RatesTogether<W> {
        let state = self;
        if let Some(found) = state.tenants.get(tenant) {
            return found.clone();
        }
        let found = state.rules.messages_of(tenant).and_then(|of| {
            let mut all: Vec<_> = state.rate(format!("tenant {tenant}"), of.message_rate, now).into_iter().collect();
            all.extend(state.named(&of.limits, now));
            together(all)
        });
        state.tenants.insert(tenant.clone(), found.clone());
        found
    }

    pub fn lane(&mut self, source: &Arc<str>, tenant: &Arc<str>, domain: &Arc<str>, now: u64) -> RatesTogether<W> {
        let state = self;
        let key = (source.clone(), tenant.clone(), domain.clone());
        if let Some(found) = state.lanes.get(&key) {
            return found.clone();
        }
        let of = state.rules.messages_to(domain, source);
        let name = format!("domain {domain} from {source}");
        let mut all: Vec<_> = state.rate(name, of.message_rate, now).into_iter().collect();
        all.extend(state.named(&of.limits, now));
        let slow = state.slow(&MailScope::Domain(domain.clone()), &format!("domain {domain} from {source}"), now);
        all.extend(slow.and_then(|(rate, _)| rate));
        let found = together(all);
        state.lanes.insert(key, found.clone());
        found
    }

    /// The rate of a slowed-down tenant or campaign at a site.
    pub fn slow_at(&mut self, label: Label, site: &Arc<str>, source: &str, now: u64) -> Option<Arc<RateLimit<W>>> {
        if self.slowed.is_empty() {
            return None;
        }
        let scope = MailScope::At(label, DomainOrSite::Site(site.clone()));
        let name = format!("{} {} from {}", scope.kind(), scope.name(), source);
        self.slow(&scope, &name, now)?.0
    }

    /// Clears cached rule look-ups; limits keep their counts.
    pub fn forget_found(&mut self) {
        self.lanes.clear();
        self.tenants.clear();
    }

    /// The limit of a name. A new one counts from the opening, without a token: a restart gives no burst twice.
    pub fn rate(&mut self, name: String, said: Option<Sourced<Rate>>, now: u64) -> Option<Arc<RateLimit<W>>> {
        let lender = self.lender.clone();
        self.rate_of(name, said?, lender.as_deref(), now)
    }

    fn rate_of(
        &mut self,
        name: String,
        said: Sourced<Rate>,
        lender: Option<&dyn Lender>,
        now: u64,
    ) -> Option<Arc<RateLimit<W>>> {
        let Sourced { value, from } = said;
        let known = self.rates.get(&*name);
        if let Some(known) = known.filter(|known| known.rate() == value && known.from == from) {
            return Some(known.clone());
        }
        let bucket = || known.map_or_else(|| Bucket::new(value, 0, 0), |known| known.bucket_with(value, now));
        let name: Arc<str> = name.into();
        let limit = Arc::new(match lender {
            Some(lender) => RateLimit::lent(name.clone(), from, value, lender.limit(&name, value)),
            None => RateLimit::new(name.clone(), from, bucket()),
        });
        self.tidy(now);
        self.rates.insert(name, limit.clone());
        Some(limit)
    }

    /// The message rate and connections of a slow-down.
    pub fn slow(&mut self, scope: &MailScope, name: &str, now: u64) -> Option<(Option<Arc<RateLimit<W>>>, u32)> {
        let slow = self.slowed.get(scope)?.clone();
        // Other senders may not slow the same mail down.
        let said = slow.message_rate.map(|value| Sourced { value, from: slow.reason });
        let rate = said.and_then(|said| self.rate_of(format!("slow {name}"), said, None, now));
        Some((rate, slow.connections))
    }

    pub fn named(&mut self, limits: &[NamedLimit], now: u64) -> Vec<Arc<RateLimit<W>>> {
        let rate = |named: &NamedLimit| {
            let value = named.limit.value.message_rate?;
            let said = Sourced { value, from: named.limit.from.clone() };
            self.rate(format!("limit {}", named.name), Some(said), now)
        };
        limits.iter().filter_map(rate).collect()
    }

    pub fn open(&mut self, name: String) -> Arc<OpenLimit<S>> {
        let name: Arc<str> = name.into();
        self.open.entry(name.clone()).or_insert_with(|| Arc::new(OpenLimit::new(name))).clone()
    }

    /// Drops unused limits that carry no state: a full bucket is as good as a new one.
    fn tidy(&mut self, now: u64) {
        if self.rates.len() + self.open.len() + self.lanes.len() < self.tidy_at {
            return;
        }
        self.forget_found();
        self.rates.retain(|_, limit| Arc::strong_count(limit) > 1 || !limit.is_full(now) || limit.is_waited_for());
        self.open.retain(|_, limit| Arc::strong_count(limit) > 1 || limit.count() > 0 || limit.is_waited_for());
        self.tidy_at = TIDY_MIN.max(2 * (self.rates.len() + self.open.len()));
    }
}

pub(super) fn with<W>(found: RatesTogether<W>, more: Option<Arc<RateLimit<W>>>) -> RatesTogether<W> {
    let Some(more) = more else { return found };
    let all = found.iter().flat_map(|all| all.iter().cloned());
    together(all.chain(std::iter::once(more)).collect())
}

fn together<W>(mut limits: Vec<Arc<RateLimit<W>>>) -> RatesTogether<W> {
    limits.dedup_by(|one, other| Arc::ptr_eq(one, other));
    (!limits.is_empty()).then(|| limits.into())
}

/// Number of limits below which unused ones stay.
pub(super) const TIDY_MIN: usize = 10_000;
