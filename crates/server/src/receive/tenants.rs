//! The charged account, campaign and source of mail for other hosts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use posthaste_accounts::Login;
use posthaste_intake::Mail;
use posthaste_relay::sender::TenantSection;
use posthaste_smtp::driver::{ByNetwork, Peer};
use posthaste_smtp::{Address, ReversePath};
use posthaste_units::is_name;

use crate::receive::logins::Session;
use posthaste_config::{Config, Listener, Network};

/// Tenants in the configuration.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    /// Tenants of each listener, in their order.
    listeners: Vec<ByNetwork<Option<Arc<str>>>>,
    /// Campaign and pool of each listener, in order; empty without any.
    campaigns: Vec<ByNetwork<Option<Arc<str>>>>,
    pools: Vec<ByNetwork<Option<Arc<str>>>>,
    known_pools: HashSet<String>,
    /// Tenants by sender's address or domain, in lower case; with a dot in front for the domains below it.
    senders: HashMap<String, Arc<str>>,
    /// Campaigns of the senders of each tenant, keyed as above.
    campaigns_of: HashMap<Arc<str>, HashMap<String, Arc<str>>>,
    fields: LabelFields,
}

/// Names of the header fields in which trusted clients name a tenant, a campaign and a pool.
#[derive(Debug, Default, Clone)]
pub(crate) struct LabelFields {
    pub tenant: Option<Arc<str>>,
    pub campaign: Option<Arc<str>>,
    pub pool: Option<Arc<str>>,
}

/// Labels from such fields of a message.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Labels {
    pub tenant: Option<Arc<str>>,
    pub campaign: Option<Arc<str>>,
    pub pool: Option<Arc<str>>,
}

impl Tenants {
    pub fn new(config: &Config) -> Self {
        let name = |name: &Option<String>| name.as_deref().map(Arc::<str>::from);
        let by_network = |of_listener: &Option<String>, of_network: fn(&Network) -> &Option<String>| {
            let networks = config.networks.iter().flat_map(Network::each);
            let own = networks.filter(|(_, own)| of_network(own).is_some());
            ByNetwork::new(name(of_listener), own.map(|(network, own)| (network, name(of_network(own)))).collect())
        };
        let listeners = || config.mail_listeners();
        let if_any = |of_listener: fn(&Listener) -> &Option<String>, of_network: fn(&Network) -> &Option<String>| {
            let has_any = listeners().any(|one| of_listener(one).is_some())
                || config.networks.iter().any(|one| of_network(one).is_some());
            listeners().filter(|_| has_any).map(|one| by_network(of_listener(one), of_network)).collect()
        };
        let of_tenant = |tenant: &TenantSection| {
            let name: Arc<str> = tenant.name.as_str().into();
            let domains = tenant.sender_domains.iter().chain(&tenant.senders);
            domains.map(|domain| (domain.to_lowercase(), name.clone())).collect::<Vec<_>>()
        };
        let campaigns_of = |tenant: &TenantSection| {
            let of_sender = |(sender, campaign): (&String, &String)| (sender.to_lowercase(), campaign.as_str().into());
            (Arc::from(tenant.name.as_str()), tenant.campaigns.iter().map(of_sender).collect())
        };
        let field = |name: &str| (!name.is_empty()).then(|| name.into());
        Self {
            listeners: listeners().map(|one| by_network(&one.tenant, |network| &network.tenant)).collect(),
            campaigns: if_any(|listener| &listener.campaign, |network| &network.campaign),
            pools: if_any(|listener| &listener.pool, |network| &network.pool),
            known_pools: config.relay.pool.iter().map(|pool| pool.name.clone()).collect(),
            senders: config.relay.tenant.iter().flat_map(of_tenant).collect(),
            campaigns_of: config.relay.tenant.iter().map(campaigns_of).collect(),
            fields: LabelFields {
                tenant: field(&config.relay.tenant_header),
                campaign: field(&config.relay.campaign_header),
                pool: field(&config.relay.pool_header),
            },
        }
    }

    /// The fields for trusted clients; `None` if none is configured.
    pub fn fields(&self) -> Option<&LabelFields> {
        Some(&self.fields)
            .filter(|fields| fields.tenant.is_some() || fields.campaign.is_some() || fields.pool.is_some())
    }

    /// Labels a message. `labels` come from trusted clients only, and precede the login's own.
    pub fn label(
        &self,
        message: &mut Mail<'_>,
        session: &Session,
        sender: &ReversePath,
        (is_trusted, login): (bool, Option<&Login>),
        labels: Labels,
    ) {
        let by_sender = || if is_trusted { of_sender(&self.senders, sender) } else { None };
        let by_login = || login.and_then(|login| login.tenant.clone());
        if let Some(tenant) =
            labels.tenant.or_else(by_login).or_else(by_sender).or_else(|| of_client(&self.listeners, session))
        {
            message.tenant = tenant;
        }
        let by_sender = || {
            let campaigns = self.campaigns_of.get(&message.tenant).filter(|_| is_trusted)?;
            of_sender(campaigns, sender)
        };
        if let Some(campaign) = labels.campaign.or_else(by_sender).or_else(|| of_client(&self.campaigns, session)) {
            message.campaign = campaign;
        }
        if let Some(pool) = labels.pool.or_else(|| of_client(&self.pools, session)) {
            message.pool = pool;
        }
    }

