//! Settings that a reload replaces while sessions continue.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_accounts::{Login, Logins};
use posthaste_directory::Directory;
use posthaste_directory::names::folded_domain;
use posthaste_intake::{Allowance, SpaceShare};
use posthaste_smtp::Protocol;
use posthaste_smtp::driver::{ByNetwork, Peer};
use posthaste_units::Rate;

use crate::config::dkim::DomainSigners;
use crate::config::own_domains::OwnDomains;
use crate::receive::head::HeaderRules;
use crate::receive::logins::Session;
use crate::receive::maps::Maps;
use crate::receive::sender_checks::TreatmentRules;
use crate::receive::tenants::Tenants;
use posthaste_config::{Checks, Config, LimitSection, Listener, ListenerAuth, Network, Rates, SpoolShare};

/// Settings that a reload replaces while sessions continue.
#[derive(Debug)]
pub(crate) struct Settings {
    pub host_name: String,
    /// `host_name` in folded form: the authserv-id in Authentication-Results of this server.
    pub authserv_id: Arc<str>,
    /// The checks of strangers' mail.
    pub checks: Checks,
    /// Treatment of mail by its results.
    pub treatment: TreatmentRules,
    /// All authserv-ids of this server, folded: only we may write results with these names.
    own_services: Arc<[Arc<str>]>,
    /// The directory of all mail.
    pub mail: PathBuf,
    /// Directory of all mail, if the first password is valid.
    pub first_password_mail: Option<PathBuf>,
    /// The directory of the event log; `None` without one.
    pub events: Option<PathBuf>,
    /// The directory of the search index; `None` if mail is not indexed.
    pub search: Option<PathBuf>,
    pub directory: Arc<Directory>,
    pub logins: Arc<Logins>,
    /// Recipient rates: of single logins by name, else the common one; and of a user of this machine.
    rates_by_login: HashMap<String, Rates>,
    login_rates: Rates,
    local_rates: Rates,
    /// Login mode of each listener of mail, in their order.
    auth: Vec<ByNetwork<ListenerAuth>>,
    /// Permission to relay by network; else the listener decides, else `[relay]`.
    relay_of_network: ByNetwork<Option<bool>>,
    relay_of_listener: Vec<Option<bool>>,
    relay_networks: ByNetwork<bool>,
    relay_local: bool,
    /// Domains for which mail from any client is accepted.
    relay_domains: Vec<String>,
    /// Accounts have quotas.
    pub quota_is_set: bool,
    /// True if mail for a full account is refused permanently.
    pub quota_is_permanent: bool,
    pub tenants: Tenants,
    /// The configured domains, for the page.
    pub own_domains: OwnDomains,
    pub maps: Maps,
    /// DKIM keys.
    pub signers: Arc<DomainSigners>,
    /// A notification of a failure returns a message up to this size whole.
    pub returned_bytes: u64,
    /// Limits of each listener of mail, in their order.
    limits: Vec<ByNetwork<MessageLimits>>,
    /// Limits for mail from local programs.
    local: MessageLimits,
}

/// Limits of a message beyond those of the SMTP session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLimits {
    pub hops: usize,
    pub allowance: Allowance,
}

impl From<LimitSection> for MessageLimits {
    fn from(limits: LimitSection) -> Self {
        let share = match limits.receive.spool_per_address {
            SpoolShare::Percent(percent) => SpaceShare::Percent(percent),
            SpoolShare::Bytes(bytes) => SpaceShare::Bytes(bytes),
        };
        let allowance = Allowance { share, least: limits.session.message_bytes };
        Self { hops: limits.receive.hops, allowance }
    }
}

impl Settings {
    /// `directory` is that of `config`.
    pub fn new(config: &Config, directory: Arc<Directory>, logins: Arc<Logins>) -> Self {
        let limits = config.mail_listeners().map(|listener| limits(config, listener).map(Into::into));
        let networks = config.relay.networks.0.iter().map(|network| (*network, true)).collect();
        let own = config.networks.iter().flat_map(Network::each).map(|(network, own)| (network, own.relay));
        let auth = config.mail_listeners().map(|listener| auth(config, listener)).collect();
        let relay_domains = config.relay.domains.iter().map(|domain| domain.to_lowercase()).collect();
        let rates_by_login = config.auth.rates_by_login(&directory).expect("checked with the configuration");
        let names = [&config.host_name].into_iter().chain(&config.checks.authserv_ids);
        let own_services: Arc<[Arc<str>]> = names.map(|name| service_id(name)).collect();
        Self {
            host_name: config.host_name.clone(),
            authserv_id: Arc::clone(&own_services[0]),
            checks: config.checks.clone(),
            treatment: TreatmentRules::new(&config.checks),
            own_services,
            mail: config.storage.mail.clone(),
            first_password_mail: config.takes_first_password().then(|| config.storage.mail.clone()),
            events: config.events.enabled.then(|| config.events.dir.clone()),
            search: config.search.index.then(|| config.search.dir.clone()),
            directory,
            logins,
            rates_by_login,
            login_rates: config.auth.recipient_rate.clone(),
            local_rates: config.auth.local_recipient_rate.clone(),
            auth,
            relay_of_network: ByNetwork::new(None, own.collect()),
            relay_of_listener: config.mail_listeners().map(|listener| listener.relay).collect(),
            relay_networks: ByNetwork::new(false, networks),
            relay_local: config.relay.local_users,
            relay_domains,
            quota_is_set: config.quota.is_set(&config.domains),
            quota_is_permanent: config.quota.permanent,
            tenants: Tenants::new(config),
            own_domains: OwnDomains::new(config),
            maps: Maps::new(&config.relay),
            signers: Arc::default(),
            returned_bytes: config.relay.returned_bytes,
            limits: limits.collect(),
            local: config.limits.clone().into(),
        }
    }

