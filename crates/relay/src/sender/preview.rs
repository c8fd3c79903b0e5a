//! Preview of a route by the configuration alone, for operators, before anything is sent.

use std::net::IpAddr;
use std::sync::Arc;

use posthaste_smtp::Protocol;
use serde::Serialize;

use super::mta_sts::{MailHosts, MtaSts};
use super::route::{FixedRoute, Manner, RouteTls};
use super::routing::Routing;
use super::routing::{Member, NextHop, Routes};
use crate::session::TlsPolicy;
use posthaste_dane::{Dane, Demand};
use posthaste_dns::{DnsError, MailDestination, MailHost, Resolver, join_all};
use posthaste_mta_sts::{FoundPolicy, Mode};
use posthaste_queue::QueueName;

/// The mail whose route is previewed.
#[derive(Debug, Clone, Copy, Default)]
pub struct PreviewOf<'a> {
    /// Domain of the recipient.
    pub domain: &'a str,
    /// The tenant; empty for none.
    pub tenant: &'a str,
    /// The campaign; empty for none.
    pub campaign: &'a str,
    /// Pool that the mail was received for; empty for the tenant's pool.
    pub pool: &'a str,
}

/// The route of some mail. State of a running server (suspensions, diversions, hosts that do not answer) is not
/// included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoutePreview {
    /// The usual next hop.
    pub usual: HopPreview,
    /// The next hop while no host of `usual` can be reached; `None` without a fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<HopPreview>,
}

/// A next hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HopPreview {
    /// Number of its `[[relay.route]]`, from 1. `None`: the mail hosts of the domain.
    pub route: Option<usize>,
    /// The domain whose MX records name the hosts. `None`: the route names them.
    pub mx_of: Option<String>,
    /// The domain has no MX records and is its own host (RFC 5321 section 5.1).
    pub is_implicit_mx: bool,
    /// Hosts in the order of tries; hosts with the same preference take turns.
    pub hosts: Vec<HostPreview>,
    /// The reason for having no host.
    pub problem: Option<String>,
    /// Port of the hosts.
    pub port: u16,
    /// `smtp` or `lmtp`.
    pub protocol: &'static str,
    /// How connections are encrypted. `None`: not at all.
    pub tls: Option<TlsPreview>,
    /// MTA-STS policy of the domain. `None`: it has none, or a route or rule takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mta_sts: Option<MtaStsPreview>,
    /// Number of its `[[relay.tls_policy]]`, from 1. `None`: the route, or `relay.tls`.
    pub tls_policy: Option<usize>,
    /// Login name sent to the hosts; `None`: no login.
    pub login: Option<String>,
    /// The pool of the sources.
    pub pool: Option<String>,
    /// Sources of its connections.
    pub sources: Vec<SourcePreview>,
}

/// A host of a next hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostPreview {
    /// MX preference; the lowest is tried first.
    pub preference: u16,
    /// Its name, or an address literal.
    pub name: String,
    /// Addresses, in the order of the families of `[dns]`.
    pub addresses: Vec<IpAddr>,
    /// TLS by its TLSA records (RFC 7672): `verified`, or `encrypted` if no record is usable. `None`: it has no
    /// records, or DNSSEC does not authenticate them and the whole path to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dane: Option<&'static str>,
    /// Why the host is not used; `None` if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Transport settings for mail hosts without a route or rule.
#[derive(Debug, Clone)]
pub struct HostSettings {
    /// Port of mail hosts.
    pub port: u16,
    /// Client TLS. `None`: in the clear.
    pub tls: Option<RouteTls>,
    /// MTA-STS. `None`: policies are ignored.
    pub mta_sts: Option<MtaSts>,
}

