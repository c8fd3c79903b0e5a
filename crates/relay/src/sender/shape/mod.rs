//! The limits in force: those of each site, and those that tenants, domains and several sites share.
//!
//! Lock order: a site, the queue, this, the waiters of a limit, the alarm.
mod gate;
mod limit;
mod site;
mod tokens;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_units::{Bucket, Rate};

use super::config::Config;
use posthaste_queue::Slow;
use posthaste_shaping::automation::Counts;
use posthaste_shaping::{Label, Place, Scope};
use posthaste_shaping::{Named, Rules, Sections, Sourced};

pub(super) use gate::MessageGate;
pub(super) use limit::{Alarm, OpenLimit, Permit, RateLimit, Waiter, check};
pub(super) use site::{SiteKey, SiteLimits};
pub(super) use tokens::Tokens;

/// Finds limits, and keeps those in use.
#[derive(Debug)]
pub(super) struct Shaper {
    pub alarm: Alarm,
    /// True if some tenants or domains have limits of their own.
    limits_lanes: AtomicBool,
    base: Base,
    state: Mutex<State>,
    counts: Mutex<Counts>,
}

/// Sections brought by the domains routed to a site, under one version of the rules.
#[derive(Debug, Default)]
pub(super) struct Joined {
    version: u64,
    pub sections: Sections,
}

/// Defaults in the absence of rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub connections: usize,
    pub messages_per_connection: u64,
    pub recipients_per_message: usize,
}

impl Base {
    pub fn of(config: &Config) -> Self {
        Base {
            connections: config.site_connections_max,
            messages_per_connection: config.session_messages_max,
            recipients_per_message: config.recipients_max,
        }
    }
}

/// A source, a tenant and a domain.
type Lane = (Arc<str>, Arc<str>, Arc<str>);

/// Message rates that apply together; `None` for none.
type Together = Option<Arc<[Arc<RateLimit>]>>;

#[derive(Debug)]
struct State {
    rules: Arc<Rules>,
    /// Counts changes of the rules.
    version: u64,
    rates: HashMap<Arc<str>, Arc<RateLimit>>,
    open: HashMap<Arc<str>, Arc<OpenLimit>>,
    lanes: HashMap<Lane, Together>,
    tenants: HashMap<Arc<str>, Together>,
    /// Slow-downs in force.
    slowed: HashMap<Scope, Slow>,
    /// Number of limits at which unused ones are dropped.
    tidy_at: usize,
}

