//! `[relay]` of the configuration.

use std::path::PathBuf;
use std::sync::Arc;

use posthaste_net::section::Networks;
use posthaste_smtp::client::EightBit;
use posthaste_units::check_bounds;
use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::maps::{self, MapsSection, RecipientsSection};
use super::queue_limit::QueueLimits;
use super::route_section::{RouteSection, TlsConfigs, smtp_port, system_authorities};
use super::routing;
use super::source_section::{Mistake, PoolSection, SourceSection, TlsSection};
use super::tenants::{self, TenantSection};
use super::{BounceSection, FixedRoute, NoticeSection, ReturnPathSection, RouteError, Routing};
use posthaste_notify::secrets::{SecretFileError, Secrets};
use posthaste_queue::Schedules;
use posthaste_shaping::{ShapingError, ShapingRules};

/// Mail to other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Clients whose mail to any domain is taken, such as `["127.0.0.1", "10.0.0.0/8"]`.
    pub networks: Networks,
    /// Mail of local users through `posthaste sendmail` is taken for any domain.
    pub local_users: bool,
    /// Domains for which mail is taken from everybody and sent on.
    pub domains: Vec<String>,
    /// Recipients of a domain in `domains`: [below](#recipients).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<RecipientsSection>,
    /// Rewriting of addresses, and copies of mail. Default: [below](#maps).
    pub maps: MapsSection,
    /// Customers on whose account mail is sent: [below](#tenants).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenant: Vec<TenantSection>,
    /// The header field in which trusted clients name the tenant of a message, such as `"X-Tenant"`; it is removed. Who
    /// is trusted: [relay.md](relay.md#tenants-and-campaigns).
    pub tenant_header: String,
    /// Like `tenant_header`, for the campaign.
    pub campaign_header: String,
    /// Like `tenant_header`, for the pool of sources ([sources.md](sources.md#which-source)).
    pub pool_header: String,
    /// The port of mail hosts.
    pub port: u16,
    /// Connections are encrypted where the other host offers it; its certificate is not verified.
    pub tls: bool,
    /// The [MTA-STS](relay.md#mta-sts) policies of recipient domains count: one in the mode `enforce` has mail go to
    /// verified hosts alone. Not with `tls` as `false`. A change needs a restart.
    pub mta_sts: bool,
    /// The authorities that are trusted for MTA-STS, in PEM.
    pub mta_sts_ca_file: PathBuf,
    /// Mail with octets above 127 for a host that does not offer 8BITMIME: `"send"` as it is, or `"refuse"`: it is
    /// given up.
    pub eight_bit: EightBitMail,
    /// Connections at a time.
    #[serde(deserialize_with = "values::count")]
    pub connections: usize,
    /// Connections at a time to the same set of mail hosts. The shards of a cluster share it.
    #[serde(deserialize_with = "values::count")]
    pub connections_per_site: usize,
    /// Messages that one connection carries.
    #[serde(deserialize_with = "values::count")]
    pub messages_per_connection: u64,
    /// Recipients that go in one transaction.
    #[serde(deserialize_with = "values::count")]
    pub recipients_per_message: usize,
    /// Recipients at other hosts that may wait; mail for more is refused with 452 4.3.1
    /// ([overload.md](overload.md#a-full-queue)). Ten million take about 400 MB of memory.
    #[serde(deserialize_with = "values::count")]
    pub queue_recipients: u64,
    /// Messages that are kept in memory until their first attempt; above it they are read from the spool. Intake slows
    /// before that ([overload.md](overload.md#delivery-before-intake)).
    #[serde(deserialize_with = "values::bytes")]
    pub memory_bytes: u64,
    /// Pause after a domain's mail hosts have [failed](shaping.md#hosts-that-fail) several times in a row; doubled with
    /// each further failure, at most half an hour.
    #[serde(deserialize_with = "values::secs")]
    pub unreachable_secs: u64,
    /// A notification returns a message up to this size whole, of a larger one the header.
    #[serde(deserialize_with = "values::bytes")]
    pub returned_bytes: u64,
    /// When recipients are tried again and given up. Default: [below](#schedule).
    pub schedule: Schedules,
    /// Classes of replies, and the suppression list. Default: [below](#bounces).
    pub bounces: BounceSection,
    /// Notices about mail that cannot be delivered. Default: [below](#notices).
    pub notices: NoticeSection,
    /// Signs the senders of outgoing mail: [below](#return-path).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_path: Option<ReturnPathSection>,
    /// Files with limits for destinations, tenants and domains: [shaping.md](shaping.md). A later file overrides the
    /// earlier.
    pub shaping: Vec<PathBuf>,
    /// Rewrites the senders of forwarded mail: [below](#forwarded-mail).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srs: Option<SrsSection>,
    /// Fixed next hops: [below](#routes).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<RouteSection>,
    /// Encryption for recipient domains: [below](#tls-policies).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tls_policy: Vec<TlsSection>,
    /// Addresses that mail is sent from: [below](#sources-and-pools).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<SourceSection>,
    /// Sets of sources: [below](#sources-and-pools).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<PoolSection>,
}

