//! Resolves the rules for a site, a domain or a tenant.

use std::collections::BTreeMap;

use posthaste_units::Rate;

use super::file::Total;
use super::rules::{Kind, Section};
use super::{Sections, ShapingRules, Sourced};

/// The rules for a site; `None`: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfSite {
    /// Maximum concurrent connections.
    pub connections: Option<Sourced<u32>>,
    /// Rate of opening connections.
    pub connection_rate: Option<Sourced<Rate>>,
    /// Connections at a time to one address.
    pub connections_per_address: Option<Sourced<u32>>,
    /// Rate of messages.
    pub message_rate: Option<Sourced<Rate>>,
    /// Messages that one connection carries.
    pub messages_per_connection: Option<Sourced<u32>>,
    /// Maximum recipients of one transaction.
    pub recipients_per_message: Option<Sourced<u32>>,
    /// Consecutive failed tries of all hosts before the site pauses.
    pub failures_before_pause: Option<Sourced<u32>>,
    /// Sends messages by BDAT to hosts that offer it.
    pub chunking: Option<Sourced<bool>>,
    /// Totals of providers, by the provider's name; two of one name differ in their values.
    pub totals: Vec<Sourced<TotalOf>>,
    /// Named limits. Those named only by a domain's section have no message rate here.
    pub limits: Vec<NamedLimit>,
    /// Sections that apply, most specific last.
    pub sections: Vec<u32>,
}

/// A limit for several sites together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TotalOf {
    /// Name of the provider.
    pub name: String,
    /// Maximum concurrent connections.
    pub connections: Option<u32>,
    /// Rate of opening connections.
    pub connection_rate: Option<Rate>,
    /// Rate of messages.
    pub message_rate: Option<Rate>,
}

/// A limit with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLimit {
    /// Name of the limit.
    pub name: String,
    /// The limit, and where it is set.
    pub limit: Sourced<Total>,
}

/// The rules for a domain, whatever its site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfDomain {
    /// Maximum rate of messages to the domain.
    pub message_rate: Option<Sourced<Rate>>,
    /// Limits whose message rates apply.
    pub limits: Vec<NamedLimit>,
}

/// The rules for a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfTenant {
    /// Maximum rate of the tenant's messages.
    pub message_rate: Option<Sourced<Rate>>,
    /// Limits whose message rates apply.
    pub limits: Vec<NamedLimit>,
}

impl ShapingRules {
    /// The sections that a domain (in lower case) brings to its site.
    pub fn of_domain(&self, domain: &str) -> Sections {
        matching(&self.by_domain, domain).collect()
    }

    /// The rules for a site of these hosts, for mail from a source. `joined`: sections of the domains routed to it.
    pub fn of_site(&self, source: &str, hosts: &[&str], joined: &Sections) -> OfSite {
        let mut sections = self.by_hosts(hosts);
        sections.extend(joined);
        sections.extend(self.sections.iter().position(|section| section.kind == Kind::Default).map(|at| at as u32));
        let order = self.in_order(self.with_parts(sections, source));
        let mut site = OfSite::default();
        // From the least specific on: a more specific value wins, and the lowest of equally specific ones.
        let mut level = [0; 8];
        for number in &order {
            let section = self.at(*number);
            let values = &section.values;
            pick(&mut site.connections, &values.connections, section, &mut level[0], u32::lt);
            pick(&mut site.connection_rate, &values.connection_rate, section, &mut level[1], is_slower);
            let per_address = &values.connections_per_address;
            pick(&mut site.connections_per_address, per_address, section, &mut level[2], u32::lt);
            if section.kind != Kind::Domain {
                pick(&mut site.message_rate, &values.message_rate, section, &mut level[3], is_slower);
            }
            let per_connection = &values.messages_per_connection;
            pick(&mut site.messages_per_connection, per_connection, section, &mut level[4], u32::lt);
            let per_message = &values.recipients_per_message;
            pick(&mut site.recipients_per_message, per_message, section, &mut level[5], u32::lt);
            pick(&mut site.chunking, &values.chunking, section, &mut level[6], bool::lt);
            let before_pause = &values.failures_before_pause;
            pick(&mut site.failures_before_pause, before_pause, section, &mut level[7], u32::lt);
            for said in &section.total {
                let Total { connections, connection_rate, message_rate } = said.value.clone();
                if section.source.is_some() {
                    // A value for the source replaces the provider's.
                    let totals = site.totals.iter_mut().map(|total| &mut total.value);
                    for total in totals.filter(|total| total.name == section.name) {
                        total.connections = total.connections.filter(|_| connections.is_none());
                        total.connection_rate = total.connection_rate.filter(|_| connection_rate.is_none());
                        total.message_rate = total.message_rate.filter(|_| message_rate.is_none());
                    }
                }
                let value = TotalOf { name: section.name.clone(), connections, connection_rate, message_rate };
                site.totals.push(Sourced { value, from: said.from.clone() });
            }
        }
        let mut limits = BTreeMap::new();
        for number in &order {
            let section = self.at(*number);
            for mut named in self.named(&section.limits) {
                if section.kind == Kind::Domain {
                    named.limit.value.message_rate = None;
                }
                let entry = limits.entry(named.name.clone()).or_insert_with(|| named.clone());
                if named.limit.value.message_rate.is_some() {
                    *entry = named;
                }
            }
        }
        (site.limits, site.sections) = (limits.into_values().collect(), order);
        site
    }

