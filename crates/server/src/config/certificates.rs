//! The TLS of listeners: certificates, read at the start and by each reload.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste_net::CertificateList;
use posthaste_smtp::driver::{Certificate, TlsFacts};
use posthaste_smtp::tls::{TlsError, certified_key, server_config_with};
use rustls::sign::CertifiedKey;

use crate::config::certificate_lists::OwnCertificates;
use posthaste_config::{CertificateFiles, Config, Listener, ListenerTls};

/// The TLS that is in force at a listener.
#[derive(Debug, Default)]
pub(crate) struct TlsInForce {
    pub mode: ListenerTls,
    certificate: Certificate,
    configured: Arc<Configured>,
    own: OwnCertificates,
}

/// Why a listener has no TLS although it should.
#[derive(Debug, thiserror::Error)]
#[error("TLS of listener {listener}: {error}")]
pub struct CertificateError {
    /// Address of the listener.
    pub listener: String,
    /// Error of its certificate or key.
    pub error: TlsError,
}

/// Delay before a mismatched pair is read again: a program may be replacing its two files.
const SECOND_LOOK: Duration = Duration::from_secs(1);

impl TlsInForce {
    /// Loads the certificates of a listener; `own` are for all listeners. Blocks, a second longer if a key does not
    /// fit its certificate, to read both again.
    ///
    /// # Errors
    /// [`CertificateError`]: a file cannot be read, or the two do not fit each other.
    pub fn load(listener: &Listener, own: &OwnCertificates) -> Result<Self, CertificateError> {
        let failed = |error| CertificateError { listener: listener.to_string(), error };
        let mut pairs = Vec::new();
        for files in listener.certificate_files() {
            pairs.push(match Pair::read(&files) {
                Err(TlsError::OtherKey { .. }) => {
                    std::thread::sleep(SECOND_LOOK);
                    Pair::read(&files).map_err(failed)?
                }
                pair => pair.map_err(failed)?,
            });
        }
        let configured = Arc::new(Configured::default());
        configured.set(pairs);
        let mut tls =
            Self { mode: listener.tls_mode(), certificate: Certificate::default(), configured, own: own.clone() };
        tls.accept(listener).map_err(failed)?;
        Ok(tls)
    }

    /// Loads the certificates of all listeners, in their order.
    ///
    /// # Errors
    /// The first [`CertificateError`].
    pub fn load_all(config: &Config, own: &OwnCertificates) -> Result<Vec<Self>, CertificateError> {
        config.listeners.iter().map(|listener| Self::load(listener, own)).collect()
    }

    /// The certificate for handshakes. None if the mode is off.
    pub fn certificate(&self) -> Certificate {
        match self.mode {
            ListenerTls::Off => Certificate::default(),
            _ => self.certificate.clone(),
        }
    }

    /// Makes the acceptor of TLS handshakes, for clients, and for authorities at port 443, unless it exists or TLS is
    /// off. Like the list of certificates, it outlives reloads.
    fn accept(&mut self, listener: &Listener) -> Result<(), TlsError> {
        if self.mode != ListenerTls::Off && !self.certificate.is_there() {
            let chooser = self.own.chooser(&self.configured.list);
            self.certificate = Certificate::new(server_config_with(Arc::new(chooser))?);
            if crate::config::acme::validates_names(listener) {
                let validations = self.own.challenges.certificates();
                self.certificate = std::mem::take(&mut self.certificate).with_validations(validations)?;
            }
        }
        Ok(())
    }

    /// Reads all files again, for later handshakes. For an unusable pair, the previous one stays, and the files are
    /// read once more after a second; then returns false. Needs a tokio runtime.
    pub fn reload(&mut self, listener: &Listener) -> bool {
        let files = listener.certificate_files();
        let is_whole = self.configured.renew(&files, "; its files are read again after a second");
        let attempt = self.configured.attempt.fetch_add(1, Ordering::AcqRel) + 1;
        if !is_whole {
            tokio::spawn(Arc::clone(&self.configured).look_again(files, attempt));
        }
        // With no certificate of those that the configuration names, TLS does not begin.
        if is_whole || !self.configured.list.get().is_empty() {
            self.mode = listener.tls_mode();
        }
        if let Err(error) = self.accept(listener) {
            tracing::error!(error = error.to_string(), "this listener has no TLS");
            self.mode = ListenerTls::Off;
        }
        is_whole
    }
}

