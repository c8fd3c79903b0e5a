//! The limits in force: those of each site, and those that tenants, domains and several sites share.
//!
//! They are generic over `W`, who waits for a token, and `S`, a site that waits for a connection. Times are nanoseconds
//! of one clock, which the caller reads.
//!
//! Lock order: a site, the queue, this, the waiters of a limit.
mod lent;
mod open;
mod rate;
mod site;
mod state;
mod tokens;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::automation::Counts;
use crate::explain::Defaults;
use crate::{Label, MailScope, Sections, ShapingRules};
use state::{State, TIDY_MIN, with};

pub use lent::{Lender, Lent};
pub use open::{OpenLimit, OpenPermit, end_all};
pub use rate::{RateLimit, check};
pub use site::{LimitedSite, NoPermit, SiteLimits};
pub use state::{RatesTogether, SlowDown};
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

impl<W, S> Shaper<W, S> {
    /// The limits of these rules, without counts. `lender`: lends the tokens of rates that other senders share.
    pub fn new(rules: Arc<ShapingRules>, defaults: Defaults, lender: Option<Arc<dyn Lender>>) -> Self {
        let state = State {
            rules: Arc::default(),
            lender,
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
        with(found, state.slow_at(Label::Tenant(tenant.clone()), &site.site, &site.source, now))
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
        with(found, state.slow_at(Label::Campaign(campaign.clone()), &site.site, &site.source, now))
    }
}
