//! Destinations and sources of mail, which may change while the relay runs.

use std::sync::Arc;

use super::route::{FixedRoute, Manner, TlsRule, is_domain};
use super::source::{Egress, OutgoingSource, Pool};
use posthaste_dns::is_next_hop;
use posthaste_queue::{Diversion, QueueName};

/// Routes, rules for TLS, sources and pools.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    /// Next hops instead of mail hosts; the first match applies.
    pub routes: Vec<Arc<FixedRoute>>,
    /// Transport rules for mail hosts; the first match applies. Without one, [`Config::tls`](super::Config::tls) does.
    pub tls: Vec<TlsRule>,
    /// Sources of mail. Empty: an address that the system chooses.
    pub sources: Vec<OutgoingSource>,
    /// Pools of sources; the first match applies. Without one, the system chooses.
    pub pools: Vec<Pool>,
}

/// Routing in force.
#[derive(Debug)]
pub(super) struct Routes {
    routes: Vec<NextHop>,
    rules: Vec<(String, Arc<Manner>)>,
    /// For hosts without a rule.
    manner: Arc<Manner>,
    /// For hosts whose domain enforces MTA-STS.
    enforced: Option<Arc<Manner>>,
    /// Both for lists of hosts that DNSSEC authenticates.
    with_dane: [Option<Arc<Manner>>; 2],
    pools: Vec<(Pool, Vec<Member>)>,
    pub sources: Vec<Arc<Egress>>,
    default: Vec<Member>,
    /// The configuration that this was made from.
    pub routing: Routing,
    /// Diversions of operators, with their next hops.
    diversions: Vec<(Diversion, NextHop)>,
    /// Mail that operators have ordered to give up, until a time.
    bounced: Vec<Diversion>,
}

/// A route with its transport settings.
pub(super) type NextHop = (Arc<FixedRoute>, Arc<Manner>);

/// A source of a pool, with its weight.
pub(super) type Member = (Arc<Egress>, u32);

/// Distinct transport settings.
struct Manners<'a> {
    before: Vec<&'a Arc<Manner>>,
    made: Vec<Arc<Manner>>,
}

impl Manners<'_> {
    /// Returns the equal settings, or adds these with a suffix of their own.
    fn take(&mut self, mut manner: Manner) -> Arc<Manner> {
        if let Some(made) = self.made.iter().find(|made| made.is_as(&manner)) {
            return made.clone();
        }
        let same = self.before.iter().find(|before| before.is_as(&manner));
        let made = match same {
            Some(same) if !self.has(&same.text) => (*same).clone(),
            _ => {
                let text = manner.text.clone();
                let texts = std::iter::once(text.clone()).chain((2..).map(|number| format!("{text} ({number})")));
                manner.text = texts.into_iter().find(|text| !self.has(text)).unwrap_or(text);
                Arc::new(manner)
            }
        };
        self.made.push(made.clone());
        made
    }

    fn has(&self, text: &str) -> bool {
        self.made.iter().any(|made| made.text == text)
    }
}

