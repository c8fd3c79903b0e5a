//! `[relay]` of the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use posthaste_net::section::Networks;
use posthaste_net::tls::{TlsError, TlsTrust, client_config};
use posthaste_smtp::Protocol;
use posthaste_smtp::sasl::Credentials;
use posthaste_units::check_bounds;
use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::{Route, RouteTls, Routing};
use crate::queue::Schedules;
use crate::secrets::{SecretFileError, Secrets};
use crate::session::TlsPolicy;

/// Mail to other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Clients whose mail to any domain is taken. None: nobody's.
    pub networks: Networks,
    /// Whether mail of local users, through the pickup directory, is taken for any domain.
    pub local_users: bool,
    /// Domains for which mail is taken from everybody and sent on, as a backup or a gateway does.
    pub domains: Vec<String>,
    /// The port of mail hosts.
    pub port: u16,
    /// Whether connections are encrypted where the other host offers it (RFC 7435).
    pub tls: bool,
    /// Connections at a time.
    #[serde(deserialize_with = "values::count")]
    pub connections: usize,
    /// Connections at a time to the same set of mail hosts.
    #[serde(deserialize_with = "values::count")]
    pub connections_per_site: usize,
    /// Messages that one connection carries.
    #[serde(deserialize_with = "values::count")]
    pub messages_per_connection: u64,
    /// Recipients of one message that go in one transaction.
    #[serde(deserialize_with = "values::count")]
    pub recipients_per_message: usize,
    /// Bytes of messages that are kept in memory until their first attempt; above it they are read from the spool.
    #[serde(deserialize_with = "values::bytes")]
    pub memory_bytes: u64,
    /// Seconds until mail hosts are tried again none of which has answered; doubled with each failure, up to half an hour.
    #[serde(deserialize_with = "values::secs")]
    pub unreachable_secs: u64,
    /// A notification returns messages up to so many bytes whole, and of others the header.
    #[serde(deserialize_with = "values::bytes")]
    pub returned_bytes: u64,
    /// When recipients are tried again, and when they are given up.
    pub schedule: Schedules,
    /// How senders of forwarded mail are rewritten. Not set: they stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srs: Option<SrsSection>,
    /// Where mail goes instead of to the mail hosts of its domain; the first that fits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<RouteSection>,
}

/// The Sender Rewriting Scheme.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SrsSection {
    /// The domain of the rewritten senders. Its mail has to come here.
    pub domain: String,
    /// A file with secrets, one on each line. The first signs, all are valid.
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

/// A fixed next hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSection {
    /// For mail to this domain, or with a dot in front to the domains below it. Not set: for all.
    #[serde(default)]
    pub domain: String,
    /// A host name, or an address literal such as `[192.0.2.7]`.
    pub host: String,
    /// Its port.
    #[serde(default = "smtp_port")]
    pub port: u16,
    /// Whether the mail hosts of `host` are looked up.
    #[serde(default)]
    pub mx: bool,
    /// Whether LMTP is spoken instead of SMTP.
    #[serde(default)]
    pub lmtp: bool,
    /// How connections are encrypted. Not set: `verified` with a password, else as `tls` of the section says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<RouteEncryption>,
    /// Whether they are from the first octet on, without STARTTLS. Not set: on port 465.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implicit_tls: Option<bool>,
    /// Certificates of the authorities that are trusted, in a PEM file: for `verified`.
    #[serde(default = "system_authorities")]
    pub ca_file: PathBuf,
    /// The name for AUTH. Not set: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// A file with the password in its first line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

/// How connections to a fixed next hop are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteEncryption {
    /// Never.
    Off,
    /// Where the other host offers it.
    Opportunistic,
    /// Always; its certificate is not verified.
    Required,
    /// Always, and its certificate is trusted and has its name.
    Verified,
}

