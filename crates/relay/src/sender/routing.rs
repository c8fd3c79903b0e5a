//! Where mail goes and where it leaves from: what can change while the relay runs.

use std::sync::Arc;

use super::route::Route;
use super::source::{Egress, Pool, Source};
use crate::queue::QueueName;

/// Routes, sources and pools.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    /// Where some or all mail goes instead of to its mail hosts; the first that fits.
    pub routes: Vec<Arc<Route>>,
    /// Where mail leaves from. None: from an address that the system chooses.
    pub sources: Vec<Source>,
    /// Which sources are used for what; the first that fits. If none does, the system chooses.
    pub pools: Vec<Pool>,
}

/// Routing in force.
#[derive(Debug)]
pub(super) struct Routes {
    pub routes: Vec<Arc<Route>>,
    pools: Vec<(Pool, Vec<Member>)>,
    pub sources: Vec<Arc<Egress>>,
    default: Vec<Member>,
}

/// A source of a pool, with its weight.
pub(super) type Member = (Arc<Egress>, u32);

impl Routes {
    /// Sources that stay as they are keep their state.
    pub fn new(routing: &Routing, before: Option<&Routes>) -> Self {
        let known = |source: &Source| {
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
        let default = before
            .map_or_else(|| vec![(Arc::new(Egress::new(Source::new(DEFAULT))), 1)], |before| before.default.clone());
        Routes { routes: routing.routes.clone(), pools, sources, default }
    }

    /// The sources for mail of a queue: without those that are suspended, unless all are.
    pub fn members(&self, name: &QueueName) -> Vec<Member> {
        let fits = |pool: &Pool| pool.tenants.is_empty() || pool.tenants.iter().any(|tenant| **tenant == *name.tenant);
        let members = self.pools.iter().find(|(pool, members)| fits(pool) && !members.is_empty());
        let members = members.map_or(&self.default, |(_, members)| members);
        let usable: Vec<Member> = members.iter().filter(|(egress, _)| !egress.is_suspended()).cloned().collect();
        if usable.is_empty() { members.clone() } else { usable }
    }
}

/// The source without settings.
const DEFAULT: &str = "default";

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(pools: &[(&str, &[&str], &[&str])]) -> Routing {
        let pool = |(name, tenants, sources): &(&str, &[&str], &[&str])| Pool {
            name: (*name).to_owned(),
            tenants: tenants.iter().map(|tenant| (*tenant).to_owned()).collect(),
            sources: sources.iter().map(|source| (Arc::from(*source), 1)).collect(),
        };
        let sources = ["a", "b", "c"].map(Source::new).into();
        Routing { sources, pools: pools.iter().map(pool).collect(), ..Routing::default() }
    }

    fn suspend(egress: &Arc<Egress>) {
        egress.suspend(&std::io::Error::other("its address is gone"));
    }

    fn names(routes: &Routes, tenant: &str) -> Vec<String> {
        let name = QueueName { tenant: tenant.into(), campaign: "".into(), domain: "x.example".into() };
        routes.members(&name).iter().map(|(egress, _)| egress.name().to_string()).collect()
    }

    #[test]
    fn the_first_pool_of_a_tenant_counts_and_suspended_sources_are_left_out() {
        let routes = Routes::new(&routing(&[("one", &["t", "u"], &["a", "b"]), ("rest", &[], &["c"])]), None);
        assert_eq!((names(&routes, "t"), names(&routes, "")), (vec!["a".into(), "b".into()], vec!["c".into()]));
        routes.sources.iter().take(1).for_each(suspend);
        assert_eq!(names(&routes, "u"), ["b"]);
        routes.sources.iter().for_each(suspend);
        assert_eq!(names(&routes, "u"), ["a", "b"], "all wait");
        let routes = Routes::new(&routing(&[("one", &["t"], &["a"])]), None);
        assert_eq!(names(&routes, "u"), [DEFAULT]);
    }

    #[test]
    fn sources_that_stay_keep_their_state() {
        let before = Routes::new(&routing(&[("all", &[], &["a", "b"])]), None);
        before.sources.iter().for_each(suspend);
        let mut changed = routing(&[("all", &[], &["a", "b"])]);
        changed.sources[1].ehlo = Some("b.example".to_owned());
        let after = Routes::new(&changed, Some(&before));
        assert_eq!([0, 1].map(|at| after.sources[at].is_suspended()), [true, false]);
    }
}
