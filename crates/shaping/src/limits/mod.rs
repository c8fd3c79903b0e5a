//! The limits in force: those of each site, and those that tenants, domains and several sites share.
//!
//! They are generic over `W`, who waits for a token, and `S`, a site that waits for a connection. Times are nanoseconds
//! of one clock, which the caller reads.
//!
//! Lock order: a site, the queue, this, the waiters of a limit.
mod open;
mod rate;
mod site;
mod tokens;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_units::{Bucket, Rate};

use crate::automation::Counts;
use crate::explain::Defaults;
use crate::{DomainOrSite, Label, MailScope, NamedLimit, Sections, ShapingRules, Sourced};

pub use open::{OpenLimit, OpenPermit, end_all};
pub use rate::{RateLimit, check};
pub use site::{LimitedSite, NoPermit, SiteLimits};
pub use tokens::LimitTokens;

/// Finds limits, and keeps those in use.
pub struct Shaper<W, S> {
    /// True if some tenants or domains have limits of their own.
    limits_lanes: AtomicBool,
    defaults: Defaults,
    state: Mutex<State<W, S>>,
    counts: Mutex<Counts>,
}

/// Sections brought by the domains routed to a site, under one version of the rules.
#[derive(Debug, Default)]
pub struct JoinedSections {
    version: u64,
    /// The sections.
    pub sections: Sections,
}

/// A temporary limit of some mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowDown {
    /// The rate of messages; `None`: not limited.
    pub message_rate: Option<Rate>,
    /// Connections of a site at a time; 0 for no limit.
    pub connections: u32,
    /// Where it comes from.
    pub reason: Arc<str>,
}

/// A source, a tenant and a domain.
type Lane = (Arc<str>, Arc<str>, Arc<str>);

/// Message rates that apply together; `None` for none.
pub type RatesTogether<W> = Option<Arc<[Arc<RateLimit<W>>]>>;

struct State<W, S> {
    rules: Arc<ShapingRules>,
    /// Counts changes of the rules.
    version: u64,
    rates: HashMap<Arc<str>, Arc<RateLimit<W>>>,
    open: HashMap<Arc<str>, Arc<OpenLimit<S>>>,
    lanes: HashMap<Lane, RatesTogether<W>>,
    tenants: HashMap<Arc<str>, RatesTogether<W>>,
    /// Slow-downs in force.
    slowed: HashMap<MailScope, SlowDown>,
    /// Number of limits at which unused ones are dropped.
    tidy_at: usize,
}

impl<W, S> Shaper<W, S> {
    /// The limits of these rules, without counts.
    pub fn new(rules: Arc<ShapingRules>, defaults: Defaults) -> Self {
        let state = State {
            rules: Arc::default(),
            version: 0,
            rates: HashMap::new(),
            open: HashMap::new(),
            lanes: HashMap::new(),
            tenants: HashMap::new(),
            slowed: HashMap::new(),
            tidy_at: TIDY_MIN,
        };
        let shaper = Shaper {
            limits_lanes: AtomicBool::new(false),
            defaults,
            state: Mutex::new(state),
            counts: Mutex::default(),
        };
        shaper.set_rules(rules);
        shaper
    }

    fn state(&self) -> MutexGuard<'_, State<W, S>> {
        self.state.lock().expect("the limits")
    }

    /// The values in the absence of rules.
    pub fn defaults(&self) -> Defaults {
        self.defaults
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<ShapingRules> {
        self.state().rules.clone()
    }

    /// The rules in force, and the sections that domains bring to a site, if it joined under these rules.
    pub fn rules_of(&self, joined: &JoinedSections) -> (Arc<ShapingRules>, Sections) {
        let state = self.state();
        let brought = if joined.version == state.version { joined.sections.clone() } else { Sections::new() };
        (state.rules.clone(), brought)
    }

    /// Replaces the rules. The caller asks for its sites [again](Self::join), and wakes the returned waiters.
    pub fn set_rules(&self, rules: Arc<ShapingRules>) -> Vec<W> {
        self.change(|state| state.rules = rules)
    }

    /// Replaces the slow-downs; then as for [`set_rules`](Self::set_rules).
    pub fn set_slowed(&self, slowed: HashMap<MailScope, SlowDown>) -> Vec<W> {
        self.change(|state| state.slowed = slowed)
    }

    fn change(&self, change: impl FnOnce(&mut State<W, S>)) -> Vec<W> {
        let mut state = self.state();
        change(&mut state);
        let has_slow_lane = state.slowed.keys().any(|scope| !matches!(scope, MailScope::Site(_)));
        let limits_lanes = state.rules.limits_tenants() || state.rules.limits_domains() || has_slow_lane;
        self.limits_lanes.store(limits_lanes, Ordering::Relaxed);
        state.version += 1;
        state.forget_found();
        state.rates.values().flat_map(|limit| limit.drain()).collect()
    }

    /// Counts of replies that rules match.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("counts of replies")
    }

    /// True if tenants or domains have limits of their own: then a transaction has recipients of one domain only.
    pub fn limits_lanes(&self) -> bool {
        self.limits_lanes.load(Ordering::Relaxed)
    }

    /// Limits of a site without rules.
    pub fn unlimited(&self, source: &str, site: &str) -> Arc<SiteLimits<W, S>> {
        Arc::new(SiteLimits::of(self.defaults, source, site))
    }

    /// The limits of a site after a domain was routed to it; `None`: unchanged.
    pub fn join(
        &self,
        key: &LimitedSite<'_>,
        domain: &str,
        joined: &mut JoinedSections,
        now: u64,
    ) -> Option<Arc<SiteLimits<W, S>>> {
        let mut state = self.state();
        let brought = state.rules.of_domain(domain);
        if joined.version == state.version && brought.is_subset(&joined.sections) {
            return None;
        }
        if joined.version != state.version {
            *joined = JoinedSections { version: state.version, sections: Sections::new() };
        }
        joined.sections.extend(brought);
        Some(Arc::new(SiteLimits::find(key, &joined.sections, self.defaults, &mut state, now)))
    }

    /// Limits in use with these names.
    pub fn known(&self, names: &[String]) -> Vec<Arc<RateLimit<W>>> {
        let state = self.state();
        names.iter().filter_map(|name| state.rates.get(&**name).cloned()).collect()
    }

    /// The limit of a source's connections to an address.
    pub fn address(&self, source: &str, address: IpAddr) -> Arc<OpenLimit<S>> {
        self.state().open(format!("address {address} from {source}"))
    }

    /// Limits of a tenant's messages to a site.
    pub fn tenant(&self, site: &SiteLimits<W, S>, tenant: &Arc<str>, now: u64) -> RatesTogether<W> {
        let mut state = self.state();
        let found = if tenant.is_empty() { None } else { state.tenant(tenant, now) };
        with(found, state.slow_at(Label::Tenant(tenant.clone()), site, now))
    }

    /// Limits of a tenant's and a campaign's messages to a domain at a site.
    pub fn lane(
        &self,
        site: &SiteLimits<W, S>,
        [tenant, campaign, domain]: [&Arc<str>; 3],
        now: u64,
    ) -> RatesTogether<W> {
        let mut state = self.state();
        let found = state.lane(&site.source, tenant, domain, now);
        with(found, state.slow_at(Label::Campaign(campaign.clone()), site, now))
    }
}