/// The Sender Rewriting Scheme.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SrsSection {
    /// The domain of the rewritten senders. Its mail has to come here. Default: (required).
    pub domain: String,
    /// A file with secrets of at least 8 bytes, one on each line. The first signs, all are valid. Default: (required).
    pub secret_file: PathBuf,
}

impl SrsSection {
    /// Reads the secrets.
    ///
    /// # Errors
    /// The file cannot be read, or has none.
    pub fn secrets(&self) -> Result<Secrets, SecretFileError> {
        Secrets::read(&self.secret_file)
    }
}

impl Table for Section {
    const NAME: &str = "relay";
}

impl Default for Section {
    fn default() -> Self {
        Self {
            networks: Networks::default(),
            local_users: true,
            domains: Vec::new(),
            recipients: Vec::new(),
            maps: MapsSection::default(),
            tenant: Vec::new(),
            tenant_header: String::new(),
            campaign_header: String::new(),
            pool_header: String::new(),
            port: smtp_port(),
            tls: true,
            mta_sts: true,
            mta_sts_ca_file: system_authorities(),
            eight_bit: EightBitMail::default(),
            connections: 1000,
            connections_per_site: 20,
            messages_per_connection: 1000,
            recipients_per_message: 100,
            queue_recipients: super::queue_limit::RECIPIENTS,
            memory_bytes: 256 << 20,
            unreachable_secs: 60,
            returned_bytes: 64 << 10,
            schedule: Schedules::default(),
            bounces: BounceSection::default(),
            notices: NoticeSection::default(),
            return_path: None,
            shaping: Vec::new(),
            srs: None,
            route: Vec::new(),
            tls_policy: Vec::new(),
            source: Vec::new(),
            pool: Vec::new(),
        }
    }
}

impl Section {
    /// True if the relay takes mail for other hosts.
    pub fn is_used(&self) -> bool {
        !self.networks.0.is_empty() || !self.domains.is_empty()
    }

    /// The settings in force once a running server has read `new`. Clients, tenants, routes, TLS policies, sources,
    /// pools, classes of replies and notices change; the rest stays.
    pub fn merged_with(&self, new: &Self) -> Self {
        Self {
            shaping: new.shaping.clone(),
            route: new.route.clone(),
            tls_policy: new.tls_policy.clone(),
            source: new.source.clone(),
            pool: new.pool.clone(),
            networks: new.networks.clone(),
            local_users: new.local_users,
            domains: new.domains.clone(),
            queue_recipients: new.queue_recipients,
            recipients: new.recipients.clone(),
            maps: new.maps.clone(),
            tenant: new.tenant.clone(),
            tenant_header: new.tenant_header.clone(),
            campaign_header: new.campaign_header.clone(),
            pool_header: new.pool_header.clone(),
            bounces: self.bounces.reloaded(&new.bounces),
            notices: new.notices.clone(),
            ..self.clone()
        }
    }

