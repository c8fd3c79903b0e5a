//! When certificates expire.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::self_made;
use posthaste_config::{Config, Listener};

/// What somebody has to do about a certificate.
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

/// Certificates of listeners that have expired or soon will, and listeners that have none of the configuration. Blocks. Files that cannot be read are left
/// out: others tell of them.
pub(crate) fn warnings(config: &Config, now: SystemTime) -> Vec<CertificateWarning> {
    let expiring = configured(config).into_iter().filter_map(|file| warning(&file, now));
    let expiring = expiring.map(|what| CertificateWarning { what, help: "renew it, then reload the server" });
    let users: Vec<String> = self_made::users(config).map(ToString::to_string).collect();
    let self_made = (!users.is_empty()).then(|| CertificateWarning {
        what: format!("self-made certificate, which clients do not trust, at {}", users.join(", ")),
        help: "set `certificate` below [tls]",
    });
    self_made.into_iter().chain(expiring).collect()
}

/// When each certificate of a listener ends, in seconds since 1970. Blocks. Files that cannot be read are left out.
pub(crate) fn ends(config: &Config) -> Vec<(PathBuf, u64)> {
    files(config).into_iter().filter_map(|file| end(&file).map(|end| (file, end))).collect()
}

/// Those of the configuration, and the self-made one where it is in use.
fn files(config: &Config) -> Vec<PathBuf> {
    let self_made = self_made::users(config).next().map(|_| self_made::file(config));
    configured(config).into_iter().chain(self_made).collect()
}

fn configured(config: &Config) -> Vec<PathBuf> {
    let files = config.listeners.iter().flat_map(Listener::certificate_files).map(|files| files.chain);
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files.dedup();
    files
}

/// The end of a certificate.
pub(crate) fn end_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    not_after(certificate).map(|end| UNIX_EPOCH + Duration::from_secs(end))
}

fn end(file: &Path) -> Option<u64> {
    let own = CertificateDer::pem_file_iter(file).ok()?.next()?.ok()?;
    not_after(&own)
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

/// True for a certificate that another name than its own has signed. Blocks. False if it cannot be read.
pub(crate) fn is_of_authority(file: &Path) -> bool {
    let own = CertificateDer::pem_file_iter(file).ok().and_then(|mut all| all.next()?.ok());
    own.and_then(|own| names(&own).map(|(issuer, subject)| issuer != subject)).unwrap_or(false)
}

/// Time before its end at which a certificate is warned of. Renewals begin a month before it.
const NOTICE: Duration = Duration::from_secs(14 * 86_400);

/// The end of the validity of a certificate (RFC 5280 section 4.1.2.5), in seconds since 1970; `None` if it is none, or ended before.
fn not_after(certificate: &[u8]) -> Option<u64> {
    let mut fields = from_issuer(certificate)?;
    element(&mut fields)?;
    let (_, mut validity) = element(&mut fields)?;
    element(&mut validity)?;
    let (tag, time) = element(&mut validity)?;
    seconds(tag, time)
}

/// Issuer and subject of a certificate.
fn names(certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = from_issuer(certificate)?;
    let (_, issuer) = element(&mut fields)?;
    element(&mut fields)?;
    let (_, subject) = element(&mut fields)?;
    Some((issuer, subject))
}

/// The fields of a certificate from its issuer on: that, the validity, the subject and more.
fn from_issuer(certificate: &[u8]) -> Option<&[u8]> {
    let (_, certificate) = element(&mut &*certificate)?;
    let (_, mut fields) = element(&mut &*certificate)?;
    // The version has a tag of its own, and may be missing. Then come the serial number and the algorithm.
    const VERSION: u8 = 0xa0;
    let first = element(&mut fields)?;
    for _ in 0..if first.0 == VERSION { 2 } else { 1 } {
        element(&mut fields)?;
    }
    Some(fields)
}

/// Takes an element of DER (X.690 section 8.1): its tag and its contents.
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, after) = rest.split_first()?;
    let (&first, mut after) = after.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let octets;
        (octets, after) = after.split_at_checked(usize::from(first & 0x7f)).filter(|(octets, _)| octets.len() <= 4)?;
        length = octets.iter().fold(0, |length, octet| length << 8 | usize::from(*octet));
    }
    let contents;
    (contents, *rest) = after.split_at_checked(length)?;
    Some((tag, contents))
}

/// UTCTime, whose years begin with 1950, or GeneralizedTime; both end in Z and have seconds.
fn seconds(tag: u8, time: &[u8]) -> Option<u64> {
    let digits = time.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (0x17, 12) => (number(&digits[..2]), &digits[2..]),
        (0x18, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let year = if tag == 0x17 { year + if year < 50 { 2000 } else { 1900 } } else { year };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - DAYS_TO_1970) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// From 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_certificates_have_them() {
        let check = |tag: u8, text: &str, expected: Option<u64>| {
            assert_eq!(seconds(tag, text.as_bytes()), expected, "{text}");
        };
        check(0x17, "700101000000Z", Some(0));
        check(0x17, "000229235959Z", Some(951_868_799));
        check(0x17, "491231235959Z", Some(2_524_607_999));
        check(0x18, "20500101000000Z", Some(2_524_608_000));
        check(0x18, "99991231235959Z", Some(253_402_300_799));
        for bad in ["", "Z", "700001000000Z", "7001010000Z", "700101000000", "70010100000xZ", "691231235959Z"] {
            check(0x17, bad, None);
        }
    }

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
        let (of_authority, own) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        check(named("mx.example.org").self_signed(&own).unwrap().der(), false);
        let authority = rcgen::Issuer::new(named("Authority"), of_authority);
        check(named("mx.example.org").signed_by(&own, &authority).unwrap().der(), true);
        check(b"nonsense", false);
        assert!(!is_of_authority(&dir.path().join("absent.pem")));
    }

    #[test]
    fn the_end_of_a_certificate_is_found_and_of_nothing_else() {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let der = certificate.der();
        assert_eq!(not_after(der), Some(1_935_792_000));
        for end in 0..der.len() {
            assert_eq!(not_after(&der[..end]), None, "{end}");
        }
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