impl Routes {
    /// `hosts` are the settings for mail hosts without a rule, `enforced` those under MTA-STS. Unchanged sources and
    /// settings stay the same objects.
    pub fn new(
        hosts: Manner,
        enforced: Option<Manner>,
        routing: &Routing,
        diversions: Vec<Diversion>,
        before: Option<&Routes>,
    ) -> Self {
        let known = |source: &OutgoingSource| {
            let is_it = |egress: &&Arc<Egress>| egress.settings == *source;
            let kept = before.and_then(|before| before.sources.iter().find(is_it)).cloned();
            kept.unwrap_or_else(|| Arc::new(Egress::new(source.clone())))
        };
        let sources: Vec<Arc<Egress>> = routing.sources.iter().map(known).collect();
        let find = |name: &Arc<str>| sources.iter().find(|egress| egress.name() == name).cloned();
        let members = |pool: &Pool| {
            let members = pool.sources.iter().filter_map(|(name, weight)| Some((find(name)?, *weight)));
            (pool.clone(), members.collect())
        };
        let pools = routing.pools.iter().map(members).collect();
        let default = before.map_or_else(
            || vec![(Arc::new(Egress::new(OutgoingSource::new(DEFAULT))), 1)],
            |before| before.default.clone(),
        );
        let mut manners = Manners { before: before.map_or_else(Vec::new, Routes::manners), made: Vec::new() };
        let port = hosts.port;
        let tls = hosts.tls.clone();
        let manner = manners.take(hosts);
        let enforced = enforced.map(|enforced| manners.take(enforced));
        let with_dane = [Some(&manner), enforced.as_ref()].map(|of| of?.with_dane().map(|manner| manners.take(manner)));
        let rule = |rule: &TlsRule| (rule.domain.clone(), manners.take(Manner::of_rule(port, rule)));
        let rules = routing.tls.iter().map(rule).collect();
        let route = |route: &Arc<FixedRoute>| (route.clone(), manners.take(Manner::of_route(route)));
        let routes = routing.routes.iter().map(route).collect();
        let divert = |diversion: Diversion| {
            let (host, port) = host_and_port(&diversion.to)?;
            let route = Arc::new(FixedRoute { tls: tls.clone(), ..FixedRoute::new(host, port) });
            let manner = manners.take(Manner::of_hosts(port, tls.clone()));
            Some((diversion, (route, manner)))
        };
        let (bounced, diversions): (Vec<_>, Vec<_>) =
            diversions.into_iter().partition(|diversion| &*diversion.to == BOUNCE);
        let diversions = diversions.into_iter().filter_map(divert).collect();
        Routes {
            routes,
            rules,
            manner,
            enforced,
            with_dane,
            pools,
            sources,
            default,
            routing: routing.clone(),
            diversions,
            bounced,
        }
    }

    fn manners(&self) -> Vec<&Arc<Manner>> {
        let rules = self.rules.iter().map(|(_, manner)| manner);
        let routes = self.routes.iter().map(|(_, manner)| manner);
        let diversions = self.diversions.iter().map(|(_, (_, manner))| manner);
        let of_hosts = std::iter::once(&self.manner).chain(&self.enforced).chain(self.with_dane.iter().flatten());
        of_hosts.chain(rules).chain(routes).chain(diversions).collect()
    }

    /// The sources in force.
    pub fn egresses(&self) -> impl Iterator<Item = &Arc<Egress>> {
        self.sources.iter().chain(self.default.iter().map(|(egress, _)| egress))
    }

    /// True if a source is in force.
    pub fn has(&self, source: &Arc<Egress>) -> bool {
        self.egresses().any(|egress| Arc::ptr_eq(egress, source))
    }

    /// The reason why mail of a queue is given up, if it is.
    pub fn bounced(&self, name: &QueueName) -> Option<&Diversion> {
        self.bounced.iter().find(|diversion| diversion.is_for(name))
    }

    /// The route of a queue; `None`: the mail hosts of its domain.
    pub fn route(&self, name: &QueueName) -> Option<&NextHop> {
        let diverted = self.diversions.iter().find(|(diversion, _)| diversion.is_for(name));
        if let Some((_, hop)) = diverted {
            return Some(hop);
        }
        self.routes.iter().find(|(route, _)| !route.is_fallback && route.fits(name))
    }

    /// The fallback of a queue, if it has one.
    pub fn fallback(&self, name: &QueueName) -> Option<&NextHop> {
        self.routes.iter().find(|(route, _)| route.is_fallback && route.fits(name))
    }

    pub fn has_fallback(&self) -> bool {
        self.routes.iter().any(|(route, _)| route.is_fallback)
    }

    /// Transport settings for the mail hosts of a domain.
    pub fn manner(&self, domain: &str) -> &Arc<Manner> {
        self.rules.iter().find(|(pattern, _)| is_domain(pattern, domain)).map_or(&self.manner, |(_, manner)| manner)
    }

    /// Transport settings for the mail hosts of a domain without a rule. `is_enforced`: its MTA-STS policy is in force;
    /// `is_secure`: DNSSEC authenticates the list of hosts.
    pub fn manner_of_hosts(&self, is_enforced: bool, is_secure: bool) -> &Arc<Manner> {
        let [usual, enforced] = &self.with_dane;
        match (is_enforced, is_secure) {
            (true, true) => enforced.as_ref().or(self.enforced.as_ref()),
            (true, false) => self.enforced.as_ref(),
            (false, true) => usual.as_ref(),
            (false, false) => None,
        }
        .unwrap_or(&self.manner)
    }