    /// Validates the section.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        check_bounds(
            Self::NAME,
            &[
                ("port", self.port.into(), 1, 65_535),
                ("connections", self.connections as u64, 1, 100_000),
                ("connections_per_site", self.connections_per_site as u64, 1, 100_000),
                ("messages_per_connection", self.messages_per_connection, 1, u64::MAX),
                ("recipients_per_message", self.recipients_per_message as u64, 1, 65_535),
                ("queue_recipients", self.queue_recipients, 1, 1 << 30),
                ("memory_bytes", self.memory_bytes, 0, 1 << 40),
                ("unreachable_secs", self.unreachable_secs, 1, 1800),
                ("returned_bytes", self.returned_bytes, 0, 64 << 20),
            ],
        )?;
        self.schedule.default.check("relay.schedule.default")?;
        for rule in &self.schedule.rules {
            rule.schedule.check("relay.schedule.rules")?;
        }
        self.bounces.check()?;
        self.notices.check()?;
        if let Some((key, mistake)) = self.return_path.as_ref().and_then(ReturnPathSection::mistake) {
            return Err(Problem::new(vec![Self::NAME.into(), "return_path".into(), key.into()], mistake));
        }
        self.check_routing()?;
        self.maps.check(&[Self::NAME.into(), "maps".into()])?;
        maps::check_recipients(&self.recipients, &self.domains, &[Self::NAME.into(), "recipients".into()])?;
        tenants::check(&self.tenant, &[Self::NAME.into(), "tenant".into()])?;
        tenants::check_headers(&[
            ("tenant_header", &self.tenant_header),
            ("campaign_header", &self.campaign_header),
            ("pool_header", &self.pool_header),
        ])?;
        if let Some(srs) = self.srs.as_ref().filter(|srs| !posthaste_message::address::is_domain(&srs.domain)) {
            let at = vec![Self::NAME.into(), "srs".into(), "domain".into()];
            return Err(Problem::new(at, format!("`{}` is not a domain", srs.domain)));
        }
        for (index, domain) in self.domains.iter().enumerate() {
            if posthaste_message::address::is_domain(domain) && domain.is_ascii() {
                continue;
            }
            let at = vec![Self::NAME.into(), "domains".into(), index.into()];
            return Err(Problem::new(at, "not a domain in letters, digits and hyphens, with dots between"));
        }
        Ok(())
    }

    /// Bounds of waiting mail.
    pub fn queue_limits(&self) -> QueueLimits {
        QueueLimits::new(self.queue_recipients, &self.tenant)
    }

    /// Reads the limits in the files of `shaping` for one of `shares` relays: see [`ShapingRules::share`].
    ///
    /// # Errors
    /// See [`ShapingError`]; also for limits of an unknown source, and for connections below `shares`.
    pub fn shaping_rules(&self, shares: u32) -> Result<Arc<ShapingRules>, ShapingError> {
        let rules = ShapingRules::read(&self.shaping)?;
        rules.check_sources(&self.source_names())?;
        rules.share(shares).map(Arc::new)
    }

    /// Names of all sources, last the one for mail without a pool.
    pub fn source_names(&self) -> Vec<&str> {
        self.source.iter().map(|source| &*source.name).chain([routing::DEFAULT]).collect()
    }

    fn check_routing(&self) -> Result<(), Problem> {
        let at = |table: &str, index: usize, key: &str| vec![Self::NAME.into(), table.into(), index.into(), key.into()];
        for (index, route) in self.route.iter().enumerate() {
            if let Some((key, mistake)) = route.mistake() {
                return Err(Problem::new(at("route", index, key), mistake));
            }
            let pool = route.pool.as_ref().filter(|name| self.pool.iter().all(|pool| pool.name != **name));
            if let Some(name) = pool {
                return Err(Problem::new(at("route", index, "pool"), format!("there is no pool `{name}`")));
            }
        }
        let sources = self.source.iter().map(|source| source.mistake(&self.source));
        let pools = self.pool.iter().map(|pool| pool.mistake(&self.pool, &self.source));
        let policies = self.tls_policy.iter().map(TlsSection::mistake);
        let named = |table| move |(index, mistake): (usize, Option<Mistake>)| Some((table, index, mistake?));
        let sources = sources.enumerate().filter_map(named("source"));
        let pools = pools.enumerate().filter_map(named("pool"));
        let policies = policies.enumerate().filter_map(named("tls_policy"));
        match sources.chain(pools).chain(policies).next() {
            Some((table, index, (key, mistake))) => Err(Problem::new(at(table, index, key), mistake)),
            None => Ok(()),
        }
    }

    /// Routes, rules for TLS, sources and pools in the relay's form. Reads files of passwords and certificates.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn routing(&self) -> Result<Routing, RouteError> {
        let mut configs = TlsConfigs::default();
        Ok(Routing {
            routes: self.routes(&mut configs)?,
            tls: self.tls_policy.iter().map(|rule| rule.read(&mut configs)).collect::<Result<_, _>>()?,
            sources: self.source.iter().map(SourceSection::read).collect::<Result<_, _>>()?,
            pools: self.pool.iter().map(PoolSection::read).collect(),
        })
    }

    fn routes(&self, configs: &mut TlsConfigs) -> Result<Vec<Arc<FixedRoute>>, RouteError> {
        self.route.iter().map(|route| route.read(self.tls, configs).map(Arc::new)).collect()
    }
}