/// The MTA-STS policy of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MtaStsPreview {
    /// `enforce` or `testing`. `None`: no policy is in force.
    pub mode: Option<&'static str>,
    /// The reason why the policy announced in DNS is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl MtaStsPreview {
    /// The preview of a policy. `None`: the domain has no MTA-STS.
    fn new(found: &FoundPolicy) -> Option<Self> {
        let mode = found.policy.as_ref().map(|policy| match policy.mode {
            Mode::Enforce => "enforce",
            Mode::Testing | Mode::None => "testing",
        });
        let problem = found.problem.as_ref().map(ToString::to_string);
        (mode.is_some() || problem.is_some()).then_some(Self { mode, problem })
    }
}

/// Encryption to a next hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TlsPreview {
    /// `opportunistic`, `required` or `verified`.
    pub policy: &'static str,
    /// TLS from the first octet on (RFC 8314), without STARTTLS.
    pub is_implicit: bool,
    /// Name that the certificate must have. `None`: the host's name.
    pub name: Option<String>,
}

/// A source of connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourcePreview {
    /// Its name; `default` for addresses that the system chooses.
    pub name: String,
    /// Its addresses; empty: the system chooses.
    pub addresses: Vec<IpAddr>,
    /// Name in EHLO. `None`: the host name.
    pub ehlo: Option<String>,
    /// The proxy that makes its connections, as an address and a port.
    pub proxy: Option<String>,
    /// Its weight among the sources.
    pub weight: u32,
}

impl Routing {
    /// Previews the route of some mail. Queries DNS and MTA-STS policies; connects to no mail host.
    pub async fn preview(&self, resolver: &Resolver, hosts: &HostSettings, of: PreviewOf<'_>) -> RoutePreview {
        let HostSettings { port, tls, mta_sts } = hosts;
        let enforced = mta_sts.as_ref().map(|mta_sts| mta_sts.manner(*port));
        let routes = Routes::new(Manner::of_hosts(*port, tls.clone()), enforced, self, Vec::new(), None);
        let mta_sts = mta_sts.as_ref();
        let name = QueueName {
            tenant: of.tenant.into(),
            campaign: of.campaign.into(),
            domain: of.domain.to_lowercase().into(),
            pool: of.pool.into(),
        };
        let usual = hop(&routes, resolver, mta_sts, &name, routes.route(&name)).await;
        let fallback = match routes.fallback(&name) {
            Some(next) => Some(hop(&routes, resolver, mta_sts, &name, Some(next)).await),
            None => None,
        };
        RoutePreview { usual, fallback }
    }
}

async fn hop(
    routes: &Routes,
    resolver: &Resolver,
    mta_sts: Option<&MtaSts>,
    name: &QueueName,
    next: Option<&NextHop>,
) -> HopPreview {
    let route = next.map(|(route, _)| route);
    let mx_of = route.map_or(Some(&*name.domain), |route| route.domain_asked());
    let mut manner = next.map_or_else(|| routes.manner(&name.domain), |(_, manner)| manner).clone();
    let mut policy = None;
    let found = match (route, mx_of) {
        (Some(route), None) => resolver.fixed_in_order(&route.hosts),
        (Some(_), Some(domain)) => resolver.destination(domain).await,
        (None, _) => MailHosts::find(routes, mta_sts, resolver, &name.domain).await.map(|hosts| {
            (manner, policy) = (hosts.manner, MtaStsPreview::new(&hosts.found));
            hosts.destination
        }),
    };
    let of_route = route.and_then(|route: &Arc<FixedRoute>| route.pool.as_deref());
    let (is_implicit_mx, hosts, problem) = match found {
        Ok(destination) => {
            let hosts = hosts(resolver, &destination, &manner).await;
            let is_usable = hosts.iter().any(|host| host.problem.is_none());
            let problem = (!is_usable).then(|| "none of the hosts can be used".to_owned());
            (mx_of.is_some() && destination.implicit, hosts, problem)
        }
        Err(error) => (false, Vec::new(), Some(error.to_string())),
    };
    HopPreview {
        route: route.and_then(|route| routes.number_of(route)),
        mx_of: mx_of.map(str::to_owned),
        is_implicit_mx,
        hosts,
        problem,
        port: manner.port,
        protocol: if manner.protocol == Protocol::Lmtp { "lmtp" } else { "smtp" },
        tls: manner.tls.as_ref().map(TlsPreview::new),
        mta_sts: policy,
        tls_policy: if route.is_none() { routes.rule_number(&name.domain) } else { None },
        login: manner.auth.as_ref().map(|auth| auth.user.clone()),
        pool: routes.pool(name, of_route).map(|(pool, _)| pool.name.clone()),
        sources: routes.members(name, of_route).iter().map(SourcePreview::new).collect(),
    }
}