    /// The pool for mail of a queue: its route's, else its own, else its tenant's.
    pub fn pool(&self, name: &QueueName, of_route: Option<&str>) -> Option<&(Pool, Vec<Member>)> {
        let find =
            |fits: &dyn Fn(&Pool) -> bool| self.pools.iter().find(|(pool, members)| fits(pool) && !members.is_empty());
        let of_tenant =
            |pool: &Pool| pool.tenants.as_ref().is_none_or(|all| all.iter().any(|tenant| **tenant == *name.tenant));
        match of_route {
            Some(of_route) => find(&|pool| pool.name == of_route),
            // If the named pool is gone, the tenant's takes its mail.
            None if !name.pool.is_empty() => find(&|pool| *pool.name == *name.pool).or_else(|| find(&of_tenant)),
            None => find(&of_tenant),
        }
    }

    /// The sources of the [pool](Self::pool): the usable ones, or all if none is usable.
    pub fn members(&self, name: &QueueName, of_route: Option<&str>) -> Vec<Member> {
        let members = self.pool(name, of_route).map_or(&self.default, |(_, members)| members);
        let usable: Vec<Member> = members.iter().filter(|(egress, _)| egress.is_usable()).cloned().collect();
        if usable.is_empty() { members.clone() } else { usable }
    }

    /// Number of a route in [`Routing::routes`], from 1.
    pub fn number_of(&self, route: &Arc<FixedRoute>) -> Option<usize> {
        self.routing.routes.iter().position(|other| Arc::ptr_eq(other, route)).map(|index| index + 1)
    }

    /// Number of the rule for TLS to the mail hosts of a domain in [`Routing::tls`], from 1.
    pub fn rule_number(&self, domain: &str) -> Option<usize> {
        self.rules.iter().position(|(pattern, _)| is_domain(pattern, domain)).map(|index| index + 1)
    }
}

/// A host or an address literal, and a port after a colon if it is not 25; `None` if it is neither.
pub(super) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let behind = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[behind..].find(':') {
        Some(colon) => (&text[..behind + colon], text[behind + colon + 1..].parse().ok().filter(|port| *port > 0)?),
        None => (text, 25),
    };
    is_next_hop(host).then_some((host, port))
}