impl<W, S> State<W, S> {
    fn tenant(&mut self, tenant: &Arc<str>, now: u64) -> RatesTogether<W> {
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

    fn lane(&mut self, source: &Arc<str>, tenant: &Arc<str>, domain: &Arc<str>, now: u64) -> RatesTogether<W> {
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
    fn slow_at(&mut self, label: Label, site: &SiteLimits<W, S>, now: u64) -> Option<Arc<RateLimit<W>>> {
        if self.slowed.is_empty() {
            return None;
        }
        let scope = MailScope::At(label, DomainOrSite::Site(site.site.clone()));
        let name = format!("{} {} from {}", scope.kind(), scope.name(), site.source);
        self.slow(&scope, &name, now)?.0
    }

    /// Clears cached rule look-ups; limits keep their counts.
    fn forget_found(&mut self) {
        self.lanes.clear();
        self.tenants.clear();
    }

    /// The limit of a name. A new one counts from the opening, without a token: a restart gives no burst twice.
    fn rate(&mut self, name: String, said: Option<Sourced<Rate>>, now: u64) -> Option<Arc<RateLimit<W>>> {
        let Sourced { value, from } = said?;
        let known = self.rates.get(&*name);
        if let Some(known) = known.filter(|known| known.rate() == value && known.from == from) {
            return Some(known.clone());
        }
        let bucket = known.map_or_else(|| Bucket::new(value, 0, 0), |known| known.bucket_with(value, now));
        let name: Arc<str> = name.into();
        let limit = Arc::new(RateLimit::new(name.clone(), from, bucket));
        self.tidy(now);
        self.rates.insert(name, limit.clone());
        Some(limit)
    }

    /// The message rate and connections of a slow-down.
    fn slow(&mut self, scope: &MailScope, name: &str, now: u64) -> Option<(Option<Arc<RateLimit<W>>>, u32)> {
        let slow = self.slowed.get(scope)?.clone();
        let said = slow.message_rate.map(|value| Sourced { value, from: slow.reason });
        Some((self.rate(format!("slow {name}"), said, now), slow.connections))
    }

    fn named(&mut self, limits: &[NamedLimit], now: u64) -> Vec<Arc<RateLimit<W>>> {
        let rate = |named: &NamedLimit| {
            let value = named.limit.value.message_rate?;
            let said = Sourced { value, from: named.limit.from.clone() };
            self.rate(format!("limit {}", named.name), Some(said), now)
        };
        limits.iter().filter_map(rate).collect()
    }

    fn open(&mut self, name: String) -> Arc<OpenLimit<S>> {
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

fn with<W>(found: RatesTogether<W>, more: Option<Arc<RateLimit<W>>>) -> RatesTogether<W> {
    let Some(more) = more else { return found };
    let all = found.iter().flat_map(|all| all.iter().cloned());
    together(all.chain(std::iter::once(more)).collect())
}

fn together<W>(mut limits: Vec<Arc<RateLimit<W>>>) -> RatesTogether<W> {
    limits.dedup_by(|one, other| Arc::ptr_eq(one, other));
    (!limits.is_empty()).then(|| limits.into())
}

const TIDY_MIN: usize = 10_000;
