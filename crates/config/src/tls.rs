//! `[tls]`, and what of a `[[listener]]` is about TLS.

use std::path::{Path, PathBuf};

use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::{Listener, ListenerProtocol};

/// The certificate of listeners that name none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The chain of certificates, your own first, such as certbot's `fullchain.pem`.
    pub certificate: PathBuf,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1, without a password.
    pub key: PathBuf,
}

/// How clients of a listener come to TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerTls {
    /// Not at all.
    #[default]
    Off,
    /// By STARTTLS, if they want to (RFC 3207).
    StartTls,
    /// By STARTTLS, before any mail.
    Required,
    /// From the first octet on (RFC 8314).
    Implicit,
}

impl Table for Tls {
    const NAME: &str = "tls";
}

impl Tls {
    fn is_set(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// Finds what cannot be meant. Files are not looked at.
    pub(super) fn check(&self) -> Result<(), Problem> {
        match (self.is_set(), !self.key.as_os_str().is_empty()) {
            (true, false) => Err(Problem::new([Self::NAME.into(), "certificate".into()], TOGETHER)),
            (false, true) => Err(Problem::new([Self::NAME.into(), "key".into()], TOGETHER)),
            _ => Ok(()),
        }
    }
}

impl Listener {
    /// How clients come to TLS here.
    pub fn tls_mode(&self) -> ListenerTls {
        self.tls.unwrap_or_default()
    }

    /// The files of the certificate and of its key, if there is TLS.
    pub fn certificate_files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.tls_mode() != ListenerTls::Off)
    }

    /// Fills in what `[tls]` says.
    pub fn complete_tls(&mut self, default: &Tls) {
        let (names_none, socket) = (self.certificate.is_none() && self.key.is_none(), &self.socket);
        let has_certificate = !names_none || default.is_set();
        let is_http = self.protocol == ListenerProtocol::Http;
        let mode = *self.tls.get_or_insert(match &socket.address {
            // Browsers have no certificate for a loopback address, and a web server in front has its own.
            Some(address) if is_http && super::check::is_loopback(address) => ListenerTls::Off,
            // A proxy may have done it already.
            Some(address) if has_certificate && !socket.proxy_protocol => match is_http || self.is_at_tls_port(address)
            {
                true => ListenerTls::Implicit,
                false => ListenerTls::StartTls,
            },
            _ => ListenerTls::Off,
        });
        if names_none && mode != ListenerTls::Off && default.is_set() {
            (self.certificate, self.key) = (Some(default.certificate.clone()), Some(default.key.clone()));
        }
    }

    fn is_at_tls_port(&self, address: &str) -> bool {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.is_some_and(|port: u16| self.protocol.implicit_tls_port() == Some(port))
    }

    /// Finds what cannot be meant about TLS. Files are not looked at.
    pub(super) fn check_tls(&self) -> Result<(), Problem> {
        match (self.tls_mode(), &self.certificate, &self.key) {
            (_, Some(_), None) => Err(Problem::new(["certificate".into()], TOGETHER)),
            (_, None, Some(_)) => Err(Problem::new(["key".into()], TOGETHER)),
            (ListenerTls::Off, ..) => Ok(()),
            _ if self.socket.unix.is_some() => Err(Problem::new(["tls".into()], "only for `address`")),
            (_, None, None) => {
                let message = "needs `certificate` and `key`, here or below [tls]";
                Err(Problem::new(["tls".into()], message))
            }
            _ => Ok(()),
        }
    }
}

const TOGETHER: &str = "`certificate` and `key` belong together: set both";