    /// Limits of messages to a domain (in lower case) from a source.
    pub fn messages_to(&self, domain: &str, source: &str) -> OfDomain {
        let found = self.with_parts(self.of_domain(domain), source);
        let mut found: Vec<&Section> = found.into_iter().map(|number| self.at(number)).collect();
        found.retain(|section| section.kind == Kind::Domain);
        found.sort_by_key(|section| section.level);
        let mut of = OfDomain::default();
        let mut level = 0;
        for section in found {
            pick(&mut of.message_rate, &section.values.message_rate, section, &mut level, is_slower);
            of.limits.extend(self.named(&section.limits).filter(|named| named.limit.value.message_rate.is_some()));
        }
        of.limits.sort_by(|one, other| one.name.cmp(&other.name));
        of.limits.dedup();
        of
    }

    /// Limits of a tenant's mail; `None` without any. Mail without a tenant has none.
    pub fn messages_of(&self, tenant: &str) -> Option<OfTenant> {
        let said = match tenant {
            "" => return None,
            tenant => self.tenants.get(tenant).or_else(|| self.tenants.get("*"))?,
        };
        let message_rate = said.message_rate.clone();
        let limits = self.named(&said.limits).filter(|named| named.limit.value.message_rate.is_some()).collect();
        Some(OfTenant { message_rate, limits })
    }

    /// True if tenants have limits.
    pub fn limits_tenants(&self) -> bool {
        !self.tenants.is_empty()
    }

    /// True if messages to a domain have limits of their own.
    pub fn limits_domains(&self) -> bool {
        let limits = |section: &Section| section.values.message_rate.is_some() || !section.limits.is_empty();
        self.sections.iter().any(|section| section.kind == Kind::Domain && limits(section))
    }

    /// The title of a section, for display.
    pub fn title(&self, section: u32) -> String {
        self.at(section).title()
    }

    /// Adds the parts of sections for a source.
    fn with_parts(&self, mut sections: Sections, source: &str) -> Sections {
        let part = |number: &u32| self.at(*number).parts.get(source).copied();
        let parts: Vec<u32> = sections.iter().filter_map(part).collect();
        sections.extend(parts);
        sections
    }

    /// Sections in order, most specific last.
    pub(super) fn in_order(&self, sections: Sections) -> Vec<u32> {
        let mut order: Vec<u32> = sections.into_iter().collect();
        order.sort_by_key(|number| self.at(*number).level);
        order
    }

    fn at(&self, number: u32) -> &Section {
        &self.sections[number as usize]
    }

    /// Providers with a pattern for each host.
    fn by_hosts(&self, hosts: &[&str]) -> Sections {
        let mut hosts = hosts.iter();
        let Some(first) = hosts.next() else { return Sections::new() };
        let mut sections: Sections = matching(&self.by_mx, &first.to_lowercase()).collect();
        for host in hosts {
            if sections.is_empty() {
                break;
            }
            let of_host: Sections = matching(&self.by_mx, &host.to_lowercase()).collect();
            sections.retain(|section| of_host.contains(section));
        }
        sections
    }

    fn named(&self, names: &[Sourced<String>]) -> impl Iterator<Item = NamedLimit> {
        names.iter().filter_map(|name| {
            let limit = self.limits.get(&name.value)?.clone();
            Some(NamedLimit { name: name.value.clone(), limit })
        })
    }
}

/// Sections whose pattern is the name, or its suffix from a dot on.
fn matching<'a>(
    patterns: &'a std::collections::HashMap<String, Vec<u32>>,
    name: &'a str,
) -> impl Iterator<Item = u32> + 'a {
    let suffixes = name.match_indices('.').filter(|(at, _)| *at > 0).map(|(at, _)| &name[at..]);
    std::iter::once(name).chain(suffixes).filter_map(|text| patterns.get(text)).flatten().copied()
}

fn pick<T: Clone>(
    place: &mut Option<Sourced<T>>,
    said: &Option<Sourced<T>>,
    section: &Section,
    level: &mut usize,
    is_lower: impl Fn(&T, &T) -> bool,
) {
    let Some(said) = said else { return };
    let wins = match place {
        None => true,
        Some(_) if section.level > *level => true,
        Some(before) => is_lower(&said.value, &before.value),
    };
    if wins {
        (*place, *level) = (Some(said.clone()), section.level);
    }
}

fn is_slower(one: &Rate, other: &Rate) -> bool {
    (other.interval(), one.burst()) < (one.interval(), other.burst())
}
