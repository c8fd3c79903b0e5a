//! The whole configuration: a field for each section.

use std::collections::BTreeSet;
use std::path::PathBuf;

use posthaste_delivery::local::Storage;
use posthaste_directory::{Directory, Domain};
use posthaste_dns::Settings as Dns;
use posthaste_events::Section as Events;
use posthaste_message::address::is_domain;
use posthaste_pickup::Section as Pickup;
use posthaste_relay::sender::Section as Relay;
use posthaste_search::Section as Search;
use posthaste_smtp::section::Policy;
use posthaste_transport::Section as Transport;
use serde::{Deserialize, Serialize};

use super::acme::{Acme, unsigned};
use super::auth::{Auth, ListenerAuth};
use super::checks::Checks;
use super::cluster::{self, Cluster};
use super::dkim::Dkim;
use super::http::Http;
use super::identity::UserIdentity;
use super::imap::Imap;
use super::limits::LimitSection;
use super::listeners::{Listener, Network, default_listeners};
use super::log::Log;
use super::mailstore::MailstoreSection;
use super::owners::Rights;
use super::quota::Quota;
use super::tls::Tls;
use super::values;
use super::webhooks::Webhook;

/// The name of each mailbox, within the directory of its user.
pub const MAILDIR: &str = "Maildir";
/// The name of the directory of the table of mailboxes, within `storage.data`.
const MAILSTORE: &str = "mailstore";

/// The whole configuration. See `docs/configuration.md` for every key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The server's name in the greeting and in Received fields. Default: the machine's name, or `localhost`.
    #[serde(default = "machine_host_name")]
    pub host_name: String,
    /// The server switches to this user (name or number) after binding its sockets; it must be started as root. Default: the user that starts the server.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub user: Option<String>,
    /// The server switches to this group; only with `user`. Default: the primary group of `user`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub group: Option<String>,
    /// Directories and limits of storage.
    #[serde(default, deserialize_with = "values::table")]
    pub storage: Storage,
    /// Limits of mail, sessions and memory.
    #[serde(default, deserialize_with = "values::table")]
    pub limits: LimitSection,
    /// Treatment of messages that break the rules for lines.
    #[serde(default, deserialize_with = "values::table")]
    pub policy: Policy,
    /// Certificates of listeners without their own.
    #[serde(default, deserialize_with = "values::table")]
    pub tls: Tls,
    /// Certificates from an authority.
    #[serde(default, deserialize_with = "values::table")]
    pub acme: Acme,
    /// Logins.
    #[serde(default, deserialize_with = "values::table")]
    pub auth: Auth,
    /// Storage limits of accounts.
    #[serde(default, deserialize_with = "values::table")]
    pub quota: Quota,
    /// Folders of accounts.
    #[serde(default, deserialize_with = "values::table")]
    pub mailstore: MailstoreSection,
    /// Settings that all listeners for IMAP share.
    #[serde(default, deserialize_with = "values::table")]
    pub imap: Imap,
    /// Settings that all HTTP listeners share.
    #[serde(default, deserialize_with = "values::table")]
    pub http: Http,
    /// Destinations of mail: programs, files and LMTP servers.
    #[serde(default, deserialize_with = "values::table")]
    pub transport: Transport,
    /// Mail to other hosts.
    #[serde(default, deserialize_with = "values::table")]
    pub relay: Relay,
    /// Checks of mail from strangers.
    #[serde(default, deserialize_with = "values::table")]
    pub checks: Checks,
    /// Signatures of mail.
    #[serde(default, deserialize_with = "values::table")]
    pub dkim: Dkim,
    /// DNS settings.
    #[serde(default, deserialize_with = "values::table")]
    pub dns: Dns,
    /// The cluster that this server is a node of.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "cluster::section")]
    pub cluster: Option<Cluster>,
    /// The search index.
    #[serde(default, deserialize_with = "values::table")]
    pub search: Search,
    /// The event log.
    #[serde(default, deserialize_with = "values::table")]
    pub events: Events,
    /// Mail from programs on this machine.
    #[serde(default, deserialize_with = "values::table")]
    pub pickup: Pickup,
    /// The log.
    #[serde(default, deserialize_with = "values::table")]
    pub log: Log,
    /// Where clients connect. None given: on the loopback address SMTP on port 2525, HTTP on 8025, IMAP on 1143 and POP3 on 1110.
    #[serde(default, rename = "listener", deserialize_with = "values::tables")]
    pub listeners: Vec<Listener>,
    /// Clients for which other limits and policies apply.
    #[serde(default, rename = "network", deserialize_with = "values::tables", skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// HTTP servers that receive events.
    #[serde(default, rename = "webhook", deserialize_with = "values::tables", skip_serializing_if = "Vec::is_empty")]
    pub webhooks: Vec<Webhook>,
    /// What we receive mail for. None given: any user at `localhost` and at the host name.
    #[serde(default, rename = "domain", deserialize_with = "values::tables")]
    pub domains: Vec<Domain>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host_name: machine_host_name(),
            user: None,
            group: None,
            storage: Storage::default(),
            limits: LimitSection::default(),
            policy: Policy::default(),
            tls: Tls::default(),
            acme: Acme::default(),
            auth: Auth::default(),
            quota: Quota::default(),
            mailstore: MailstoreSection::default(),
            imap: Imap::default(),
            http: Http::default(),
            transport: Transport::default(),
            relay: Relay::default(),
            checks: Checks::default(),
            dkim: Dkim::default(),
            dns: Dns::default(),
            cluster: None,
            search: Search::default(),
            events: Events::default(),
            pickup: Pickup::default(),
            log: Log::default(),
            listeners: Vec::new(),
            networks: Vec::new(),
            webhooks: Vec::new(),
            domains: Vec::new(),
        }
        .completed()
    }
}

