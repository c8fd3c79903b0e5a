//! Counts of sessions with other hosts, by the demand on TLS and the result.

use std::sync::atomic::{AtomicU64, Ordering};

use super::route::Manner;
use crate::session::{Channel, OutgoingSession, SessionOpenError, SessionSettings, TlsPolicy};

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct TlsCounts([[AtomicU64; RESULTS.len()]; POLICIES.len()]);

impl TlsCounts {
    /// Counts a session, or its failure for lack of TLS, and returns the demand and the result of a failure. Other
    /// failures say nothing about TLS.
    pub fn count(
        &self,
        manner: &Manner,
        settings: &SessionSettings,
        opened: &Result<OutgoingSession, SessionOpenError>,
    ) -> Option<[&'static str; 2]> {
        let result = match opened {
            Ok(session) => match session.channel() {
                Channel::Clear => "clear",
                Channel::Encrypted => "encrypted",
                Channel::Verified => "verified",
            },
            Err(SessionOpenError::Handshake { error, .. }) if is_of_certificate(error) => "certificate",
            Err(SessionOpenError::Handshake { .. } | SessionOpenError::TlsLost(_)) => "handshake",
            Err(error) if error.has_no_starttls() => "not_offered",
            Err(_) => return None,
        };
        let demand = policy(manner, settings);
        self.add(demand, result);
        opened.is_err().then_some([demand, result])
    }

    /// Counts a host without a connection: its TLSA records are unknown. Returns demand and result.
    pub fn count_unanswered(&self) -> [&'static str; 2] {
        self.add(DANE, NO_ANSWER);
        [DANE, NO_ANSWER]
    }

    fn add(&self, demand: &str, result: &str) {
        let at = |all: &[&str], name| all.iter().position(|known| *known == name).expect("it is in the table");
        self.0[at(&POLICIES, demand)][at(&RESULTS, result)].fetch_add(1, Ordering::Relaxed);
    }

    /// Policy, result and count of each pair seen so far.
    pub fn read(&self) -> Vec<(&'static str, &'static str, u64)> {
        let of = |(policy, counts): (&&'static str, &[AtomicU64; RESULTS.len()])| {
            let policy = *policy;
            let counts: Vec<_> =
                RESULTS.iter().zip(counts.each_ref().map(|count| count.load(Ordering::Relaxed))).collect();
            counts.into_iter().map(move |(result, count)| (policy, *result, count))
        };
        POLICIES.iter().zip(&self.0).flat_map(of).filter(|(.., count)| *count > 0).collect()
    }
}

fn policy(manner: &Manner, settings: &SessionSettings) -> &'static str {
    match manner.tls.as_ref().map(|tls| tls.policy) {
        _ if settings.tls.as_ref().is_some_and(|tls| tls.is_dane) => DANE,
        _ if manner.is_mta_sts => "mta-sts",
        None => "off",
        Some(TlsPolicy::Opportunistic) => "opportunistic",
        Some(TlsPolicy::Required) => "required",
        Some(TlsPolicy::Verified) => "verified",
    }
}

fn is_of_certificate(error: &std::io::Error) -> bool {
    let of_rustls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(of_rustls, Some(rustls::Error::InvalidCertificate(_)))
}

const DANE: &str = "dane";
const NO_ANSWER: &str = "no_answer";
const POLICIES: [&str; 6] = [DANE, "mta-sts", "verified", "required", "opportunistic", "off"];
const RESULTS: [&str; 7] = ["verified", "encrypted", "clear", "not_offered", "certificate", "handshake", NO_ANSWER];