/// Handling of mail with octets above 127 for hosts that do not offer 8BITMIME.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EightBitMail {
    /// The mail is sent unchanged.
    #[default]
    Send,
    /// The mail is given up.
    Refuse,
}

impl From<EightBitMail> for EightBit {
    fn from(of_section: EightBitMail) -> Self {
        match of_section {
            EightBitMail::Send => Self::Send,
            EightBitMail::Refuse => Self::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use posthaste_smtp::sasl::Credentials;

    use super::*;

    #[test]
    fn a_section_is_read_and_checked() {
        let text = "networks = ['10.0.0.0/8']\ndomains = ['b.example']\n[schedule.default]\nmax_age_secs = '2 days'\n\
                    [[route]]\ndomain = 'X.example'\nhost = 'hub.example'\nport = 587\n[[route]]\nhost = '[192.0.2.7]'\n";
        let section: Section = toml::from_str(text).unwrap();
        assert!(section.is_used() && section.check().is_ok());
        let routes = section.routing().unwrap().routes;
        assert_eq!((&*routes[0].domain, routes[0].port, routes[1].port), ("x.example", 587, 25));
        assert_eq!(toml::from_str::<Section>(&toml::to_string(&section).unwrap()).unwrap(), section);
        assert!(!Section::default().is_used() && Section::default().check().is_ok());
    }

    #[test]
    fn a_password_asks_for_a_verified_host() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("password");
        let written = |more: &str| {
            let text = format!(
                "[[route]]\nhost = 'a.example'\nport = 465\nusername = 'ann'\npassword_file = '{}'\n{more}",
                file.display()
            );
            let section: Section = toml::from_str(&text).unwrap();
            section.check().unwrap();
            section.routing().map(|routing| routing.routes)
        };
        assert!(matches!(written("tls = 'required'"), Err(RouteError::Password { .. })));
        fs::write(&file, "pass word\n").unwrap();
        let route = written("tls = 'required'").unwrap().remove(0);
        assert_eq!(route.auth, Some(Credentials::new("ann", "pass word")));
        assert_eq!(route.manner(), " encrypted as ann");
        assert!(route.tls.as_ref().unwrap().is_implicit);
        assert_eq!(written("tls = 'off'").unwrap()[0].manner(), " in the clear as ann");
        // Without trusted certificates there is no route, rather than one that trusts anybody.
        assert!(matches!(written("ca_file = '/nonexistent'"), Err(RouteError::Tls(_))));
    }

    #[test]
    fn mistakes_are_refused() {
        for text in ["network = []", "[[route]]\nport = 1", "tls = 'yes'", "networks = ['all']"] {
            assert!(toml::from_str::<Section>(text).is_err(), "{text}");
        }
        for text in [
            "port = 0",
            "connections = 0",
            "domains = ['a b']",
            "[[route]]\nhost = ''",
            "[[route]]\nhost = 'a.example'\nusername = 'ann'",
            "[[route]]\nhost = 'a.example'\nusername = 'ann'\npassword_file = 'x'\ntls = 'opportunistic'",
            "[[route]]\nhost = 'a.example'\nimplicit_tls = true\ntls = 'off'",
            "[schedule.default]\nfirst_secs = 0",
            "[[tenant]]\nname = 'a b'",
            "[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'a'",
            "[[tenant]]\nname = 'a'\nsender_domains = ['x.example', 'X.example']",
            "[[tenant]]\nname = 'a'\nsender_domains = ['..x.example']",
            "[[tenant]]\nname = 'a'\nsenders = ['x.example']",
            "[[tenant]]\nname = 'a'\nsenders = ['a@x.example']\n[[tenant]]\nname = 'b'\nsenders = ['A@x.example']",
            "[[tenant]]\nname = 'a'\ncampaigns = { 'a b' = 'x' }",
            "[[tenant]]\nname = 'a'\ncampaigns = { '..x.example' = 'x' }",
            "[[tenant]]\nname = 'a'\ncampaigns = { 'x.example' = 'a b' }",
            "[[tenant]]\nname = 'a'\ncampaigns = { 'x.example' = 'x', 'X.example' = 'y' }",
            "tenant_header = 'X:'",
            "tenant_header = 'X-A'\ncampaign_header = 'x-a'",
            "campaign_header = 'X-A'\npool_header = 'x-a'",
            "pool_header = 'X A'",
            "[bounces]\nsuppress_secs = 99999999999",
            "[return_path]\ndomain = 'a b'\nsecret_file = 'x'",
        ] {
            assert!(toml::from_str::<Section>(text).unwrap().check().is_err(), "{text}");
        }
    }
}