/// The hosts that an attempt would use: those from this server itself on are skipped (RFC 5321 section 5.1).
async fn hosts(resolver: &Resolver, destination: &MailDestination, manner: &Manner) -> Vec<HostPreview> {
    let hosts = destination.site.hosts();
    let port = manner.port;
    let found = join_all(hosts.iter().map(|host| resolver.addresses(&host.name))).await;
    let is_ours = |found: &Result<posthaste_dns::Addresses, DnsError>| {
        found.as_ref().is_ok_and(|addresses| addresses.are_ours(port, destination.fixed))
    };
    let of_ours = hosts.iter().zip(&found).find(|(_, found)| is_ours(found)).map(|(host, _)| host.preference);
    let dane = Dane::default();
    let demand = async |(host, found): (&MailHost, &Result<posthaste_dns::Addresses, DnsError>)| match found {
        Ok(addresses) if manner.has_dane => dane.demand(resolver, &host.name, port, addresses, &[]).await,
        _ => Ok(Demand::Nothing),
    };
    let demands = join_all(hosts.iter().zip(&found).map(demand)).await;
    type Found = (Result<posthaste_dns::Addresses, DnsError>, Result<Demand, DnsError>);
    let preview = |(host, (found, demand)): (&MailHost, Found)| {
        let ours = of_ours.filter(|ours| host.preference >= *ours);
        let ours = ours.map(|_| "this server listens there, or at a better host".to_owned());
        let (addresses, problem) = match found {
            Ok(addresses) => (addresses.all().to_vec(), ours),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let (dane, problem) = match demand {
            Ok(Demand::Nothing) => (None, problem),
            Ok(Demand::Encrypted) => (Some("encrypted"), problem),
            Ok(Demand::Verified { .. }) => (Some("verified"), problem),
            Err(error) => (None, problem.or(Some(error.to_string()))),
        };
        HostPreview { preference: host.preference, name: host.name.to_string(), addresses, dane, problem }
    };
    hosts.iter().zip(found.into_iter().zip(demands)).map(preview).collect()
}

impl TlsPreview {
    fn new(tls: &RouteTls) -> Self {
        let policy = match tls.policy {
            TlsPolicy::Opportunistic => "opportunistic",
            TlsPolicy::Required => "required",
            TlsPolicy::Verified => "verified",
        };
        Self { policy, is_implicit: tls.is_implicit, name: tls.name.clone() }
    }
}

impl SourcePreview {
    fn new((egress, weight): &Member) -> Self {
        let settings = &egress.settings;
        let addresses = settings.ipv4.map(IpAddr::from).into_iter().chain(settings.ipv6.map(IpAddr::from));
        Self {
            name: settings.name.to_string(),
            addresses: addresses.collect(),
            ehlo: settings.ehlo.clone(),
            proxy: settings.proxy.as_ref().map(|proxy| proxy.server().to_string()),
            weight: *weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OutgoingSource, Pool, TlsRule};
    use super::*;
    use posthaste_dns::Settings;

    fn resolver() -> Resolver {
        let text = "servers = ['127.0.0.1:1']\n[hosts]\n'far.example' = ['192.0.2.1', '2001:db8::1']\n'hub.example' = ['192.0.2.7']\n\
                    'me.example' = ['192.0.2.9']\n";
        let settings: Settings = toml::from_str(text).unwrap();
        Resolver::new(&settings).unwrap().with_own(["mx.example"], ["192.0.2.9:25".parse().unwrap()])
    }

    async fn preview(routing: &Routing, of: PreviewOf<'_>) -> RoutePreview {
        routing.preview(&resolver(), &HostSettings { port: 25, tls: None, mta_sts: None }, of).await
    }

    fn of(domain: &str) -> PreviewOf<'_> {
        PreviewOf { domain, ..PreviewOf::default() }
    }

    #[tokio::test]
    async fn without_a_route_the_mail_hosts_and_the_rule_for_tls_count() {
        let tls = |domain: &str| TlsRule { domain: domain.into(), tls: None };
        let routing = Routing { tls: vec![tls("other.example"), tls(".example")], ..Routing::default() };
        let RoutePreview { usual, fallback } = preview(&routing, of("FAR.example")).await;
        assert_eq!((usual.route, usual.mx_of.as_deref(), usual.is_implicit_mx), (None, Some("far.example"), true));
        let addresses: Vec<String> = usual.hosts[0].addresses.iter().map(ToString::to_string).collect();
        assert_eq!((usual.hosts.len(), addresses), (1, vec!["2001:db8::1".to_owned(), "192.0.2.1".to_owned()]));
        assert_eq!((usual.tls, usual.tls_policy, usual.login, usual.pool), (None, Some(2), None, None));
        assert_eq!((&*usual.sources[0].name, usual.problem, fallback), ("default", None, None));
    }

    #[tokio::test]
    async fn a_route_says_host_port_login_and_pool() {
        let auth = Some(posthaste_smtp::sasl::Credentials::new("ann", "secret"));
        let hub = FixedRoute {
            domain: "far.example".into(),
            auth,
            pool: Some("p".into()),
            ..FixedRoute::new("hub.example", 587)
        };
        let spare = FixedRoute { is_fallback: true, ..FixedRoute::new("[192.0.2.8]", 25) };
        let source = OutgoingSource { ipv4: Some("192.0.2.4".parse().unwrap()), ..OutgoingSource::new("out") };
        let pool = |name: &str, tenants: Option<Vec<String>>| Pool {
            name: name.into(),
            tenants,
            sources: vec![("out".into(), 3)],
        };
        let routing = Routing {
            routes: vec![Arc::new(spare), Arc::new(hub)],
            sources: vec![source],
            pools: vec![pool("news", Some(vec!["t".into()])), pool("p", Some(Vec::new()))],
            ..Routing::default()
        };
        let RoutePreview { usual, fallback } = preview(&routing, of("far.example")).await;
        assert_eq!((usual.route, &usual.mx_of, usual.port, usual.login.as_deref()), (Some(2), &None, 587, Some("ann")));
        assert_eq!((usual.pool.as_deref(), usual.sources[0].weight), (Some("p"), 3));
        assert_eq!(usual.sources[0].addresses, ["192.0.2.4".parse::<IpAddr>().unwrap()]);
        assert!(!format!("{usual:?}").contains("secret"));
        let fallback = fallback.unwrap();
        assert_eq!((fallback.route, &*fallback.hosts[0].name), (Some(1), "[192.0.2.8]"));
        let of_tenant = preview(&routing, PreviewOf { tenant: "t", ..of("me.example") }).await.usual;
        assert_eq!(of_tenant.pool.as_deref(), Some("news"));
    }

    #[tokio::test]
    async fn a_host_that_is_this_server_or_has_no_name_is_no_way() {
        let own = preview(&Routing::default(), of("me.example")).await.usual;
        assert!(own.hosts[0].problem.is_some() && own.problem.is_some(), "{own:?}");
        let route = |host: &str| Routing { routes: vec![Arc::new(FixedRoute::new(host, 25))], ..Routing::default() };
        let looped = preview(&route("mx.example"), of("far.example")).await.usual;
        assert_eq!(looped.problem.as_deref(), Some("mail for mx.example would come back to this host"));
        let none = preview(&Routing::default(), of("a b")).await.usual;
        assert_eq!(none.problem.as_deref(), Some("`a b` is not a domain"));
    }
}
