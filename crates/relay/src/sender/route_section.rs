//! `[[relay.route]]` of the configuration.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use posthaste_net::tls::{TlsError, TlsTrust, client_config_as};
use posthaste_smtp::Protocol;
use posthaste_smtp::sasl::Credentials;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use super::{FixedRoute, RouteTls};
use crate::session::TlsPolicy;
use posthaste_dns::is_next_hop;

/// A fixed next hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSection {
    /// For this domain, or with a dot in front for the domains below it. Not set: for all.
    #[serde(default)]
    pub domain: String,
    /// For mail of these tenants, such as `["news"]`. Not set: for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// A host name, or an address in brackets such as `"[192.0.2.7]"`. With several, as in
    /// `["a.example.net", "b.example.net"]`, the first that answers is used. Default: (required).
    pub host: Hosts,
    /// Its port, also with `lmtp`. Default: 25.
    #[serde(default = "smtp_port")]
    pub port: u16,
    /// `true`: the mail hosts of `host` are looked up. Default: `false`.
    #[serde(default)]
    pub mx: bool,
    /// LMTP instead of SMTP. Default: `false`.
    #[serde(default)]
    pub lmtp: bool,
    /// `"verified"` (its certificate is trusted and has its name), `"required"` (encrypted, with any certificate),
    /// `"opportunistic"` (where it is offered) or `"off"`. Not set: `"verified"` with a password, else as `tls` of
    /// `[relay]`: `"opportunistic"`, or `"off"` for `false`. With a password `"opportunistic"` is a mistake, and
    /// `"off"` sends the password in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<RouteEncryption>,
    /// Encrypted from the first byte, without STARTTLS. Not set: on port 465.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implicit_tls: Option<bool>,
    /// The authorities that are trusted, in PEM. Default: `"/etc/ssl/certs/ca-certificates.crt"`.
    #[serde(default = "system_authorities")]
    pub ca_file: PathBuf,
    /// Our certificates in PEM, the own one first, for hosts that ask for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The private key of the first of them, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Name for AUTH, together with `password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// A file with the password in its first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The [pool](#sources-and-pools) whose sources its mail leaves from. Not set: that of the message, else of the
    /// tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Only while no host can be reached that the mail would go to otherwise, or DNS does not answer. Default: `false`.
    #[serde(default)]
    pub fallback: bool,
    /// Makes a fallback take recipients after this many attempts, too, 1 to 200. Not set: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_attempts: Option<u8>,
}

/// One host or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Hosts {
    /// One host.
    One(String),
    /// In their order.
    Several(Vec<String>),
}

impl Hosts {
    fn list(&self) -> &[String] {
        match self {
            Self::One(host) => std::slice::from_ref(host),
            Self::Several(hosts) => hosts,
        }
    }
}

/// Encryption to a fixed next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteEncryption {
    /// Never.
    Off,
    /// Where the other host offers it.
    Opportunistic,
    /// Always, without verifying its certificate.
    Required,
    /// Always, with a trusted certificate of the right name.
    Verified,
}