    /// Replaces the signing keys.
    pub fn signing(self, signers: Arc<DomainSigners>) -> Self {
        Self { signers, ..self }
    }

    /// True if mail of this session is relayed to any domain.
    pub fn is_trusted(&self, session: &Session) -> bool {
        let by_login = || self.relay_said(session).is_none() && self.login(session).is_some();
        self.is_trusted_client(session) || by_login()
    }

    /// True if local users may send to any domain.
    pub fn lets_programs_relay(&self) -> bool {
        self.relay_local
    }

    /// True if mail of this session originates here: from a login, a local program or an HTTP request.
    pub fn is_trusted_client(&self, session: &Session) -> bool {
        match session.peer {
            Peer::Local { .. } => self.relay_local,
            // Who has made the token knows its scope.
            Peer::Token { .. } => true,
            _ => self.relay_said(session).unwrap_or_else(|| *self.relay_networks.get(session.peer.ip())),
        }
    }

    /// True if mail of this session is written here: by a login, a local program or an HTTP request.
    pub fn is_submission(&self, session: &Session) -> bool {
        matches!(session.peer, Peer::Local { .. } | Peer::Token { .. }) || self.login(session).is_some()
    }

    /// True if mail of this session is signed, should its author be of a domain with a key. A server that hands over by LMTP has mail of strangers.
    fn may_sign(&self, session: &Session) -> bool {
        let is_from_here = match session.peer {
            Peer::Local { .. } => self.signers.signs_local(),
            _ => session.protocol != Protocol::Lmtp && (self.is_submission(session) || self.is_trusted_client(session)),
        };
        is_from_here && !self.signers.is_empty()
    }

    /// True if the client may be anybody, so its mail is checked. The address is meaningless for mail from this
    /// machine.
    pub fn is_checked(&self, session: &Session) -> bool {
        let is_of_network = session.protocol != Protocol::Lmtp && matches!(session.peer, Peer::Tcp { .. });
        let is_remote = session.peer.ip().is_some_and(|ip| !ip.to_canonical().is_loopback());
        let is_known = self.is_submission(session) || self.is_trusted_client(session);
        self.checks.enabled && is_of_network && is_remote && !is_known
    }

    /// Rules for the headers of this session's mail.
    pub fn header_rules(&self, session: &Session) -> HeaderRules {
        let is_submission = self.is_submission(session);
        let reads_labels = self.is_trusted_client(session);
        // A server of ours hands over by LMTP or relays through us, and may have checked the mail.
        let is_checked = session.protocol == Protocol::Lmtp || reads_labels && !is_submission;
        HeaderRules {
            fields: self.tenants.fields().filter(|_| is_submission || reads_labels).cloned().unwrap_or_default(),
            reads_labels,
            canonical: self.maps.canonical().filter(|_| self.is_trusted(session)).cloned(),
            is_submission,
            may_sign: self.may_sign(session),
            verifies: false,
            foreign_results: (!is_checked).then(|| Arc::clone(&self.own_services)),
        }
    }

    /// The setting of the client's network, else of the listener.
    fn relay_said(&self, session: &Session) -> Option<bool> {
        match session.peer {
            Peer::Local { .. } | Peer::Token { .. } => None,
            _ => self.relay_of_network.get(session.peer.ip()).or(self.relay_of_listener[session.listener]),
        }
    }

    /// True if this session must log in before sending mail, and has not.
    pub fn lacks_login(&self, session: &Session) -> bool {
        let needs_none = matches!(session.peer, Peer::Local { .. } | Peer::Token { .. });
        !needs_none && self.auth_mode(session) == ListenerAuth::Required && self.login(session).is_none()
    }

    /// The mode of AUTH for the client of a session.
    pub fn auth_mode(&self, session: &Session) -> ListenerAuth {
        *self.auth[session.listener].get(session.peer.ip())
    }