impl Config {
    /// Tenants of the configuration. Logins and a header field may name others.
    pub fn tenants(&self) -> BTreeSet<&str> {
        let sections = self.relay.tenant.iter().map(|section| &*section.name);
        let listeners = self.listeners.iter().filter_map(|listener| listener.tenant.as_deref());
        let networks = self.networks.iter().filter_map(|network| network.tenant.as_deref());
        sections.chain(listeners).chain(networks).collect()
    }

    /// The user that the server switches to after binding its listeners, if configured.
    ///
    /// # Errors
    /// The wrong key, and the mistake.
    pub fn identity(&self) -> Result<Option<UserIdentity>, (&'static str, String)> {
        match (&self.user, &self.group) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(("group", "only with `user`".to_owned())),
            (Some(user), group) => UserIdentity::of(user, group.as_deref()).map(Some),
        }
    }

    /// Rights of the user that the server switches to, if the configuration names one.
    ///
    /// # Panics
    /// When the configuration was not checked.
    pub fn rights(&self) -> Option<Rights> {
        let identity = self.identity().unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
        identity.as_ref().map(Rights::of)
    }

    /// The directory of mailboxes, aliases and routes.
    ///
    /// # Panics
    /// If the configuration was not made by a checking constructor, such as [`Config::parse`].
    pub fn directory(&self) -> Directory {
        Directory::new(&self.domains, MAILDIR)
            .unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"))
    }

    /// The directory of the table of mailboxes.
    pub fn mailstore_dir(&self) -> PathBuf {
        self.storage.data.join(MAILSTORE)
    }

    /// True if any client may send mail to other hosts.
    pub fn lets_clients_relay(&self) -> bool {
        let of_listeners = self.mail_listeners().map(|listener| listener.relay);
        let mut own = of_listeners.chain(self.networks.iter().map(|network| network.relay));
        self.relay.is_used() || self.has_logins() || own.any(|relay| relay == Some(true))
    }

    /// Every transport that mail can go to, without duplicates.
    pub fn transports(&self) -> Vec<posthaste_directory::Transport> {
        let mut all: Vec<_> = self.domains.iter().flat_map(Domain::transports).collect();
        all.sort_by(|a, b| a.text().cmp(b.text()));
        all.dedup();
        all
    }

    /// Listeners that receive mail.
    pub fn mail_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.protocol.of_mail().is_some())
    }

    /// Listeners of the API and the page.
    pub fn http_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.is_http())
    }

    /// True if no listener is configured: then all but the SMTP listener take the next free port if theirs is busy.
    pub fn has_default_listeners(&self) -> bool {
        let mut default = default_listeners();
        default.iter_mut().for_each(|listener| listener.complete_tls(&self.tls, self.acme.enabled));
        self.listeners == default
    }

    /// True if neither `[auth]` nor a listener is configured: then the server makes a password for reading mail.
    pub fn takes_first_password(&self) -> bool {
        self.has_default_listeners() && self.auth.file().is_none()
    }

    /// Listeners of IMAP and POP3.
    pub fn reading_listeners(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.is_for_reading())
    }

    /// True if clients can log in anywhere.
    pub fn has_logins(&self) -> bool {
        self.listeners.iter().any(|listener| listener.auth_mode(None) != ListenerAuth::Off)
    }

    /// Host names that need an ACME certificate, in lower case and unique, the host's own first. Empty if `[acme]` is
    /// not enabled.
    pub fn acme_names(&self) -> Vec<String> {
        if !self.acme.enabled {
            return Vec::new();
        }
        let of_domains = self.domains.iter().flat_map(|domain| {
            ["mta-sts", "autoconfig"].map(|service| format!("{service}.{}", domain.name)).into_iter()
        });
        // The domains of a configuration that names none are of this machine alone.
        let of_domains = of_domains.filter(|name| unsigned(name).is_none());
        let mut names: Vec<String> = Vec::new();
        for name in [self.host_name.clone()].into_iter().chain(of_domains).chain(self.acme.names.iter().cloned()) {
            let name = name.to_ascii_lowercase();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Directory of certificates, the account and failures.
    pub fn acme_dir(&self) -> PathBuf {
        self.storage.data.join("acme")
    }

    /// Number of relays among which limits of outgoing mail are divided: one for each shard of all nodes.
    pub fn limit_shares(&self) -> u32 {
        let shards = self.cluster.as_ref().map_or(1, |cluster| cluster.shards.len());
        u32::try_from(shards).expect("there are fewer than 32,768 shards").max(1)
    }

    /// Concurrent connections of a relay to the same set of mail hosts.
    pub fn site_connections(&self) -> usize {
        self.relay.connections_per_site / self.limit_shares() as usize
    }

    /// The configuration as TOML, with every key.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every value of a configuration has a TOML form")
    }

    /// The configuration as JSON, with every key.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every value of a configuration has a JSON form")
    }

    /// Fills in defaults that depend on other keys.
    pub(super) fn completed(mut self) -> Self {
        self.storage.complete();
        if self.search.dir.as_os_str().is_empty() {
            self.search.dir = self.storage.data.join("search");
        }
        if self.events.dir.as_os_str().is_empty() {
            self.events.dir = self.storage.data.join("events");
        }
        if self.dkim.dir.as_os_str().is_empty() {
            self.dkim.dir = self.storage.data.join("dkim");
        }
        if self.pickup.directory.as_os_str().is_empty() {
            self.pickup.directory = self.storage.data.join("pickup");
        }
        if self.pickup.origin.is_empty() {
            self.pickup.origin.clone_from(&self.host_name);
        }
        if self.listeners.is_empty() {
            self.listeners.extend(default_listeners());
        }
        let has_acme = self.acme.enabled;
        self.listeners.iter_mut().for_each(|listener| listener.complete_tls(&self.tls, has_acme));
        if self.domains.is_empty() {
            self.domains.push(Domain::open_to_any("localhost"));
            if !self.host_name.eq_ignore_ascii_case("localhost") {
                self.domains.push(Domain::open_to_any(&self.host_name));
            }
        }
        self
    }
}

/// The machine's host name if it is valid in a greeting, otherwise `localhost`.
fn machine_host_name() -> String {
    let uname = rustix::system::uname();
    match uname.nodename().to_str() {
        Ok(name) if is_domain(name) && name.is_ascii() => name.to_ascii_lowercase(),
        _ => "localhost".to_owned(),
    }
}
