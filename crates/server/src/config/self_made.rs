//! The self-signed certificate of listeners without another one. It encrypts, but proves no identity.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_fsops::replace_file;
use posthaste_net::{certificate_has_name, tls, x509};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustix::fs::Mode;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use posthaste_config::{Config, Listener, ListenerTls};

const LIFE: Duration = Duration::from_secs(365 * 86_400);
/// Time before its expiry at which it is renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// The validity begins this long before now: clocks of clients may be slow.
const BACKDATED: Duration = Duration::from_secs(86_400);

/// Listeners with TLS and without a configured certificate.
pub(crate) fn users(config: &Config) -> impl Iterator<Item = &Listener> {
    config.listeners.iter().filter(|of| of.tls_mode() != ListenerTls::Off && of.certificate_files().is_empty())
}

/// Reads the certificate for `host_name`. Makes a new one if it is missing, for another name, or about to expire, or if
/// others can read its key. A secret key stays, so that its TLSA records stay valid. Blocks.
///
/// # Errors
/// The certificate can be neither used nor made.
pub(crate) fn open(file: &Path, host_name: &str, now: SystemTime) -> io::Result<Arc<CertifiedKey>> {
    if let Some(kept) = kept(file, host_name, now) {
        return Ok(kept);
    }
    let (made, pem) = make(host_name, now, secret_key(file)).map_err(io::Error::other)?;
    let written = replace_file(file, Mode::RUSR | Mode::WUSR, pem.as_bytes()).map_err(io::Error::from);
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    let file = file.display().to_string();
    tracing::info!(file, host_name, "made a certificate for listeners that have none");
    Ok(made)
}

fn is_secret(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.mode() & 0o077 == 0)
}

fn secret_key(file: &Path) -> Option<KeyPair> {
    let text = is_secret(file).then(|| std::fs::read_to_string(file).ok()).flatten()?;
    KeyPair::from_pem(&text).ok()
}

fn kept(file: &Path, host_name: &str, now: SystemTime) -> Option<Arc<CertifiedKey>> {
    if !is_secret(file) {
        return None;
    }
    let kept = tls::certified_key(file, file).ok()?;
    let end = end_of(kept.cert.first()?)?;
    (certificate_has_name(&kept, host_name) && now + RENEWED_BEFORE < end).then_some(kept)
}

/// The expiry of a certificate.
fn end_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    x509::validity(certificate).map(|(_, end)| UNIX_EPOCH + Duration::from_secs(end))
}

/// A certificate for this key or a new one, both as PEM.
fn make(
    host_name: &str,
    now: SystemTime,
    key: Option<KeyPair>,
) -> Result<(Arc<CertifiedKey>, String), Box<dyn std::error::Error + Send + Sync>> {
    // P-256 by default.
    let key = key.map_or_else(KeyPair::generate, Ok)?;
    let mut params = CertificateParams::new(vec![host_name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    // Not the host's name: that may be longer than the field takes.
    params.distinguished_name.push(DnType::CommonName, "self-made by Posthaste");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let date = |time: SystemTime| time::OffsetDateTime::from(time);
    (params.not_before, params.not_after) = (date(now - BACKDATED), date(now + LIFE));
    let certificate = params.self_signed(&key)?;
    let pem = key.serialize_pem() + &certificate.pem();
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let made = CertifiedKey::from_der(vec![certificate.der().clone()], der.into(), &provider)?;
    Ok((Arc::new(made), pem))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_kept_until_its_name_its_end_or_its_secrecy_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("self-made.pem");
        let now = SystemTime::now();
        let der = |name: &str, now: SystemTime| open(&file, name, now).unwrap().cert[0].to_vec();
        let first = der("mx.example.org", now);
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(der("mx.example.org", now), first);
        let day = Duration::from_secs(86_400);
        assert_eq!(der("mx.example.org", now + 334 * day), first);
        let renewed = der("mx.example.org", now + 336 * day);
        assert_ne!(renewed, first);
        let other = der("mail.example.net", now);
        assert!(other != renewed && der("mail.example.net", now) == other);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let secret = der("mail.example.net", now);
        assert_ne!(secret, other);
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::fs::write(&file, "nonsense").unwrap();
        assert_ne!(der("mail.example.net", now), secret);
    }

    #[test]
    fn a_secret_key_stays_when_the_certificate_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("self-made.pem");
        let now = SystemTime::now();
        let key = |now: SystemTime| open(&file, "mx.example.org", now).unwrap().key.public_key().unwrap().to_vec();
        let first = key(now);
        assert_eq!(key(now + LIFE), first);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_ne!(key(now), first, "others may have read it");
    }

    #[test]
    fn it_is_a_p256_certificate_for_a_year() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let long = format!("{}.example.org", "a".repeat(63));
        let made = open(&dir.path().join("self-made.pem"), &long, now).unwrap();
        assert!(certificate_has_name(&made, &long));
        let end = end_of(&made.cert[0]).unwrap();
        let life = end.duration_since(now).unwrap().as_secs();
        assert!(life.abs_diff(LIFE.as_secs()) <= 1, "{life}");
        let schemes = [rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
        assert!(made.key.choose_scheme(&schemes).is_some());
    }
}
