use std::cell::OnceCell;
use std::fmt;

use aws_lc_rs::digest::{Digest, SHA256, SHA256_OUTPUT_LEN, SHA512, SHA512_OUTPUT_LEN, digest};
use posthaste_dns::TlsaRecord;
use rustls::pki_types::CertificateDer;

use crate::PublicKeyInfo;

/// A usable TLSA record: DANE-EE(3) or DANE-TA(2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association {
    usage: Usage,
    selector: Selector,
    matching: Matching,
    data: Box<[u8]>,
}

/// Certificate usage (RFC 6698 section 2.1.1, RFC 7218).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    /// DANE-TA(2).
    Anchor = 2,
    /// DANE-EE(3).
    Server = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selector {
    Certificate = 0,
    Key = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matching {
    Whole = 0,
    Sha256 = 1,
    Sha512 = 2,
}

/// A certificate sent by a server. Each digest is computed at most once, as there may be many records.
#[derive(Debug)]
pub struct SentCertificate<'a> {
    /// `None` until it is computed.
    whole: Option<&'a [u8]>,
    /// `None` if it has no readable key.
    key: Option<&'a [u8]>,
    /// SHA-256 digests by selector.
    sha256: [OnceCell<Digest>; 2],
    sha512: [OnceCell<Digest>; 2],
}

impl<'a> SentCertificate<'a> {
    /// In DER.
    pub fn new(certificate: &'a [u8]) -> Self {
        let key = PublicKeyInfo::of_certificate(certificate).map(|info| info.whole);
        Self { whole: Some(certificate), key, sha256: Default::default(), sha512: Default::default() }
    }

    /// Any certificate with this key, a SubjectPublicKeyInfo in DER.
    pub(crate) fn of_key(key: &'a [u8]) -> Self {
        Self { whole: None, key: Some(key), sha256: Default::default(), sha512: Default::default() }
    }

    fn selected(&self, selector: Selector) -> Option<&'a [u8]> {
        match selector {
            Selector::Certificate => self.whole,
            Selector::Key => self.key,
        }
    }
}

impl Association {
    /// The usable records of a host. For SMTP the usages 0 and 1 are unusable (RFC 7672 section 3.1.3). Also unusable:
    /// unknown numbers, digests of a wrong length, and data that is not a certificate or key. If a host has both digests
    /// of a kind, only SHA-512 counts (RFC 7671 section 9).
    pub fn usable(records: &[TlsaRecord]) -> Vec<Self> {
        let all: Vec<Self> = records.iter().filter_map(Self::of).collect();
        let is_outdone = |of: &Self| {
            let by = |other: &Self| {
                (other.usage, other.selector, other.matching) == (of.usage, of.selector, Matching::Sha512)
            };
            of.matching == Matching::Sha256 && all.iter().any(by)
        };
        all.iter().filter(|of| !is_outdone(of)).cloned().collect()
    }

    fn of(record: &TlsaRecord) -> Option<Self> {
        let usage = match record.usage {
            2 => Usage::Anchor,
            3 => Usage::Server,
            _ => return None,
        };
        let selector = match record.selector {
            0 => Selector::Certificate,
            1 => Selector::Key,
            _ => return None,
        };
        let data = &record.data;
        let (matching, is_well_formed) = match (record.matching, selector) {
            (0, Selector::Certificate) => (Matching::Whole, PublicKeyInfo::of_certificate(data).is_some()),
            (0, Selector::Key) => (Matching::Whole, PublicKeyInfo::read(data).is_some()),
            (1, _) => (Matching::Sha256, data.len() == SHA256_OUTPUT_LEN),
            (2, _) => (Matching::Sha512, data.len() == SHA512_OUTPUT_LEN),
            _ => return None,
        };
        is_well_formed.then(|| Self { usage, selector, matching, data: data.clone() })
    }

