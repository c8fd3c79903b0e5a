//! `[tls]`, and the keys of a `[[listener]]` about TLS.

use std::path::PathBuf;

use posthaste_units::values::{Table, one_or_list};
use posthaste_units::words::Problem;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Listener, ListenerProtocol};
use crate::reload::{NeedsRestart, Reload, all_of};

/// Certificates of listeners without their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The chain of certificates, your own first, such as certbot's `fullchain.pem`. Or a list of such files: each client gets the one that has the name it
    /// asks for.
    pub certificate: PemFiles,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1, without a password; or a list, in the order of `certificate`. Not set: each file of `certificate` has its
    /// key in it.
    pub key: PemFiles,
}

/// PEM files: one string, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PemFiles(pub Vec<PathBuf>);

impl<'de> Deserialize<'de> for PemFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_list(
            deserializer,
            "a file such as \"/etc/posthaste/tls/mx.pem\", or a list of files",
            |file| Ok(Some(file).filter(|file| !file.is_empty()).map(|file| Self(vec![file.into()]))),
            |files| {
                if files.iter().any(String::is_empty) {
                    Err("a file's name is empty".to_owned())
                } else {
                    Ok(Self(files.into_iter().map(PathBuf::from).collect()))
                }
            },
        )
    }
}

/// Files of one certificate: chain and key, possibly the same file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateFiles {
    /// The file of the chain, leaf first.
    pub chain: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
}

/// TLS at a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerTls {
    /// No TLS.
    #[default]
    Off,
    /// STARTTLS is offered (RFC 3207).
    StartTls,
    /// STARTTLS is required before any mail.
    Required,
    /// From the first octet on (RFC 8314).
    Implicit,
}

impl Table for Tls {
    const NAME: &str = "tls";
}

impl Reload for Tls {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Tls {
    fn is_set(&self) -> bool {
        !self.certificate.0.is_empty()
    }

    /// Validates the section, without its files.
    pub(super) fn check(&self) -> Result<(), Problem> {
        check_keys(&self.certificate, &self.key).map_err(|problem| problem.within([Self::NAME.into()]))
    }
}

/// Checks that each certificate has one key.
fn check_keys(certificates: &PemFiles, keys: &PemFiles) -> Result<(), Problem> {
    let message = match (certificates.0.len(), keys.0.len()) {
        (_, 0) => return Ok(()),
        (0, _) => "a key alone is for nothing: set `certificate` too".to_owned(),
        (all, keys) if all == keys => return Ok(()),
        (all, _) => format!("`certificate` names {all}, so name as many keys, or none if those files have them"),
    };
    Err(Problem::new(["key".into()], message))
}

impl Listener {
    /// TLS at this listener.
    pub fn tls_mode(&self) -> ListenerTls {
        self.tls.unwrap_or_default()
    }

    /// Its certificate files, in order. Empty without TLS.
    pub fn certificate_files(&self) -> Vec<CertificateFiles> {
        let Some(certificates) = self.certificate.as_ref().filter(|_| self.tls_mode() != ListenerTls::Off) else {
            return Vec::new();
        };
        let keys = self.key.as_ref().filter(|keys| !keys.0.is_empty()).unwrap_or(certificates);
        let each = certificates.0.iter().zip(&keys.0);
        each.map(|(chain, key)| CertificateFiles { chain: chain.clone(), key: key.clone() }).collect()
    }

    /// Fills in the values of `[tls]`. `has_acme`: certificates come from an authority.
    pub fn complete_tls(&mut self, default: &Tls, has_acme: bool) {
        let names_none = self.certificate.is_none() && self.key.is_none();
        let socket = &self.socket;
        let has_certificate = !names_none || default.is_set() || has_acme;
        let is_http = self.protocol == ListenerProtocol::Http;
        let mode =
            *self.tls.get_or_insert(match &socket.address {
                // Browsers have no certificate for a loopback address, and a web server in front has its own.
                Some(address) if is_http && super::check::is_loopback(address) => ListenerTls::Off,
                // For the challenges of an authority.
                Some(address) if is_http && has_acme && address.ends_with(":80") => ListenerTls::Off,
                // A proxy may have done it already.
                Some(address) if has_certificate && !socket.proxy_protocol => {
                    if is_http || self.is_at_tls_port(address) { ListenerTls::Implicit } else { ListenerTls::StartTls }
                }
                _ => ListenerTls::Off,
            });
        if names_none && mode != ListenerTls::Off && default.is_set() {
            self.certificate = Some(default.certificate.clone());
            self.key = Some(default.key.clone()).filter(|keys| !keys.0.is_empty());
        }
    }

    fn is_at_tls_port(&self, address: &str) -> bool {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.is_some_and(|port: u16| self.protocol.implicit_tls_port() == Some(port))
    }

    /// Validates the settings of TLS, without their files.
    pub(super) fn check_tls(&self) -> Result<(), Problem> {
        let none = PemFiles::default();
        check_keys(self.certificate.as_ref().unwrap_or(&none), self.key.as_ref().unwrap_or(&none))?;
        match self.tls_mode() {
            ListenerTls::Off => Ok(()),
            _ if self.socket.unix.is_some() => Err(Problem::new(["tls".into()], "only for `address`")),
            _ => Ok(()),
        }
    }
}
