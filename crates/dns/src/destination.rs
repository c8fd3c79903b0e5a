use std::collections::HashMap;
use std::sync::Arc;

use posthaste_random::Random;
use tokio::time::Instant;

/// A mail host of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailHost {
    /// The lowest is tried first (RFC 5321 section 5.1).
    pub preference: u16,
    /// In lower case and A-labels, without a final dot; or an address literal.
    pub name: Arc<str>,
}

/// The mail hosts of a domain with their preferences, ordered. Domains with the same list have the same site; overlapping lists are different sites.
///
/// A key for limits and queues: cheap to clone, equal by content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site(Arc<[MailHost]>);

impl Site {
    /// The hosts of one list, ordered by preference and name, each once with its best preference. Removes our own host
    /// and those of equal or worse preference, then keeps the first `hosts_max`.
    pub(super) fn new(
        hosts: impl IntoIterator<Item = MailHost>,
        hosts_max: usize,
        is_ours: impl Fn(&str) -> bool,
    ) -> Site {
        let mut best: HashMap<Arc<str>, u16> = HashMap::new();
        for host in hosts {
            let preference = best.entry(host.name).or_insert(host.preference);
            *preference = host.preference.min(*preference);
        }
        let our_preference = best.iter().filter(|(name, _)| is_ours(name)).map(|(_, preference)| *preference).min();
        let mut hosts: Vec<MailHost> = best
            .into_iter()
            .filter(|(_, preference)| our_preference.is_none_or(|ours| *preference < ours))
            .map(|(name, preference)| MailHost { preference, name })
            .collect();
        hosts.sort_unstable();
        hosts.truncate(hosts_max);
        Site(hosts.into())
    }

    /// The hosts, the best first, then by name. Not the order of attempts: see [`order`](Self::order).
    pub fn hosts(&self) -> &[MailHost] {
        &self.0
    }

    /// The site with its permitted hosts only.
    fn only(&self, is_permitted: impl Fn(&str) -> bool) -> Site {
        Site(self.0.iter().filter(|host| is_permitted(&host.name)).cloned().collect())
    }

    /// The order of one attempt: by preference, random among hosts of the same (RFC 5321 section 5.1).
    pub fn order(&self, random: &mut Random) -> Vec<MailHost> {
        let mut keyed: Vec<_> = self.0.iter().map(|host| (host.preference, random.next(), host)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, _, host)| host.clone()).collect()
    }
}

/// The destination of mail for a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailDestination {
    /// The domain in lower case and A-labels, without a final dot; or an address literal.
    pub domain: String,
    /// The name that has its MX records, if the domain is an alias (CNAME). Authenticated if the [list](Self::is_secure) is.
    pub alias: Option<Arc<str>>,
    /// Hosts of the destination, at least one.
    pub site: Site,
    /// The domain has no MX records, and is its own host (RFC 5321 section 5.1).
    pub implicit: bool,
    /// Its list of hosts is authenticated by DNSSEC. Without MX records the addresses of the domain decide (RFC 7672
    /// section 2.2.2). Never without [`Settings::trust_ad`](super::Settings::trust_ad).
    pub is_secure: bool,
    /// An operator has chosen the hosts, which may be on this machine.
    pub fixed: bool,
    /// Expiry, after which it is looked up again.
    pub valid_until: Instant,
}

impl MailDestination {
    /// The domain, and the name that it is an alias of.
    pub fn names(&self) -> Arc<[Arc<str>]> {
        [Arc::from(&*self.domain)].into_iter().chain(self.alias.clone()).collect()
    }

    /// This destination with permitted hosts only. `None` if no host is left.
    pub fn only(&self, is_permitted: impl Fn(&str) -> bool) -> Option<MailDestination> {
        let site = self.site.only(is_permitted);
        (!site.hosts().is_empty()).then(|| MailDestination { site, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn host(preference: u16, name: &str) -> MailHost {
        MailHost { preference, name: name.into() }
    }

    fn site(hosts: &[(u16, &str)]) -> Site {
        Site::new(hosts.iter().map(|(preference, name)| host(*preference, name)), 3, |name| name == "us")
    }

    #[test]
    fn a_site_is_the_exact_list() {
        let one = site(&[(10, "a"), (20, "b")]);
        assert_eq!(one, site(&[(20, "b"), (10, "a"), (30, "a")]));
        let others = [site(&[(10, "a")]), site(&[(10, "a"), (21, "b")]), site(&[(10, "a"), (20, "b"), (20, "c")])];
        assert!(others.iter().all(|other| *other != one));
        assert_eq!(others.into_iter().chain([one.clone(), one]).collect::<HashSet<_>>().len(), 4);
    }

    #[test]
    fn of_a_long_list_the_best_stay() {
        let names: Vec<String> = (0..1000).map(|number| format!("mx{number:03}")).collect();
        let site = Site::new(names.iter().rev().map(|name| host(5, name)).chain([host(1, "z")]), 3, |_| false);
        assert_eq!(site.hosts(), [host(1, "z"), host(5, "mx000"), host(5, "mx001")]);
    }

    #[test]
    fn hosts_that_are_not_better_than_we_are_dropped() {
        assert_eq!(site(&[(10, "a"), (20, "us"), (20, "b"), (30, "c")]).hosts(), [host(10, "a")]);
        assert_eq!(site(&[(10, "us"), (5, "us"), (7, "b"), (5, "c")]).hosts(), []);
    }

    #[test]
    fn the_order_of_tries_follows_the_seed_and_preferences() {
        let site = site(&[(10, "a"), (10, "b"), (20, "c")]);
        let order =
            |seed| site.order(&mut Random::new(seed)).iter().map(|host| host.name.to_string()).collect::<Vec<_>>();
        assert!((0..100).all(|seed| order(seed) == order(seed) && order(seed)[2] == "c"));
        let first_a = (0..1000).filter(|seed| order(*seed)[0] == "a").count();
        assert!((400..600).contains(&first_a), "{first_a}");
    }
}