/// The pairs that the configuration names for a listener.
#[derive(Debug, Default)]
struct Configured {
    pairs: Mutex<Vec<Pair>>,
    /// Certificates and keys, for handshakes.
    list: Arc<CertificateList>,
    /// Counts reloads, so that a check begun before the last one changes nothing.
    attempt: AtomicU64,
}

/// A certificate with its key, as read.
#[derive(Debug, Clone)]
struct Pair {
    files: CertificateFiles,
    key: Arc<CertifiedKey>,
}

impl Pair {
    fn read(files: &CertificateFiles) -> Result<Self, TlsError> {
        Ok(Self { key: certified_key(&files.chain, &files.key)?, files: files.clone() })
    }
}

impl Configured {
    fn set(&self, pairs: Vec<Pair>) {
        self.list.set(pairs.iter().map(|pair| Arc::clone(&pair.key)));
        *self.pairs.lock().unwrap_or_else(PoisonError::into_inner) = pairs;
    }

    /// Reads `files`. False if a pair is unusable: its previous pair stays. Without any usable pair, all previous ones
    /// stay.
    fn renew(&self, files: &[CertificateFiles], next: &str) -> bool {
        let old = self.pairs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut is_whole = true;
        let mut pairs = Vec::new();
        for files in files {
            match Pair::read(files) {
                Ok(pair) => pairs.push(pair),
                Err(error) => {
                    is_whole = false;
                    let error = error.to_string();
                    tracing::error!(error, "cannot read a certificate: this listener keeps the old one{next}");
                    pairs.extend(old.iter().find(|pair| pair.files == *files).cloned());
                }
            }
        }
        if is_whole || !pairs.is_empty() {
            self.set(pairs);
        }
        is_whole
    }

    async fn look_again(self: Arc<Self>, files: Vec<CertificateFiles>, attempt: u64) {
        tokio::time::sleep(SECOND_LOOK).await;
        let look = move || {
            // A later reload has looked since, or will.
            if self.attempt.load(Ordering::Acquire) == attempt && self.renew(&files, " until the next reload") {
                tracing::info!("a certificate that did not fit its key fits now, and is in force");
            }
        };
        let _ = tokio::task::spawn_blocking(look).await;
    }
}

/// Keys, and the file of passwords, that any user of this machine can read.
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
        config.listeners.iter().flat_map(Listener::certificate_files).map(|files| files.key).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The TLS version for logs and trace fields.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a new certificate and its key into `dir`, and returns it.
    fn certify(dir: &Path, chain: &str, key: &str) -> Vec<u8> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(dir.join(chain), pem("CERTIFICATE", made.cert.der())).unwrap();
        std::fs::write(dir.join(key), pem("PRIVATE KEY", &made.signing_key.serialize_der())).unwrap();
        made.cert.der().to_vec()
    }

    fn pem(label: &str, der: &[u8]) -> String {
        let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    }

    fn listener(dir: &Path) -> Listener {
        let dir = dir.display();
        let text = format!(
            "[[listener]]\naddress = '127.0.0.1:465'\ncertificate = ['{dir}/a', '{dir}/b']\nkey = ['{dir}/a.key', '{dir}/b.key']\n"
        );
        Config::parse(Path::new("x"), &text).unwrap().listeners.remove(0)
    }

    fn in_force(tls: &TlsInForce) -> Vec<Vec<u8>> {
        tls.configured.list.get().iter().map(|one| one.cert[0].to_vec()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_that_does_not_fit_is_read_again_and_the_old_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let listener = listener(dir.path());
        let (first, other) = (certify(dir.path(), "a", "a.key"), certify(dir.path(), "b", "b.key"));
        let mut tls = TlsInForce::load(&listener, &OwnCertificates::default()).unwrap();
        assert_eq!(in_force(&tls), [first.clone(), other]);

        // A program has replaced one file of the first pair so far, and all of the second.
        let (second, later) = (certify(dir.path(), "a", "a.key.new"), certify(dir.path(), "b", "b.key"));
        assert!(!tls.reload(&listener));
        assert_eq!(in_force(&tls), [first.clone(), later.clone()]);
        std::fs::rename(dir.path().join("a.key.new"), dir.path().join("a.key")).unwrap();
        let expected = [second.clone(), later.clone()];
        let renewed = async {
            while in_force(&tls) != expected {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(60 * SECOND_LOOK, renewed).await.expect("the pair is read again");

        // It stays so: only a reload looks again.
        certify(dir.path(), "a", "a.key.new");
        assert!(!tls.reload(&listener));
        tokio::time::sleep(2 * SECOND_LOOK).await;
        assert_eq!(in_force(&tls), expected);
        assert!(tls.certificate().is_there());
    }
}