impl Shaper {
    pub fn new(rules: Arc<Rules>, base: Base) -> Self {
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
            alarm: Alarm::new(),
            limits_lanes: AtomicBool::new(false),
            base,
            state: Mutex::new(state),
            counts: Mutex::default(),
        };
        shaper.set_rules(rules);
        shaper
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the limits")
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.state().rules.clone()
    }

    /// The rules in force, and the sections that domains bring to a site, if it joined under these rules.
    pub fn rules_of(&self, joined: &Joined) -> (Arc<Rules>, Sections) {
        let state = self.state();
        let brought = if joined.version == state.version { joined.sections.clone() } else { Sections::new() };
        (state.rules.clone(), brought)
    }

    /// Replaces the rules. The caller asks for its sites [again](Self::site), and wakes the returned waiters.
    pub fn set_rules(&self, rules: Arc<Rules>) -> Vec<Waiter> {
        self.change(|state| state.rules = rules)
    }

    /// Replaces the slow-downs; then as for [`set_rules`](Self::set_rules).
    pub fn set_slowed(&self, slowed: HashMap<Scope, Slow>) -> Vec<Waiter> {
        self.change(|state| state.slowed = slowed)
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Vec<Waiter> {
        let mut state = self.state();
        change(&mut state);
        let has_slow_lane = state.slowed.keys().any(|scope| !matches!(scope, Scope::Site(_)));
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
    pub fn unlimited(&self, source: &str, site: &str) -> Arc<SiteLimits> {
        Arc::new(SiteLimits::of(self.base, source, site))
    }

    /// The limits of a site after a domain was routed to it; `None`: unchanged.
    pub fn join(&self, key: &SiteKey<'_>, domain: &str, joined: &mut Joined) -> Option<Arc<SiteLimits>> {
        let mut state = self.state();
        let brought = state.rules.of_domain(domain);
        if joined.version == state.version && brought.is_subset(&joined.sections) {
            return None;
        }
        if joined.version != state.version {
            *joined = Joined { version: state.version, sections: Sections::new() };
        }
        joined.sections.extend(brought);
        Some(Arc::new(SiteLimits::find(key, &joined.sections, self.base, &mut state, self.alarm.now())))
    }

    /// Limits in use with these names.
    pub fn known(&self, names: &[String]) -> Vec<Arc<RateLimit>> {
        let state = self.state();
        names.iter().filter_map(|name| state.rates.get(&**name).cloned()).collect()
    }

    /// The limit of a source's connections to an address.
    pub fn address(&self, source: &str, address: IpAddr) -> Arc<OpenLimit> {
        self.state().open(format!("address {address} from {source}"))
    }

    /// Limits of a tenant's messages to a site.
    fn tenant(&self, site: &SiteLimits, tenant: &Arc<str>) -> Together {
        let (mut state, now) = (self.state(), self.alarm.now());
        let found = if tenant.is_empty() { None } else { state.tenant(tenant, now) };
        with(found, state.slow_at(Label::Tenant(tenant.clone()), site, now))
    }

    /// Limits of a tenant's and a campaign's messages to a domain at a site.
    fn lane(&self, site: &SiteLimits, tenant: &Arc<str>, campaign: &Arc<str>, domain: &Arc<str>) -> Together {
        let (mut state, now) = (self.state(), self.alarm.now());
        let found = state.lane(&site.source, tenant, domain, now);
        with(found, state.slow_at(Label::Campaign(campaign.clone()), site, now))
    }
}

impl State {
    fn tenant(&mut self, tenant: &Arc<str>, now: u64) -> Together {
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

    fn lane(&mut self, source: &Arc<str>, tenant: &Arc<str>, domain: &Arc<str>, now: u64) -> Together {
        let state = self;
        let key = (source.clone(), tenant.clone(), domain.clone());
        if let Some(found) = state.lanes.get(&key) {
            return found.clone();
        }
        let of = state.rules.messages_to(domain, source);
        let name = format!("domain {domain} from {source}");
        let mut all: Vec<_> = state.rate(name, of.message_rate, now).into_iter().collect();
        all.extend(state.named(&of.limits, now));
        let slow = state.slow(&Scope::Domain(domain.clone()), &format!("domain {domain} from {source}"), now);
        all.extend(slow.and_then(|(rate, _)| rate));
        let found = together(all);
        state.lanes.insert(key, found.clone());
        found
    }

    /// The rate of a slowed-down tenant or campaign at a site.
    fn slow_at(&mut self, label: Label, site: &SiteLimits, now: u64) -> Option<Arc<RateLimit>> {
        if self.slowed.is_empty() {
            return None;
        }
        let scope = Scope::At(label, Place::Site(site.site.clone()));
        let name = format!("{} {} from {}", scope.kind(), scope.name(), site.source);
        self.slow(&scope, &name, now)?.0
    }

    /// Clears cached rule look-ups; limits keep their counts.
    fn forget_found(&mut self) {
        self.lanes.clear();
        self.tenants.clear();
    }

    /// The limit of a name. A new one counts from the opening, without a token: a restart gives no burst twice.
    fn rate(&mut self, name: String, said: Option<Sourced<Rate>>, now: u64) -> Option<Arc<RateLimit>> {
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
    fn slow(&mut self, scope: &Scope, name: &str, now: u64) -> Option<(Option<Arc<RateLimit>>, u32)> {
        let slow = self.slowed.get(scope)?.clone();
        let said = slow.message_rate.parse().ok().map(|value| Sourced { value, from: slow.reason.clone().into() });
        Some((self.rate(format!("slow {name}"), said, now), slow.connections))
    }

    fn named(&mut self, limits: &[Named], now: u64) -> Vec<Arc<RateLimit>> {
        let rate = |named: &Named| {
            let value = named.limit.value.message_rate?;
            let said = Sourced { value, from: named.limit.from.clone() };
            self.rate(format!("limit {}", named.name), Some(said), now)
        };
        limits.iter().filter_map(rate).collect()
    }

    fn open(&mut self, name: String) -> Arc<OpenLimit> {
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

fn with(found: Together, more: Option<Arc<RateLimit>>) -> Together {
    let Some(more) = more else { return found };
    let all = found.iter().flat_map(|all| all.iter().cloned());
    together(all.chain(std::iter::once(more)).collect())
}

fn together(mut limits: Vec<Arc<RateLimit>>) -> Together {
    limits.dedup_by(|one, other| Arc::ptr_eq(one, other));
    (!limits.is_empty()).then(|| limits.into())
}

const TIDY_MIN: usize = 10_000;