    /// True if mail charged to this tenant may be from this address: one of its senders or sender domains, if it has
    /// any.
    pub fn may_send_as(&self, tenant: &str, sender: &Address) -> bool {
        let is_bound = self.senders.values().any(|of| **of == *tenant);
        !is_bound || of_address(&self.senders, sender).is_some_and(|of| *of == *tenant)
    }

    /// True if mail of this tenant, or of none, may be signed for this address: it is not another tenant's.
    pub fn owns(&self, tenant: &str, author: &Address) -> bool {
        let is_of_other = of_address(&self.senders, author).is_some_and(|owner| *owner != *tenant);
        !is_of_other && (tenant.is_empty() || self.may_send_as(tenant, author))
    }

    /// A pool that a client has named and that does not exist.
    pub fn unknown_pool<'a>(&self, labels: &'a Labels) -> Option<&'a str> {
        labels.pool.as_deref().filter(|pool| !self.known_pools.contains(*pool))
    }
}

/// The entry of a sender, or else of the nearest domain.
fn of_sender(senders: &HashMap<String, Arc<str>>, sender: &ReversePath) -> Option<Arc<str>> {
    if senders.is_empty() {
        return None;
    }
    of_address(senders, sender.address()?)
}

fn of_address(senders: &HashMap<String, Arc<str>>, address: &Address) -> Option<Arc<str>> {
    if let Some(name) = senders.get(&address.to_string().to_lowercase()) {
        return Some(name.clone());
    }
    let domain = address.domain().to_string().to_lowercase();
    let below = domain.match_indices('.').map(|(dot, _)| &domain[dot..]);
    std::iter::once(domain.as_str()).chain(below).find_map(|domain| senders.get(domain).cloned())
}

/// The entry of a listener's clients or, before that, of their network.
fn of_client(listeners: &[ByNetwork<Option<Arc<str>>>], session: &Session) -> Option<Arc<str>> {
    match session.peer {
        Peer::Local { .. } | Peer::Token { .. } => None,
        _ => listeners.get(session.listener)?.get(session.peer.ip()).clone(),
    }
}

/// The name in a field's value; `None` if it is invalid.
pub(crate) fn name_in(value: &[u8]) -> Option<Arc<str>> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    is_name(text).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_nearest_sender_domain_names_the_tenant() {
        let text = "[[relay.tenant]]\nname = 'a'\nsender_domains = ['A.example', '.b.example']\n\
                    [[relay.tenant]]\nname = 'c'\nsender_domains = ['.x.b.example', 'y.b.example']\n\
                    [[relay.tenant]]\nname = 'd'\nsenders = ['Ann@a.example', 'ann@else.example']\n";
        let tenants = Tenants::new(&Config::parse(Path::new("test"), text).unwrap());
        let check = |sender: &str, expected: Option<&str>| {
            let path = ReversePath::parse(&format!("<{sender}>")).unwrap();
            assert_eq!(of_sender(&tenants.senders, &path).as_deref(), expected, "{sender}");
        };
        check("x@a.EXAMPLE", Some("a"));
        check("x@z.a.example", None);
        check("x@b.example", None);
        check("x@z.b.example", Some("a"));
        check("x@z.z.b.example", Some("a"));
        check("x@y.b.example", Some("c"));
        check("x@z.x.b.example", Some("c"));
        check("x@[192.0.2.1]", None);
        check("aNN@A.example", Some("d"));
        check("ann@else.example", Some("d"));
        check("x@else.example", None);
        check("", None);
    }

    #[test]
    fn no_client_signs_as_another_tenant() {
        let text = "[[relay.tenant]]\nname = 'a'\nsender_domains = ['a.example']\n[[relay.tenant]]\nname = 'open'\n";
        let tenants = Tenants::new(&Config::parse(Path::new("test"), text).unwrap());
        let check = |tenant: &str, author: &str, expected: bool| {
            assert_eq!(tenants.owns(tenant, &Address::parse(author).unwrap()), expected, "{tenant:?} {author}");
        };
        check("a", "x@a.example", true);
        check("a", "x@b.example", false);
        check("open", "x@a.example", false);
        check("open", "x@b.example", true);
        check("", "x@a.example", false);
        check("", "x@b.example", true);
    }

    #[test]
    fn a_name_is_one_word() {
        assert_eq!(name_in(b" \tacme-1\r\n").as_deref(), Some("acme-1"));
        for value in [&b""[..], b" \r\n", b"a b", b"a\r\n b", b"\xff", "\u{e9}".as_bytes(), &[b'x'; 101]] {
            assert_eq!(name_in(value), None, "{value:?}");
        }
    }
}
