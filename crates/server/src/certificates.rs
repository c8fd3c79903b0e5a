//! The TLS of listeners: certificates, read at the start and by each reload.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use posthaste_smtp::driver::{Certificate, TlsFacts};
use posthaste_smtp::tls::{TlsError, server_config};

use posthaste_config::{Config, Listener, ListenerTls};

/// The TLS that is in force at a listener.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsInForce {
    pub mode: ListenerTls,
    /// There unless the mode is off.
    pub certificate: Certificate,
}

/// Why a listener has no TLS although it should.
#[derive(Debug, thiserror::Error)]
#[error("TLS of listener {listener}: {error}")]
pub struct CertificateError {
    /// The listener.
    pub listener: String,
    /// The mistake in its certificate or key.
    pub error: TlsError,
}

impl TlsInForce {
    /// Reads what the listener is to have. Blocks.
    ///
    /// # Errors
    /// [`CertificateError`]: a file cannot be read, or the two do not fit each other.
    pub fn load(listener: &Listener) -> Result<Self, CertificateError> {
        let Some((certificate, key)) = listener.certificate_files() else { return Ok(Self::default()) };
        let config = server_config(certificate, key)
            .map_err(|error| CertificateError { listener: listener.to_string(), error })?;
        Ok(Self { mode: listener.tls_mode(), certificate: Certificate::new(config) })
    }

    /// Loads the certificates of all listeners, in their order.
    ///
    /// # Errors
    /// The first [`CertificateError`].
    pub fn load_all(config: &Config) -> Result<Vec<Self>, CertificateError> {
        config.listeners.iter().map(Self::load).collect()
    }

    /// Reads it again; what was in force stays if that fails.
    pub fn reload(&mut self, listener: &Listener) -> bool {
        match Self::load(listener) {
            Ok(new) => *self = new,
            Err(error) => {
                let error = error.to_string();
                tracing::error!(error, "this listener keeps its certificate, and whether it has TLS");
                return false;
            }
        }
        true
    }
}

/// Keys, and the file of passwords, that every user of this machine can read.
pub(crate) fn exposed_keys(config: &Config) -> Vec<String> {
    let is_exposed = |key: &&PathBuf| std::fs::metadata(key).is_ok_and(|found| found.mode() & 0o004 != 0);
    let text = |key: &PathBuf| format!("{}: every user can read this private key; run chmod o-r", key.display());
    let keys = keys(config);
    let passwords = config.auth.file().filter(|file| is_exposed(&&file.to_path_buf()));
    let of_passwords = |file: &Path| format!("{}: every user can read these passwords; run chmod o-r", file.display());
    keys.iter().filter(is_exposed).map(text).chain(passwords.map(of_passwords)).collect()
}

/// The keys of all listeners, each once.
fn keys(config: &Config) -> Vec<PathBuf> {
    let mut keys: Vec<PathBuf> =
        config.listeners.iter().filter_map(|listener| Some(listener.certificate_files()?.1.to_owned())).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The version as logs and trace fields have it.
pub(crate) fn version(tls: &TlsFacts) -> &'static str {
    match &*tls.version {
        "TLSv1_3" => "TLSv1.3",
        "TLSv1_2" => "TLSv1.2",
        _ => "TLS",
    }
}

/// The cipher suite by its registered name: the library's differs for TLS 1.3.
pub(crate) fn cipher(tls: &TlsFacts) -> String {
    tls.cipher.strip_prefix("TLS13_").map_or_else(|| tls.cipher.clone(), |rest| format!("TLS_{rest}"))
}