    /// The login of a session, with its name. A login removed by a reload, or with another password, does not count.
    pub fn login<'a>(&'a self, session: &'a Session) -> Option<(&'a str, &'a Login)> {
        let name = &*session.identity.as_ref()?.authorization_id;
        let login = self.logins.get(name).filter(|login| session.state.as_ref() == Some(&login.secrets));
        login.map(|login| (name, login))
    }

    /// The account charged for recipients of this session, and its limit. `None`: unlimited.
    pub fn quota<'a>(&'a self, session: &'a Session) -> Option<(Cow<'a, str>, &'a [Rate])> {
        let (account, Rates(rates)): (Cow<'a, str>, _) = match &session.peer {
            Peer::Local { .. } => (session.peer.to_string().into(), &self.local_rates),
            // No login has a blank in its name.
            Peer::Token { name, .. } => (format!("token {name}").into(), &self.login_rates),
            Peer::Tcp { .. } | Peer::Unix => {
                let (name, _) = self.login(session)?;
                (name.into(), self.rates_by_login.get(name).unwrap_or(&self.login_rates))
            }
        };
        (!rates.is_empty()).then_some((account, &**rates))
    }

    /// True if mail of this session for a foreign domain is relayed.
    pub fn may_relay(&self, session: &Session, domain: &str) -> bool {
        self.is_trusted(session) || self.relay_domains.iter().any(|open| open.eq_ignore_ascii_case(domain))
    }

    /// Limits of the listener of `session`, and of its client's network.
    pub fn limits(&self, session: &Session) -> MessageLimits {
        match session.peer {
            Peer::Local { .. } | Peer::Token { .. } => self.local,
            _ => *self.limits[session.listener].get(session.peer.ip()),
        }
    }
}

/// The folded form of a name of this service.
fn service_id(name: &str) -> Arc<str> {
    folded_domain(name).unwrap_or(Cow::Borrowed(name)).into()
}

fn auth(config: &Config, listener: &Listener) -> ByNetwork<ListenerAuth> {
    let networks = config.networks.iter().flat_map(Network::each);
    let networks = networks.map(|(network, own)| (network, listener.auth_mode(Some(own)))).collect();
    ByNetwork::new(listener.auth_mode(None), networks)
}

/// Limits of the sessions of a listener, by the client's network.
fn limits(config: &Config, listener: &Listener) -> ByNetwork<LimitSection> {
    let limits = listener.limits.over(&config.limits);
    let networks = config.networks.iter().flat_map(Network::each);
    let networks = networks.map(|(network, own)| (network, own.limits.over(&limits))).collect();
    ByNetwork::new(limits, networks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks if clients at these addresses may relay, at a listener of the configuration.
    fn check(config: &str, listener: usize, expected: &[(Option<&str>, bool)]) {
        let config = Config::parse(std::path::Path::new("x"), config).unwrap();
        let settings = Settings::new(&config, Arc::new(config.directory()), Arc::default());
        for (ip, may) in expected {
            let session = Session {
                id: 1,
                listener,
                peer: ip.map_or(Peer::Unix, |ip| {
                    let remote = std::net::SocketAddr::new(ip.parse().unwrap(), 40_000);
                    Peer::Tcp { remote, local: remote }
                }),
                helo: None,
                protocol: Protocol::Smtp,
                extended: true,
                tls: None,
                identity: None,
                state: None,
            };
            assert_eq!(settings.may_relay(&session, "other.example"), *may, "listener {listener}, {ip:?}");
            assert!(settings.may_relay(&session, "Open.example"));
        }
    }

    #[test]
    fn relay_rights_are_of_the_network_then_listener_then_relay() {
        let all = "[[listener]]\naddress = '127.0.0.1:1'\n[[listener]]\nunix = 's'\nrelay = true\n\
                   [[listener]]\naddress = '127.0.0.1:3'\nrelay = false\n\
                   [[listener]]\naddress = '0.0.0.0:4'\nrelay = true\nallow = ['10.0.0.0/8', '192.0.2.0/24']\n\
                   [[network]]\ncidr = '10.1.0.0/16'\nrelay = true\n[[network]]\ncidr = '10.1.1.0/24'\nrelay = false\n\
                   [[network]]\ncidr = '10.1.1.9'\n[relay]\nnetworks = ['192.0.2.0/24']\ndomains = ['open.example']\n";
        let of = [Some("192.0.2.1"), Some("198.51.100.1"), Some("127.0.0.1"), None];
        let of_networks = [Some("10.1.0.1"), Some("::ffff:10.1.0.1"), Some("10.1.1.1")];
        let with = |may: [bool; 4]| of.into_iter().zip(may).collect::<Vec<_>>();
        check(all, 0, &with([true, false, false, false]));
        check(all, 1, &with([true; 4]));
        check(all, 2, &with([false; 4]));
        check(all, 3, &with([true; 4]));
        for (listener, else_may) in [(0, false), (1, true), (2, false), (3, true)] {
            check(all, listener, &of_networks.into_iter().zip([true, true, false]).collect::<Vec<_>>());
            // Its own network says nothing, and only that one counts.
            check(all, listener, &[(Some("10.1.1.9"), else_may)]);
        }
        let nothing = "[relay]\ndomains = ['open.example']\n";
        check(nothing, 0, &with([false; 4]));
    }
}