    /// A record for a server's key, a SubjectPublicKeyInfo in DER, with a digest that counts beside these records (RFC
    /// 7671 section 9).
    pub(crate) fn of_key(key: &[u8], beside: &[Self]) -> Self {
        let usage = Usage::Server;
        let selector = Selector::Key;
        let has_stronger = |of: &Self| (of.usage, of.selector, of.matching) == (usage, selector, Matching::Sha512);
        let (matching, algorithm) =
            if beside.iter().any(has_stronger) { (Matching::Sha512, &SHA512) } else { (Matching::Sha256, &SHA256) };
        Self { usage, selector, matching, data: digest(algorithm, key).as_ref().into() }
    }

    pub(crate) fn is_anchor(&self) -> bool {
        self.usage == Usage::Anchor
    }

    /// True if it matches this certificate, or its key, as the server's own.
    pub fn names_server(&self, certificate: &SentCertificate<'_>) -> bool {
        self.usage == Usage::Server && self.matches(certificate)
    }

    /// True if it matches this certificate, or its key, as an issuer of the server's.
    pub fn names_anchor(&self, certificate: &SentCertificate<'_>) -> bool {
        self.usage == Usage::Anchor && self.matches(certificate)
    }

    /// The anchor in the record itself: a server need not send it (RFC 7671 section 5.2.2).
    pub(crate) fn own_anchor(&self) -> Option<CertificateDer<'_>> {
        let is_own =
            (self.usage, self.selector, self.matching) == (Usage::Anchor, Selector::Certificate, Matching::Whole);
        is_own.then(|| CertificateDer::from(&*self.data))
    }

    fn matches(&self, sent: &SentCertificate<'_>) -> bool {
        let Some(selected) = sent.selected(self.selector) else { return false };
        let by_selector = self.selector as usize;
        *self.data
            == *match self.matching {
                Matching::Whole => selected,
                Matching::Sha256 => sent.sha256[by_selector].get_or_init(|| digest(&SHA256, selected)).as_ref(),
                Matching::Sha512 => sent.sha512[by_selector].get_or_init(|| digest(&SHA512, selected)).as_ref(),
            }
    }

    /// Text as in a zone file, with at most this many octets of data.
    pub(crate) fn text(&self, octets_max: usize) -> String {
        let Self { usage, selector, matching, data } = self;
        let shown: String = data.iter().take(octets_max).map(|octet| format!("{octet:02x}")).collect();
        let rest = if data.len() > octets_max { "…" } else { "" };
        format!("{} {} {} {shown}{rest}", *usage as u8, *selector as u8, *matching as u8)
    }

    /// Octets of memory.
    pub(crate) fn octets(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

impl fmt::Display for Association {
    /// As in a zone file (RFC 6698 section 2.2).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(self.data.len()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verifier::tests::self_signed;

    /// A record of a certificate.
    pub fn record(usage: u8, selector: u8, matching: u8, certificate: &[u8]) -> TlsaRecord {
        let selected = match selector {
            0 => certificate,
            _ => PublicKeyInfo::of_certificate(certificate).unwrap().whole,
        };
        let data = match matching {
            0 => selected.to_vec(),
            1 => digest(&SHA256, selected).as_ref().to_vec(),
            _ => digest(&SHA512, selected).as_ref().to_vec(),
        };
        TlsaRecord { usage, selector, matching, data: data.into() }
    }

    #[test]
    fn each_selector_and_matching_type_names_its_certificate_alone() {
        let ((one, _), (other, _)) = (self_signed("mx.example"), self_signed("mx.example"));
        for (selector, matching) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            let of = |usage| Association::usable(&[record(usage, selector, matching, &one)]).remove(0);
            let one = SentCertificate::new(&one);
            let other = SentCertificate::new(&other);
            assert!(of(3).names_server(&one) && !of(3).names_server(&other), "3 {selector} {matching}");
            assert!(of(2).names_anchor(&one) && !of(2).names_anchor(&other), "2 {selector} {matching}");
            assert!(!of(3).names_anchor(&one) && !of(2).names_server(&one), "{selector} {matching}");
        }
    }

    #[test]
    fn only_digests_that_a_record_needs_are_computed_and_once() {
        let ((one, _), (other, _)) = (self_signed("mx.example"), self_signed("mx.example"));
        let sent = SentCertificate::new(&one);
        let computed = || [&sent.sha256, &sent.sha512].map(|of| [of[0].get().is_some(), of[1].get().is_some()]);
        let matches = |selector, matching| {
            let records = [record(3, selector, matching, &other), record(2, selector, matching, &other)];
            Association::usable(&records).iter().any(|of| of.names_server(&sent) || of.names_anchor(&sent))
        };
        assert!(!matches(0, 0) && !matches(1, 0) && computed() == [[false; 2]; 2]);
        assert!(!matches(1, 1) && computed() == [[false, true], [false, false]]);
        let first = sent.sha256[1].get().map(std::ptr::from_ref);
        assert!(!matches(1, 1) && !matches(0, 2) && computed() == [[false, true], [true, false]]);
        assert_eq!(sent.sha256[1].get().map(std::ptr::from_ref), first);
    }

    #[test]
    fn records_that_smtp_does_not_know_are_unusable() {
        let (certificate, _) = self_signed("mx.example");
        for (usage, selector, matching) in [(0, 1, 1), (1, 1, 1), (4, 1, 1), (255, 1, 1)] {
            let record = record(usage, selector, matching, &certificate);
            assert_eq!(Association::usable(&[record]), [], "{usage} {selector} {matching}");
        }
        let good = record(3, 1, 1, &certificate);
        for (selector, matching, octets) in [
            (2, 1, 32),
            (255, 1, 32),
            (1, 3, 32),
            (1, 1, 31),
            (1, 1, 33),
            (1, 1, 0),
            (1, 2, 32),
            (0, 0, 32),
            (1, 0, 32),
        ] {
            let bad = TlsaRecord { usage: 3, selector, matching, data: vec![1; octets].into() };
            assert_eq!(Association::usable(std::slice::from_ref(&bad)), [], "{selector} {matching} {octets}");
            assert_eq!(Association::usable(&[bad, good.clone()]).len(), 1, "the good one counts");
        }
    }

    #[test]
    fn of_two_digests_the_stronger_counts() {
        let ((old, _), (new, _)) = (self_signed("mx.example"), self_signed("mx.example"));
        let sent = SentCertificate::new(&old);
        let of = |records: &[TlsaRecord]| Association::usable(records).iter().any(|of| of.names_server(&sent));
        let weak = record(3, 1, 1, &old);
        assert!(of(std::slice::from_ref(&weak)));
        assert!(!of(&[weak.clone(), record(3, 1, 2, &new)]));
        for kept in [record(3, 0, 2, &new), record(2, 1, 2, &new), record(3, 1, 0, &new), record(1, 1, 2, &new)] {
            assert!(of(&[weak.clone(), kept.clone()]), "{kept:?} is of another kind");
        }
    }

    proptest! {
        #[test]
        fn one_other_octet_in_a_record_or_certificate_is_no_match(
            (usage, selector, matching) in (2..=3u8, 0..=1u8, 0..=2u8),
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let (certificate, _) = self_signed("mx.example");
            let names = |record: TlsaRecord, certificate: &[u8]| {
                let usable = Association::usable(&[record]);
                let sent = SentCertificate::new(certificate);
                usable.iter().any(|of| of.names_server(&sent) || of.names_anchor(&sent))
            };
            let good = record(usage, selector, matching, &certificate);
            prop_assert!(names(good.clone(), &certificate));
            let mut data = good.data.clone();
            data[at.index(data.len())] ^= flip;
            let other_record = TlsaRecord { data, ..good.clone() };
            prop_assert!(!names(other_record, &certificate));
            let mut other = certificate.clone();
            other[at.index(certificate.len())] ^= flip;
            // A record of a key is for each certificate with that key.
            let key = |certificate| PublicKeyInfo::of_certificate(certificate).map(|info| info.whole);
            let has_the_key = selector == 1 && key(&other) == key(&certificate);
            prop_assert_eq!(names(good, &other), has_the_key);
        }
    }
}
