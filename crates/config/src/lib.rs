//! Settings of the operator: the file's shape, its defaults, and errors that point at the line.
//!
//! [`Config`] is the effective configuration: every key has a value, so that `config show` prints the values in force.
//! An empty file is valid, and so is a missing one.
//!
//! For programs that read, make or check a configuration without running a server. Only the server opens the files that
//! it names.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acme;
mod auth;
mod check;
mod checks;
mod cluster;
mod dkim;
mod error;
mod http;
mod identity;
mod imap;
mod limits;
#[cfg(test)]
mod listener_tests;
mod listeners;
mod log;
mod mailstore;
#[cfg(test)]
mod manual_tests;
mod own_domain;
mod owners;
mod place;
mod quota;
mod reading;
mod reload;
mod sessions;
mod tls;
mod trust;
mod urls;
mod values;
mod webhooks;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_directory::Directory;
use posthaste_message::address::is_domain;
use serde::{Deserialize, Serialize};

pub use acme::{Acme, acme_file, acme_next_key_file};
pub use auth::{Auth, ListenerAuth};
pub use checks::{CHECKS_SECS, Checks, Enforce, OnTempError};
pub use cluster::{Cluster, ClusterEngine, ClusterShard};
pub use dkim::Dkim;
pub use error::{ConfigError, Position};
pub use http::Http;
pub use identity::UserIdentity;
pub use imap::{Imap, MailboxNames};
pub use limits::{LimitOverrides, LimitSection, ProcessLimits, ReceiveLimitOverrides, ReceiveLimits};
pub use listeners::{Listener, ListenerProtocol, Network};
pub use log::{LOG_MODULES, Log, LogDirective, LogFormat};
pub use mailstore::{FolderNames, MailstoreSection};
pub use owners::{OwnerRightsMissing, OwnerRules, Rights};
pub use place::{FoundFile, SYSTEM_FILE, VARIABLE};
pub use posthaste_delivery::local::Storage;
pub use posthaste_directory::{Account, AddressPattern, Domain, Targets, Users};
pub use posthaste_dns::Settings as Dns;
pub use posthaste_events::Section as Events;
pub use posthaste_net::section::{Networks, Socket};
pub use posthaste_pickup::Section as Pickup;
pub use posthaste_relay::sender::Section as Relay;
pub use posthaste_search::Section as Search;
pub use posthaste_smtp::section::{Policy, PolicyOverrides};
pub use posthaste_smtp::{BareNewlines, LongLines, NulOctets};
pub use posthaste_transport::Section as Transport;
pub use quota::{AccountQuota, Quota};
pub use reload::NeedsRestart;
pub use tls::{CertificateFiles, ListenerTls, PemFiles, Tls};
pub use values::{Rates, SpoolShare};
pub use webhooks::Webhook;

/// Name of the configuration file in the working directory.
pub const DEFAULT_FILE: &str = "posthaste.toml";
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

    /// Reads `file`; without it the one of [`FoundFile::find`]; without that the defaults.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has a key that does not exist, or a value that makes no sense. Or the
    /// only file is one that root does not trust.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Loaded::load(file).map(|loaded| loaded.config)
    }

    /// Parses a configuration from `text`; errors call the file `file`.
    ///
    /// # Errors
    /// As [`Config::load`], apart from reading.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Loaded::parse(file, text).map(|loaded| loaded.config)
    }

    /// The user that the server switches to after binding its listeners, if configured.
    ///
    /// # Errors
    /// The key that is wrong, and how.
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

    /// The configuration as TOML, with every key.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every value of a configuration has a TOML form")
    }

    /// The configuration as JSON, with every key.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every value of a configuration has a JSON form")
    }

    /// Fills in defaults that depend on other keys.
    fn completed(mut self) -> Self {
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

/// A configuration and its source.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings in force.
    pub config: Config,
    /// The directory of [`Config::directory`], made once.
    pub directory: Arc<Directory>,
    /// The file that was read; `None` if there was none.
    pub file: Option<PathBuf>,
    /// Why a file in the working directory was not read; see [`FoundFile`].
    pub passed_over: Option<String>,
    /// True if the file has a `[[listener]]`.
    pub names_listeners: bool,
    /// True if the file has a `[[domain]]`.
    pub names_domains: bool,
}

impl Loaded {
    /// As [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let FoundFile { path, passed_over } = FoundFile::find(file);
        let Some(file) = path else {
            if let Some(why) = passed_over {
                let message = format!("root does not read it, as {why}; --config {DEFAULT_FILE} names it all the same");
                return Err(ConfigError::whole(Path::new(DEFAULT_FILE), message));
            }
            // Checked like any other: what is taken from the machine may not do.
            return Ok(Self { file: None, ..Self::parse(Path::new(DEFAULT_FILE), "")? });
        };
        let octets = std::fs::read(&file).map_err(|error| ConfigError::unreadable(&file, &error))?;
        let text = std::str::from_utf8(&octets).map_err(|error| ConfigError::encoding(&file, &octets, error))?;
        Ok(Self { passed_over, ..Self::parse(&file, text)? })
    }

    /// As [`Config::parse`].
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        let names_listeners = !config.listeners.is_empty();
        let names_domains = !config.domains.is_empty();
        let config = config.completed();
        let directory = check::check(&config).map_err(|problem| ConfigError::meaning(file, text, &problem))?;
        let directory = Arc::new(directory);
        let file = Some(file.to_owned());
        let passed_over = None;
        Ok(Self { config, directory, file, passed_over, names_listeners, names_domains })
    }

    /// A mistake in the file as a whole.
    pub fn error(&self, message: String) -> ConfigError {
        ConfigError::whole(self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), message)
    }

    /// Reads the configuration again for a running server. Its file must still exist: otherwise the defaults would
    /// apply, and all mail would be refused.
    ///
    /// # Errors
    /// As [`Config::load`]; and the file has lost all of its domains or, with them, all of its listeners.
    pub fn again(&self, file: Option<&Path>) -> Result<Self, ConfigError> {
        let again = Self::load(file.or(self.file.as_deref()))?;
        let lost = match (again.names_listeners, again.names_domains) {
            (_, false) if self.names_domains => "[[domain]]",
            (false, false) if self.names_listeners => "[[listener]]",
            _ => return Ok(again),
        };
        Err(again
            .error(format!("there is no {lost} any more, as if the file was emptied; restart if this is intended")))
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

/// The listeners of a configuration without any.
fn default_listeners() -> [Listener; 4] {
    let listener = |address: &str, protocol| {
        let socket = Socket { address: Some(address.to_owned()), ..Socket::default() };
        Listener { socket, protocol, ..Listener::default() }
    };
    [
        listener("127.0.0.1:2525", ListenerProtocol::Smtp),
        listener("127.0.0.1:8025", ListenerProtocol::Http),
        listener("127.0.0.1:1143", ListenerProtocol::Imap),
        listener("127.0.0.1:1110", ListenerProtocol::Pop3),
    ]
}

#[cfg(test)]
mod tests;
