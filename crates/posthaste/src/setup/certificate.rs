//! Waits for the first certificate of the authority, which the running server orders.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_acme::{certificate_file, last_failure};
use posthaste_net::{tls, x509};

use super::finding::{Finding, Verdict};
use crate::queue::AnyError;

/// Waits until the host has a certificate in `dir`, or its first try has failed. Blocks.
///
/// # Errors
/// Errors of `go_on`.
pub fn wait_for(dir: &Path, host: &str, go_on: impl Fn() -> Result<(), AnyError>) -> Result<Finding, AnyError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(finding) = found(dir, host) {
            return Ok(finding);
        }
        if Instant::now() > deadline {
            let text = "none yet: the authority takes its time; `posthaste acme renew` says more";
            return Ok(Finding::new(TOPIC, text, Verdict::Note));
        }
        go_on()?;
        std::thread::sleep(LOOK);
    }
}

/// The certificate, or why there is none. `None` before the first try has ended.
fn found(dir: &Path, host: &str) -> Option<Finding> {
    if let Some(days) = days_left(&certificate_file(dir, host)) {
        let text = format!("of {host}, valid {days} days, renews by itself");
        return Some(Finding::new(TOPIC, text, Verdict::Ok));
    }
    let why = last_failure(dir, host)?;
    Some(Finding::new(TOPIC, format!("none yet: {why}; the server tries again by itself"), Verdict::Note))
}

fn days_left(file: &Path) -> Option<u64> {
    let key = tls::certified_key(file, file).ok()?;
    let (_, end) = x509::validity(key.cert.first()?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    end.checked_sub(now).map(|secs| secs / DAY_SECS)
}

const TOPIC: &str = "certificate";
/// An order takes some seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
const DAY_SECS: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "mx.example.org";

    #[test]
    fn a_certificate_or_the_reason_for_none_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(found(dir.path(), HOST), None);
        let stopped = wait_for(dir.path(), HOST, || Err("interrupted".into())).unwrap_err();
        assert_eq!(stopped.to_string(), "interrupted");
        // As the server writes it after a failed try.
        let failed = "{\"mx.example.org\":{\"why\":\"it has no address in DNS\"}}\n".to_owned();
        std::fs::write(dir.path().join("names.json"), posthaste_fsops::with_checksum(failed)).unwrap();
        let none = wait_for(dir.path(), HOST, || Ok(())).unwrap();
        let text = "none yet: it has no address in DNS; the server tries again by itself";
        assert_eq!(none, Finding::new(TOPIC, text, Verdict::Note));
        assert_eq!(found(dir.path(), "mx.other.example"), None);

        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        let pem = made.signing_key.serialize_pem() + &made.cert.pem();
        std::fs::write(dir.path().join("mx.example.org.pem"), pem).unwrap();
        let there = wait_for(dir.path(), HOST, || Ok(())).unwrap();
        assert!(there.verdict == Verdict::Ok && there.text.starts_with("of mx.example.org, valid "), "{there:?}");
    }
}
