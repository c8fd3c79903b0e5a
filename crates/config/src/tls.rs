//! `[tls]`, and the values of the keys of a `[[listener]]` about TLS.

use std::path::PathBuf;

use posthaste_units::values::{Table, one_or_list};
use posthaste_units::words::Problem;
use serde::{Deserialize, Deserializer, Serialize};

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
    /// True if it names a certificate.
    pub(super) fn is_set(&self) -> bool {
        !self.certificate.0.is_empty()
    }

    /// Validates the section, without its files.
    pub(super) fn check(&self) -> Result<(), Problem> {
        check_keys(&self.certificate, &self.key).map_err(|problem| problem.within([Self::NAME.into()]))
    }
}

/// Checks that each certificate has one key.
pub(super) fn check_keys(certificates: &PemFiles, keys: &PemFiles) -> Result<(), Problem> {
    let message = match (certificates.0.len(), keys.0.len()) {
        (_, 0) => return Ok(()),
        (0, _) => "a key needs its certificate: set `certificate`, too".to_owned(),
        (all, keys) if all == keys => return Ok(()),
        (all, _) => format!("`certificate` names {all}, so name as many keys, or none if those files have them"),
    };
    Err(Problem::new(["key".into()], message))
}
