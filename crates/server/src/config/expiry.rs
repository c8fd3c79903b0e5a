//! Expiry of certificates.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use posthaste_net::x509;

use crate::config::self_made;
use posthaste_config::{Config, Listener};

/// A certificate that needs the operator's attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateWarning {
    pub what: String,
    pub help: &'static str,
}

impl std::fmt::Display for CertificateWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.what, self.help)
    }
}

/// Certificates of listeners that have expired or soon will, and listeners without a configured one. Blocks. Omits
/// unreadable files, which are reported elsewhere.
pub(crate) fn warnings(config: &Config, now: SystemTime) -> Vec<CertificateWarning> {
    let expiring = configured(config).into_iter().filter_map(|file| warning(&file, now));
    let expiring = expiring.map(|what| CertificateWarning { what, help: "renew it, then reload the server" });
    let users: Vec<String> = self_made::users(config).map(ToString::to_string).collect();
    let self_made = (!users.is_empty() && !has_obtained(config)).then(|| CertificateWarning {
        what: format!("self-made certificate, which clients do not trust, at {}", users.join(", ")),
        help: if config.acme.enabled {
            "`posthaste acme renew` says what is in the way of a better one"
        } else {
            "set `certificate` below [tls], or `enabled` below [acme]"
        },
    });
    let failed = posthaste_acme::failures(&config.acme_dir()).into_iter().filter(|_| config.acme.enabled);
    let failed = failed.map(|(name, why)| CertificateWarning {
        what: format!("no new certificate for {name}: {why}"),
        help: "`posthaste acme renew` tries at once",
    });
    self_made.into_iter().chain(failed).chain(expiring).collect()
}

fn has_obtained(config: &Config) -> bool {
    crate::config::acme::files(config).any(|file| file.exists())
}

/// Expiry of each certificate of a listener, in seconds since 1970. Blocks. Unreadable files are left out.
pub(crate) fn ends(config: &Config) -> Vec<(PathBuf, u64)> {
    files(config).into_iter().filter_map(|file| end(&file).map(|end| (file, end))).collect()
}

/// A certificate of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerCertificate {
    pub file: PathBuf,
    /// Expiry, in seconds since 1970.
    pub ends: u64,
    /// The name of its issuer; empty if it has none for display.
    pub issuer: String,
    /// No authority has signed it.
    pub is_self_made: bool,
}

/// The certificates of listeners. Blocks. Files that cannot be read are left out.
pub(crate) fn certificates(config: &Config) -> Vec<ListenerCertificate> {
    let of = |file: PathBuf| {
        let own = CertificateDer::pem_file_iter(&file).ok()?.next()?.ok()?;
        let ((_, ends), (issuer, subject)) = (x509::validity(&own)?, x509::names(&own)?);
        let (issuer, is_self_made) = (x509::text_of_name(issuer).unwrap_or_default(), issuer == subject);
        Some(ListenerCertificate { file, ends, issuer, is_self_made })
    };
    files(config).into_iter().filter_map(of).collect()
}

/// Files of the configuration and of the authority, and the self-made one if it is in use.
fn files(config: &Config) -> Vec<PathBuf> {
    let self_made = self_made::users(config).next().filter(|_| !has_obtained(config)).map(|_| config.self_made_file());
    configured(config).into_iter().chain(self_made).collect()
}

fn configured(config: &Config) -> Vec<PathBuf> {
    let files = config.listeners.iter().flat_map(Listener::certificate_files).map(|files| files.chain);
    let mut files: Vec<PathBuf> = files.chain(crate::config::acme::files(config)).collect();
    files.sort();
    files.dedup();
    files
}

fn end(file: &Path) -> Option<u64> {
    let own = CertificateDer::pem_file_iter(file).ok()?.next()?.ok()?;
    x509::validity(&own).map(|(_, end)| end)
}

fn warning(file: &Path, now: SystemTime) -> Option<String> {
    let end = UNIX_EPOCH + Duration::from_secs(end(file)?);
    let file = file.display();
    match end.duration_since(now) {
        Ok(left) if left > NOTICE => None,
        Ok(left) => Some(format!("{file}: this certificate expires in {}", in_words(left))),
        Err(since) => {
            let ago = in_words(since.duration());
            Some(format!("{file}: this certificate expired {ago} ago, and clients that check it send no mail"))
        }
    }
}

fn in_words(time: Duration) -> String {
    let hours = time.as_secs() / 3600;
    match hours {
        0..48 => format!("{hours} hours"),
        hours => format!("{} days", hours / 24),
    }
}

/// True for a certificate that is not self-signed. Blocks. False if it cannot be read.
pub(crate) fn is_of_authority(file: &Path) -> bool {
    let own = CertificateDer::pem_file_iter(file).ok().and_then(|mut all| all.next()?.ok());
    own.and_then(|own| x509::names(&own).map(|(issuer, subject)| issuer != subject)).unwrap_or(false)
}

/// Time before expiry at which the log warns. Renewals begin a month before it.
const NOTICE: Duration = Duration::from_secs(14 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_an_authority_has_another_issuer() {
        let dir = tempfile::tempdir().unwrap();
        let check = |der: &[u8], expected: bool| {
            let file = dir.path().join("cert.pem");
            let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
            std::fs::write(&file, format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")).unwrap();
            assert_eq!(is_of_authority(&file), expected);
        };
        let named = |name: &str| {
            let mut params = rcgen::CertificateParams::new(vec!["mx.example.org".to_owned()]).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params
        };
        let text = format!(
            "[tls]\ncertificate = {:?}\nkey = 'k'\n[[listener]]\naddress = '[::]:25'\n",
            dir.path().join("cert.pem")
        );
        let configured = Config::parse(Path::new("x"), &text).unwrap();
        let (of_authority, own) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        check(named("mx.example.org").self_signed(&own).unwrap().der(), false);
        let authority = rcgen::Issuer::new(named("Authority"), of_authority);
        check(named("mx.example.org").signed_by(&own, &authority).unwrap().der(), true);
        assert_eq!(
            certificates(&configured).first().map(|of| (&*of.issuer, of.is_self_made)),
            Some(("Authority", false))
        );
        check(b"nonsense", false);
        assert_eq!(certificates(&configured), []);
        assert!(!is_of_authority(&dir.path().join("absent.pem")));
    }

    #[test]
    fn a_certificate_is_warned_of_in_its_last_fortnight() {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.path().join("c"), certificate_pem(certificate.der())).unwrap();
        let place = dir.path().display();
        let text = format!(
            "[tls]\ncertificate = '{place}/c'\nkey = 'k'\n[[listener]]\naddress = '[::]:25'\n[[listener]]\naddress = '[::]:465'\n"
        );
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let check = |hours: i64, expected: &[&str]| {
            let now = UNIX_EPOCH + Duration::from_secs((1_935_792_000 - hours * 3600) as u64);
            let expected: Vec<String> =
                expected.iter().map(|text| format!("{place}/c: this certificate {text}")).collect();
            let found: Vec<String> = warnings(&config, now).into_iter().map(|warning| warning.what).collect();
            assert_eq!(found, expected, "{hours}");
        };
        check(15 * 24, &[]);
        check(14 * 24, &["expires in 14 days"]);
        check(47, &["expires in 47 hours"]);
        check(-72, &["expired 3 days ago, and clients that check it send no mail"]);
        std::fs::write(dir.path().join("c"), "").unwrap();
        check(0, &[]);
    }

    fn certificate_pem(der: &[u8]) -> String {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }
}
