//! Checks of settings, and the opening of sessions.

use posthaste_net::{ByNetwork, Certificate, Rules};

use crate::sasl::MECHANISMS;
use crate::server::{Config, Protocol};

/// The reason why settings cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerSetupError {
    /// [`Config::starttls`] or implicit TLS, and neither [`ListenerSettings::certificate`] nor `ServerBuilder::tls`.
    #[error("TLS is enabled without a certificate: call ServerBuilder::tls (feature `tls`)")]
    NoCertificate,
    /// `ServerBuilder::tls`, and no listener that uses its certificate.
    #[error("no listener uses the certificate: set Config::starttls or call ServerBuilder::implicit_tls")]
    CertificateUnused,
    /// [`Config::requires_tls`], and no TLS.
    #[error("no mail would ever be taken: Config::requires_tls needs Config::starttls or implicit TLS")]
    NoTls,
    /// [`Config::auth_mechanisms`] with [`Config::auth_needs_tls`], and no TLS.
    #[error("AUTH would never be offered: it needs TLS, unless Config::auth_needs_tls is set to false")]
    AuthWithoutTls,
    /// A name in [`Config::auth_mechanisms`] that is not one of [`MECHANISMS`].
    #[error("AUTH mechanism {0:?} is not known: use capitals, as in SCRAM-SHA-256, PLAIN and LOGIN")]
    Mechanism(String),
}

/// Settings that can differ between listeners.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// Settings of its sessions, by the client's network. All have the protocol of the default.
    pub configs: ByNetwork<Config>,
    /// Rules for clients and proxies, and their number.
    pub rules: Rules,
    /// The certificate for TLS clients, in place of the server's `ServerBuilder::tls`.
    pub certificate: Certificate,
}

/// Applies the settings to all clients.
impl From<Config> for ListenerSettings {
    fn from(config: Config) -> Self {
        Self { configs: config.into(), rules: Rules::default(), certificate: Certificate::default() }
    }
}

/// The opening of a listener's sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Door {
    pub protocol: Protocol,
    /// TLS from the first octet on.
    pub implicit_tls: bool,
}

impl Door {
    /// True if a session of these settings shows the server's own certificate.
    pub fn uses_server_certificate(self, settings: &ListenerSettings) -> bool {
        let has_tls = self.implicit_tls || settings.configs.values().any(|config| config.starttls);
        has_tls && !settings.certificate.is_there()
    }

    /// Checks that each of `configs` is possible with this certificate.
    pub fn check(self, configs: &ByNetwork<Config>, certificate: &Certificate) -> Result<(), ServerSetupError> {
        configs.values().try_for_each(|config| self.check_one(config, certificate))
    }

    fn check_one(self, config: &Config, certificate: &Certificate) -> Result<(), ServerSetupError> {
        if let Some(name) = config.auth_mechanisms.iter().find(|name| !MECHANISMS.contains(&name.as_str())) {
            return Err(ServerSetupError::Mechanism(name.clone()));
        }
        let wants_tls = config.starttls || self.implicit_tls;
        if wants_tls && !certificate.is_there() {
            return Err(ServerSetupError::NoCertificate);
        }
        if config.requires_tls && !wants_tls {
            return Err(ServerSetupError::NoTls);
        }
        if !config.auth_mechanisms.is_empty() && config.auth_needs_tls && !wants_tls {
            return Err(ServerSetupError::AuthWithoutTls);
        }
        Ok(())
    }
}
