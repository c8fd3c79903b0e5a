//! Retry time of each name. Kept on disk: a server that restarts often must not ask more often.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::AcmeError;
use crate::files::{Kept, read_json, write_json};

/// Retry state of a name, stored next to its certificate. Times are in seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Wait {
    /// Failures in a row.
    pub failures: u32,
    /// Time of the next attempt; a command may try earlier.
    pub next: u64,
    /// The last failure.
    pub why: Option<String>,
    /// Renewal time that the authority suggests (RFC 9773).
    pub renew_at: Option<u64>,
    /// Time of the next renewal query to the authority.
    pub ask_at: u64,
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Latest renewal time that the authority may suggest, as a fraction of the lifetime, so that it cannot let a
/// certificate expire.
const LATEST: (u64, u64) = (9, 10);

impl Wait {
    /// Counts a failure. The next attempt waits an hour, doubled with each failure up to a day.
    pub fn failed(&mut self, now: u64, why: String) {
        let wait = (HOUR << self.failures.min(5)).min(DAY);
        (self.failures, self.next, self.why) = (self.failures.saturating_add(1), now + wait, Some(why));
    }

    /// Renewal time of a certificate: the one that the authority suggests, else two thirds of its lifetime.
    pub fn renewal(&self, kept: &Kept) -> u64 {
        let life = kept.not_after.saturating_sub(kept.not_before);
        let part = |(of, all): (u64, u64)| kept.not_before + life / all * of;
        self.renew_at.map_or_else(|| part((2, 3)), |at| at.min(part(LATEST)))
    }
}

/// The history of all names.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    file: PathBuf,
    pub of: BTreeMap<String, Wait>,
}

impl Waits {
    /// Blocks. An unreadable or damaged file counts as missing.
    pub fn read(dir: &Path) -> Self {
        let file = dir.join("names.json");
        let of = read_json(&file);
        Self { file, of: of.unwrap_or_default() }
    }

    /// Writes the file. Blocks.
    ///
    /// # Errors
    /// [`AcmeError::File`].
    pub fn write(&self) -> Result<(), AcmeError> {
        write_json(&self.file, &self.of)
    }
}

/// Names whose last try failed, with the reason. A name without a DNS record is left out: it waits for the record.
/// Blocks.
pub fn failures(dir: &Path) -> Vec<(String, String)> {
    let failed = Waits::read(dir).of.into_iter().filter(|(_, wait)| wait.failures > 0);
    failed.filter_map(|(name, wait)| Some((name, wait.why?))).collect()
}

/// Why a name has no new certificate, if its last try failed. Blocks.
pub fn last_failure(dir: &Path, name: &str) -> Option<String> {
    Waits::read(dir).of.remove(name)?.why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_wait_an_hour_doubling_to_a_day_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut waits = Waits::read(dir.path());
        for hours in [1, 2, 4, 8, 16, 24, 24, 24] {
            let wait = waits.of.entry("mx.example.org".to_owned()).or_default();
            wait.failed(1000, "why".to_owned());
            assert_eq!(wait.next, 1000 + hours * HOUR);
            waits.write().unwrap();
            let again = Waits::read(dir.path());
            assert_eq!(again.of, waits.of);
            waits = again;
        }
        let file = dir.path().join("names.json");
        let whole = std::fs::read(&file).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, bytes).unwrap();
            assert!(Waits::read(dir.path()).of.is_empty(), "bit {bit}");
        }
    }

    #[test]
    fn renewal_is_at_two_thirds_or_as_the_authority_says() {
        let made = rcgen::generate_simple_self_signed(vec!["mx.example.org".to_owned()]).unwrap();
        let der = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = rustls::sign::CertifiedKey::from_der(vec![made.cert.der().clone()], der.into(), &provider).unwrap();
        let kept = |days: u64| Kept { key: key.clone().into(), not_before: 1000, not_after: 1000 + days * DAY };
        let check = |days, renew_at, expected| {
            assert_eq!(Wait { renew_at, ..Wait::default() }.renewal(&kept(days)), 1000 + expected);
        };
        check(90, None, 60 * DAY);
        // A certificate of six days.
        check(6, None, 4 * DAY);
        check(90, Some(1000 + 70 * DAY), 70 * DAY);
        check(90, Some(1005), 5);
        check(90, Some(1000 + 100 * DAY), 81 * DAY);
    }
}