/// Error in a route.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The password cannot be read.
    #[error("the password in {}: {error}", file.display())]
    Password {
        /// Path of the password's file.
        file: PathBuf,
        /// The read error.
        error: io::Error,
    },
    /// The TLS client cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl RouteSection {
    fn encryption(&self, is_opportunistic: bool) -> RouteEncryption {
        self.tls.unwrap_or(match (&self.username, is_opportunistic) {
            (Some(_), _) => RouteEncryption::Verified,
            (None, true) => RouteEncryption::Opportunistic,
            (None, false) => RouteEncryption::Off,
        })
    }

    pub(super) fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let is_implicit = self.implicit_tls == Some(true);
        let hosts = self.host.list();
        match self.tls {
            _ if hosts.is_empty() || hosts.iter().any(String::is_empty) => Some(("host", "a route needs a host")),
            _ if !hosts.iter().all(|host| is_next_hop(host)) => Some((
                "host",
                "neither a host name nor an address in brackets, as in `[192.0.2.7]` or `[IPv6:2001:db8::7]`",
            )),
            _ if hosts.len() > HOSTS_MAX => Some(("host", "at most 32 hosts")),
            _ if self.mx && hosts.len() > 1 => Some(("mx", "only of one host")),
            _ if self.cert_file.is_some() != self.key_file.is_some() => {
                Some(("cert_file", "`cert_file` and `key_file` belong together"))
            }
            _ if self.after_attempts.is_some() && !self.fallback => Some(("after_attempts", "only of a fallback")),
            _ if self.after_attempts.is_some_and(|after| !(1..=ATTEMPTS_MAX).contains(&after)) => {
                Some(("after_attempts", "1 to 200 attempts"))
            }
            _ if self.port == 0 => Some(("port", "a port is 1 to 65535")),
            _ if self.username.is_some() != self.password_file.is_some() => {
                Some(("username", "`username` and `password_file` belong together"))
            }
            Some(RouteEncryption::Opportunistic) if self.username.is_some() => {
                Some(("tls", "a password needs `required` or `verified`; `off` sends it in the clear"))
            }
            Some(RouteEncryption::Off) if is_implicit => Some(("implicit_tls", "not with `tls` as `off`")),
            _ => None,
        }
    }

    pub(super) fn read(&self, is_opportunistic: bool, configs: &mut TlsConfigs) -> Result<FixedRoute, RouteError> {
        let is_implicit = self.implicit_tls.unwrap_or(self.port == 465);
        let own = self.cert_file.as_deref().zip(self.key_file.as_deref());
        let tls = configs.tls(self.encryption(is_opportunistic), &self.ca_file, own, None)?;
        let tls = tls.map(|tls| RouteTls { is_implicit, ..tls });
        let password = self.password_file.as_deref().map(password).transpose()?;
        Ok(FixedRoute {
            domain: self.domain.to_lowercase(),
            tenants: self.tenants.clone(),
            hosts: self.host.list().to_vec(),
            port: self.port,
            use_mx: self.mx,
            is_fallback: self.fallback,
            after_attempts: self.after_attempts.unwrap_or(0),
            protocol: if self.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
            tls,
            auth: self.username.clone().zip(password).map(|(user, password)| Credentials::new(user, password)),
            pool: self.pool.clone(),
        })
    }
}

/// Reads the password in the first line of a file.
pub(super) fn password(file: &Path) -> Result<String, RouteError> {
    let text = fs::read_to_string(file).map_err(|error| RouteError::Password { file: file.to_owned(), error })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// TLS client configurations, each made once: equal ones share connections.
#[derive(Default)]
pub(super) struct TlsConfigs {
    made: HashMap<(Authorities, OwnFiles), Arc<ClientConfig>>,
}

/// File of trusted certificates; `None`: any certificate is accepted.
type Authorities = Option<PathBuf>;
/// Files of our certificates and of the key.
type OwnFiles = Option<(PathBuf, PathBuf)>;

impl TlsConfigs {
    /// The TLS of a route or rule; `None`: in the clear.
    pub fn tls(
        &mut self,
        encryption: RouteEncryption,
        ca_file: &Path,
        own: Option<(&Path, &Path)>,
        name: Option<&str>,
    ) -> Result<Option<RouteTls>, RouteError> {
        let policy = match encryption {
            RouteEncryption::Off => return Ok(None),
            RouteEncryption::Opportunistic => TlsPolicy::Opportunistic,
            RouteEncryption::Required => TlsPolicy::Required,
            RouteEncryption::Verified => TlsPolicy::Verified,
        };
        let authorities = (policy == TlsPolicy::Verified).then(|| ca_file.to_owned());
        let trust = authorities.clone().map_or(TlsTrust::Anything, TlsTrust::Authorities);
        let key = (authorities, own.map(|(chain, key)| (chain.to_owned(), key.to_owned())));
        let config = match self.made.get(&key) {
            Some(made) => made.clone(),
            None => self.made.entry(key).or_insert(client_config_as(&trust, own)?).clone(),
        };
        Ok(Some(RouteTls { policy, is_implicit: false, config, name: name.map(str::to_owned) }))
    }
}

pub(super) fn system_authorities() -> PathBuf {
    "/etc/ssl/certs/ca-certificates.crt".into()
}

pub(super) fn smtp_port() -> u16 {
    25
}

const HOSTS_MAX: usize = 32;
/// Highest configurable attempt: the queue counts a recipient's attempts in one byte.
const ATTEMPTS_MAX: u8 = 200;
