//! Which settings can be served, and how sessions of a listener begin.

use posthaste_net::{ByNetwork, Certificate, Rules};

use crate::sasl::MECHANISMS;
use crate::server::{Config, Protocol};

/// Why settings cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// [`Config::starttls`] or implicit TLS, and no `ServerBuilder::tls`.
    #[error("TLS is enabled without a certificate: call ServerBuilder::tls (feature `tls`)")]
    NoCertificate,
    /// [`Config::auth_mechanisms`] with [`Config::auth_needs_tls`], and no TLS.
    #[error("AUTH would never be offered: it needs TLS, unless Config::auth_needs_tls is set to false")]
    AuthWithoutTls,
    /// A name in [`Config::auth_mechanisms`] that is not one of [`MECHANISMS`].
    #[error("AUTH mechanism {0:?} is not known, only PLAIN and LOGIN in capitals")]
    Mechanism(String),
}

/// What can differ from one listener to another.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// What applies to its sessions, by the network that the client is in. All have the protocol of the default.
    pub configs: ByNetwork<Config>,
    /// Who may connect, by which proxies, and how many.
    pub rules: Rules,
}

/// The same for all clients.
impl From<Config> for ListenerSettings {
    fn from(config: Config) -> Self {
        Self { configs: config.into(), rules: Rules::default() }
    }
}

/// How sessions of a listener begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Door {
    pub protocol: Protocol,
    /// TLS from the first octet on.
    pub implicit_tls: bool,
}

/// What of the settings of a server stays as it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offers {
    has_certificate: bool,
    implicit_tls: bool,
}

impl Offers {
    pub fn new(certificate: &Certificate, doors: impl IntoIterator<Item = Door>) -> Self {
        let implicit_tls = doors.into_iter().any(|door| door.implicit_tls);
        Self { has_certificate: certificate.is_there(), implicit_tls }
    }

    /// Whether each of `configs` can be kept to.
    pub fn check(self, configs: &ByNetwork<Config>) -> Result<(), SetupError> {
        configs.values().try_for_each(|config| self.check_one(config))
    }

    fn check_one(self, config: &Config) -> Result<(), SetupError> {
        if let Some(name) = config.auth_mechanisms.iter().find(|name| !MECHANISMS.contains(&name.as_str())) {
            return Err(SetupError::Mechanism(name.clone()));
        }
        let wants_tls = config.starttls || self.implicit_tls;
        if wants_tls && !self.has_certificate {
            return Err(SetupError::NoCertificate);
        }
        if !config.auth_mechanisms.is_empty() && config.auth_needs_tls && !wants_tls {
            return Err(SetupError::AuthWithoutTls);
        }
        Ok(())
    }
}