/// Why a route cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The password cannot be read.
    #[error("the password in {}: {error}", file.display())]
    Password {
        /// Where it should be.
        file: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There are no authorities to trust.
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

    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let is_implicit = self.implicit_tls == Some(true);
        match self.tls {
            _ if self.host.is_empty() => Some(("host", "a route needs a host")),
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

    fn read(&self, is_opportunistic: bool) -> Result<Route, RouteError> {
        let is_implicit = self.implicit_tls.unwrap_or(self.port == 465);
        let anything = || client_config(&TlsTrust::Anything);
        let encrypted = match self.encryption(is_opportunistic) {
            RouteEncryption::Off => None,
            RouteEncryption::Opportunistic => Some((TlsPolicy::Opportunistic, anything()?)),
            RouteEncryption::Required => Some((TlsPolicy::Required, anything()?)),
            RouteEncryption::Verified => {
                Some((TlsPolicy::Verified, client_config(&TlsTrust::Authorities(self.ca_file.clone()))?))
            }
        };
        let password = |file: &PathBuf| {
            let text = fs::read_to_string(file).map_err(|error| RouteError::Password { file: file.clone(), error })?;
            Ok::<_, RouteError>(text.lines().next().unwrap_or_default().to_owned())
        };
        let password = self.password_file.as_ref().map(password).transpose()?;
        Ok(Route {
            domain: self.domain.to_lowercase(),
            host: self.host.clone(),
            port: self.port,
            use_mx: self.mx,
            protocol: if self.lmtp { Protocol::Lmtp } else { Protocol::Smtp },
            tls: encrypted.map(|(policy, config)| RouteTls { policy, is_implicit, config }),
            auth: self.username.clone().zip(password).map(|(user, password)| Credentials::new(user, password)),
        })
    }
}

fn system_authorities() -> PathBuf {
    "/etc/ssl/certs/ca-certificates.crt".into()
}

fn smtp_port() -> u16 {
    25
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
            port: smtp_port(),
            tls: true,
            connections: 1000,
            connections_per_site: 20,
            messages_per_connection: 1000,
            recipients_per_message: 100,
            memory_bytes: 256 << 20,
            unreachable_secs: 60,
            returned_bytes: 64 << 10,
            schedule: Schedules::default(),
            srs: None,
            route: Vec::new(),
        }
    }
}

impl Section {
    /// Whether clients' mail is taken for other hosts.
    pub fn is_used(&self) -> bool {
        !self.networks.0.is_empty() || !self.domains.is_empty()
    }

    /// Finds what cannot be meant.
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
                ("memory_bytes", self.memory_bytes, 0, 1 << 40),
                ("unreachable_secs", self.unreachable_secs, 1, 1800),
                ("returned_bytes", self.returned_bytes, 0, 64 << 20),
            ],
        )?;
        self.schedule.default.check("relay.schedule.default")?;
        for rule in &self.schedule.rules {
            rule.schedule.check("relay.schedule.rules")?;
        }
        for (index, route) in self.route.iter().enumerate() {
            if let Some((key, mistake)) = route.mistake() {
                let at = vec![Self::NAME.into(), "route".into(), index.into(), key.into()];
                return Err(Problem::new(at, mistake));
            }
        }
        if let Some(srs) = self.srs.as_ref().filter(|srs| !posthaste_smtp::address::is_domain(&srs.domain)) {
            let at = vec![Self::NAME.into(), "srs".into(), "domain".into()];
            return Err(Problem::new(at, format!("`{}` is not a domain", srs.domain)));
        }
        for (index, domain) in self.domains.iter().enumerate() {
            if posthaste_smtp::address::is_domain(domain) && domain.is_ascii() {
                continue;
            }
            let at = vec![Self::NAME.into(), "domains".into(), index.into()];
            return Err(Problem::new(at, "not a domain in letters, digits and hyphens, with dots between"));
        }
        Ok(())
    }

    /// Routes, sources and pools, as the relay takes them. Reads files of passwords and authorities.
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn routing(&self) -> Result<Routing, RouteError> {
        Ok(Routing { routes: self.routes()?, ..Routing::default() })
    }

    fn routes(&self) -> Result<Vec<Arc<Route>>, RouteError> {
        self.route.iter().map(|route| route.read(self.tls).map(Arc::new)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_and_checked() {
        let text = "networks = ['10.0.0.0/8']\ndomains = ['b.example']\n[schedule.default]\nmax_age_secs = '2 days'\n\
                    [[route]]\ndomain = 'X.example'\nhost = 'hub.example'\nport = 587\n[[route]]\nhost = '[192.0.2.7]'\n";
        let section: Section = toml::from_str(text).unwrap();
        assert!(section.is_used() && section.check().is_ok());
        let routes = section.routes().unwrap();
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
            section.routes()
        };
        assert!(matches!(written("tls = 'required'"), Err(RouteError::Password { .. })));
        fs::write(&file, "pass word\n").unwrap();
        let route = written("tls = 'required'").unwrap().remove(0);
        assert_eq!(route.auth, Some(Credentials::new("ann", "pass word")));
        assert_eq!(route.manner(), " encrypted as ann");
        assert!(route.tls.as_ref().unwrap().is_implicit);
        assert_eq!(written("tls = 'off'").unwrap()[0].manner(), " in the clear as ann");
        // Nobody to trust: no route, instead of one that trusts anybody.
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
        ] {
            assert!(toml::from_str::<Section>(text).unwrap().check().is_err(), "{text}");
        }
    }
}
