//! The active routes, the resolver of mail hosts, and the queues that wait for a route. Decides where mail goes; sites
//! are unknown here.

use std::sync::{Arc, Mutex};

use rustls::ClientConfig;
use tokio::time::Instant;

use super::mta_sts::{MailHosts, MtaSts};
use super::route::{FixedRoute, Manner, RouteTls};
use super::routing::{Member, NextHop, Routes, Routing};
use super::unrouted::Unrouted;
use crate::session::TlsPolicy;
use posthaste_dane::Dane;
use posthaste_dns::{DnsError, MailDestination, MailHost, Pace, Resolver};
use posthaste_queue::{Diversion, QueueName};

/// Owner of the routes and the resolver; both are replaced as a whole.
pub(super) struct RouteTable {
    in_force: Mutex<Arc<Routes>>,
    resolver: Mutex<Arc<Resolver>>,
    /// Settings of connections to mail hosts without a rule.
    manner: Manner,
    mta_sts: Option<MtaSts>,
    /// TLS by the TLSA records of hosts.
    pub dane: Dane,
    pub unrouted: Unrouted,
}

impl RouteTable {
    /// `port` and `tls` are those of mail hosts without a rule.
    pub fn new(
        resolver: Arc<Resolver>,
        routing: &Routing,
        port: u16,
        tls: Option<Arc<ClientConfig>>,
        mta_sts: Option<MtaSts>,
    ) -> Self {
        let policy = TlsPolicy::Opportunistic;
        let is_implicit = false;
        let manner = Manner::of_hosts(port, tls.map(|config| RouteTls { policy, is_implicit, config, name: None }));
        let enforced = mta_sts.as_ref().map(|mta_sts| mta_sts.manner(port));
        let routes = Routes::new(manner.clone(), enforced, routing, Vec::new(), None);
        RouteTable {
            in_force: Mutex::new(Arc::new(routes)),
            resolver: Mutex::new(resolver),
            manner,
            mta_sts,
            dane: Dane::default(),
            unrouted: Unrouted::default(),
        }
    }

    pub fn in_force(&self) -> Arc<Routes> {
        self.in_force.lock().expect("the routes").clone()
    }

    /// Replaces the diversions and the routing; `None`: the routing stays.
    pub fn replace(&self, routing: Option<&Routing>, diversions: Vec<Diversion>) {
        let mut in_force = self.in_force.lock().expect("the routes");
        let routing = routing.unwrap_or(&in_force.routing);
        let enforced = self.mta_sts.as_ref().map(|mta_sts| mta_sts.manner(self.manner.port));
        *in_force = Arc::new(Routes::new(self.manner.clone(), enforced, routing, diversions, Some(&in_force)));
    }

    /// MTA-STS policies fetched since the opening, and fetches that failed.
    pub fn policy_fetches(&self) -> (u64, u64) {
        self.mta_sts.as_ref().map_or((0, 0), |mta_sts| mta_sts.policies.counts())
    }

    /// The resolver of mail hosts.
    pub fn resolver(&self) -> Arc<Resolver> {
        self.resolver.lock().expect("the resolver").clone()
    }

    pub fn set_resolver(&self, resolver: Arc<Resolver>) {
        *self.resolver.lock().expect("the resolver") = resolver;
    }

    /// The domain to look up for a queue, if the answer is not known yet.
    pub fn question_of(&self, name: &QueueName) -> Option<(String, Pace)> {
        let routes = self.in_force();
        if routes.bounced(name).is_some() {
            return None;
        }
        let domain = match routes.route(name) {
            None => &*name.domain,
            Some((route, _)) => route.domain_asked()?,
        };
        self.resolver().question(domain)
    }

    /// Settings for one domain only: the certificates of its hosts may have the domain's name.
    fn with_next_hop(&self, manner: Arc<Manner>, destination: &MailDestination) -> Arc<Manner> {
        let is_wanted = |host: &MailHost| self.dane.wants_next_hop(&host.name);
        if manner.has_dane && destination.site.hosts().iter().any(is_wanted) {
            Arc::new(manner.with_next_hop(destination.names()))
        } else {
            manner
        }
    }

    async fn hosts_of(&self, route: &FixedRoute) -> Result<Arc<MailDestination>, DnsError> {
        let resolver = self.resolver();
        match route.domain_asked() {
            Some(domain) => resolver.destination(domain).await,
            None => resolver.fixed_in_order(&route.hosts),
        }
    }
}

/// A site, with the sources of its mail.
pub(super) struct Plan {
    pub domain: Arc<str>,
    pub destination: Arc<MailDestination>,
    pub manner: Arc<Manner>,
    pub members: Vec<Member>,
    /// The name of the site.
    pub name: Arc<str>,
    pub until: Instant,
}

impl Plan {
    /// Looks up the hosts of a next hop; `None`: those of the queue's domain.
    ///
    /// # Errors
    /// There are no hosts, or they cannot be looked up now.
    pub async fn new(
        table: &RouteTable,
        routes: &Routes,
        name: &QueueName,
        hop: Option<&NextHop>,
    ) -> Result<Self, DnsError> {
        let (destination, manner) = match hop {
            Some((route, manner)) => (table.hosts_of(route).await?, Arc::clone(manner)),
            None => {
                let mta_sts = table.mta_sts.as_ref();
                let resolver = table.resolver();
                let MailHosts { destination, manner, .. } =
                    MailHosts::find(routes, mta_sts, &resolver, &name.domain).await?;
                let manner = table.with_next_hop(manner, &destination);
                (destination, manner)
            }
        };
        let members = routes.members(name, hop.and_then(|(route, _)| route.pool.as_deref()));
        let hosts = destination.site.hosts().iter().map(|host| format!("{} {}", host.preference, host.name));
        let site = hosts.collect::<Vec<_>>().join(", ") + &manner.text;
        let domain = name.domain.clone();
        let until = destination.valid_until;
        Ok(Plan { domain, destination, manner, members, name: site.into(), until })
    }

    /// The plan for mail of a queue if all hosts answer.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub async fn usual(table: &RouteTable, name: &QueueName) -> Result<Self, DnsError> {
        let routes = table.in_force();
        Plan::new(table, &routes, name, routes.route(name)).await
    }
}