/// Next hop of mail that is given up: no host has such a name.
pub(super) const BOUNCE: &str = "(bounce)";
/// The source without settings.
pub(super) const DEFAULT: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    /// Pools with their tenants, `*` for all, and sources.
    fn routing(pools: &[(&str, &[&str], &[&str])]) -> Routing {
        let pool = |(name, tenants, sources): &(&str, &[&str], &[&str])| Pool {
            name: (*name).to_owned(),
            tenants: (*tenants != ["*"]).then(|| tenants.iter().map(|tenant| (*tenant).to_owned()).collect()),
            sources: sources.iter().map(|source| (Arc::from(*source), 1)).collect(),
        };
        let sources = ["a", "b", "c"].map(OutgoingSource::new).into();
        Routing { sources, pools: pools.iter().map(pool).collect(), ..Routing::default() }
    }

    fn new(routing: &Routing, before: Option<&Routes>) -> Routes {
        Routes::new(Manner::of_hosts(25, None), None, routing, Vec::new(), before)
    }

    fn suspend(egress: &Arc<Egress>) {
        egress.suspend(&std::io::Error::other("its address is gone"));
    }

    fn names(routes: &Routes, tenant: &str) -> Vec<String> {
        names_from(routes, tenant, "", None)
    }

    fn names_from(routes: &Routes, tenant: &str, pool: &str, of_route: Option<&str>) -> Vec<String> {
        let domain = "x.example".into();
        let name = QueueName { tenant: tenant.into(), campaign: "".into(), domain, pool: pool.into() };
        routes.members(&name, of_route).iter().map(|(egress, _)| egress.name().to_string()).collect()
    }

    #[test]
    fn a_tenants_first_pool_counts_without_suspended_sources() {
        let routes = new(&routing(&[("one", &["t", "u"], &["a", "b"]), ("rest", &["*"], &["c"])]), None);
        assert_eq!((names(&routes, "t"), names(&routes, "")), (vec!["a".into(), "b".into()], vec!["c".into()]));
        routes.sources.iter().take(1).for_each(suspend);
        assert_eq!(names(&routes, "u"), ["b"]);
        routes.sources.iter().for_each(suspend);
        assert_eq!(names(&routes, "u"), ["a", "b"], "all wait");
        let routes = new(&routing(&[("one", &["t"], &["a"])]), None);
        assert_eq!(names(&routes, "u"), [DEFAULT]);
    }

    #[test]
    fn the_pool_of_a_route_precedes_message_and_tenant() {
        let routes = new(&routing(&[("one", &["t"], &["a"]), ("two", &["u"], &["b"]), ("three", &[], &["c"])]), None);
        assert_eq!(names_from(&routes, "other", "", None), [DEFAULT], "only mail that names it is sent from the third");
        let names = |pool, of_route| names_from(&routes, "t", pool, of_route);
        assert_eq!(names("", None), ["a"]);
        assert_eq!(names("two", None), ["b"], "whoever's mail it is");
        assert_eq!(names("two", Some("three")), ["c"]);
        assert_eq!(names("gone", None), ["a"]);
    }

    #[test]
    fn sources_that_stay_keep_their_state() {
        let before = new(&routing(&[("all", &["*"], &["a", "b"])]), None);
        before.sources.iter().for_each(suspend);
        let mut changed = routing(&[("all", &["*"], &["a", "b"])]);
        changed.sources[1].ehlo = Some("b.example".to_owned());
        let after = new(&changed, Some(&before));
        assert_eq!([0, 1].map(|at| after.sources[at].is_suspended()), [true, false]);
    }

    #[test]
    fn next_hops_are_read() {
        for (text, expected) in [
            ("a.example", Some(("a.example", 25))),
            ("a.example:2525", Some(("a.example", 2525))),
            ("[192.0.2.1]", Some(("[192.0.2.1]", 25))),
            ("[IPv6:2001:db8::1]:26", Some(("[IPv6:2001:db8::1]", 26))),
            ("a.example:0", None),
            ("a.example:65536", None),
            ("2001:db8::1", None),
            ("192.0.2.1:25", None),
            ("[2001:db8::1]", None),
            ("a b", None),
            ("", None),
            ("]", None),
            ("[x]y:1", None),
        ] {
            assert_eq!(host_and_port(text), expected, "{text}");
        }
    }

    #[test]
    fn equal_manners_are_one_and_others_have_a_text_of_their_own() {
        let route = |domain: &str, password: &str| {
            let auth = Some(posthaste_smtp::sasl::Credentials::new("ann", password));
            Arc::new(FixedRoute { domain: domain.into(), auth, ..FixedRoute::new("hub.example", 587) })
        };
        let routing = Routing {
            routes: vec![route("a.example", "1"), route("b.example", "2"), route("c.example", "1")],
            tls: vec![TlsRule { domain: "d.example".into(), tls: None }],
            ..Routing::default()
        };
        let routes = new(&routing, None);
        let manners = |routes: &Routes| routes.manners().into_iter().cloned().collect::<Vec<_>>();
        let texts: Vec<String> = manners(&routes).iter().map(|manner| manner.text.clone()).collect();
        // The default comes first; the rule equals it, so both are one.
        let ann = " :587 in the clear as ann";
        assert_eq!(texts, ["", "", ann, &format!("{ann} (2)"), ann]);
        let again = manners(&new(&routing, Some(&routes)));
        assert!(again.iter().zip(manners(&routes)).all(|(one, other)| Arc::ptr_eq(one, &other)));
        let changed = Routing { routes: vec![route("a.example", "3"), route("b.example", "2")], ..routing };
        let changed = manners(&new(&changed, Some(&routes)));
        assert!(!Arc::ptr_eq(&changed[2], &again[2]));
        assert_ne!(changed[2].text, changed[3].text);
    }
}
