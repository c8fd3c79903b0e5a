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
mod config;
mod dkim;
mod error;
mod http;
mod identity;
mod imap;
mod limits;
mod listener_check;
#[cfg(test)]
mod listener_tests;
mod listeners;
mod loaded;
mod log;
mod mailstore;
#[cfg(test)]
mod manual_tests;
mod own_domain;
mod owners;
mod place;
mod quota;
mod reload;
mod reloaded;
mod sessions;
mod tls;
mod trust;
mod urls;
mod values;
mod webhooks;
mod words;

pub use acme::{Acme, acme_file, acme_next_key_file};
pub use auth::{Auth, ListenerAuth};
pub use checks::{CHECKS_SECS, Checks, Enforce, OnTempError};
pub use cluster::{Cluster, ClusterEngine, ClusterShard};
pub use config::{Config, MAILDIR};
pub use dkim::Dkim;
pub use error::{ConfigError, Position};
pub use http::Http;
pub use identity::UserIdentity;
pub use imap::{Imap, MailboxNames};
pub use limits::{LimitOverrides, LimitSection, ProcessLimits, ReceiveLimitOverrides, ReceiveLimits};
pub use listeners::{Listener, ListenerProtocol, Network};
pub use loaded::Loaded;
pub use log::{LOG_MODULES, Log, LogDirective, LogFormat};
pub use mailstore::{FolderNames, MailstoreSection};
pub use owners::{OwnerRightsMissing, OwnerRules, Rights};
pub use place::{DEFAULT_FILE, FoundFile, SYSTEM_FILE, VARIABLE};
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
pub use quota::Quota;
pub use reload::NeedsRestart;
pub use tls::{CertificateFiles, ListenerTls, PemFiles, Tls};
pub use values::{Rates, SpoolShare};
pub use webhooks::Webhook;

#[cfg(test)]
mod tests;
