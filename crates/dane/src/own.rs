//! TLSA records of a host of ours: for the certificate that it has, and for the key that it will have.

use std::path::{Path, PathBuf};

use posthaste_dns::{FoundRecord, RecordSource, TlsaRecord, WantedRecord};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;

use crate::{Association, DaneVerifier, PublicKeyInfo, SentCertificate};

/// PEM files of the certificates that a host may present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFiles {
    /// Configured by the operator, in order. Their next keys are unknown.
    pub configured: Vec<PathBuf>,
    /// Obtained from an authority, in order; used for names without a configured certificate.
    pub obtained: Vec<PathBuf>,
    /// Used if there is no other.
    pub self_made: Option<PathBuf>,
    /// The private key of the next obtained certificate. `None` if the key stays.
    pub next_key: Option<PathBuf>,
}

/// The certificate that our host presents to senders, and its next key.
#[derive(Debug, Clone, Default)]
pub struct HostCertificate {
    host: String,
    /// The host's own first. Empty if it cannot be read.
    chain: Vec<CertificateDer<'static>>,
    /// SubjectPublicKeyInfo of the next key, in DER. `None`: unknown.
    next_key: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Configured,
    Obtained,
    SelfMade,
}

impl HostCertificate {
    /// Reads the certificate that the host presents under its name. Blocks. Unreadable files count as missing.
    pub fn read(host: &str, files: &HostFiles) -> Self {
        let of = |files: &[PathBuf], origin| -> Vec<_> {
            files.iter().filter_map(|file| Some((read_chain(file)?, origin))).collect()
        };
        let mut all = of(&files.configured, Origin::Configured);
        all.extend(of(&files.obtained, Origin::Obtained));
        if all.is_empty() {
            all = of(files.self_made.as_slice(), Origin::SelfMade);
        }
        let chosen = all.iter().position(|(chain, _)| has_name(&chain[0], host)).unwrap_or(0);
        let Some((chain, origin)) = all.into_iter().nth(chosen) else {
            return Self { host: host.to_owned(), ..Self::default() };
        };
        let next_key = match &files.next_key {
            _ if origin == Origin::Configured => None,
            Some(file) if origin == Origin::Obtained => read_key(file),
            _ => PublicKeyInfo::of_certificate(&chain[0]).map(|key| key.whole.to_vec()),
        };
        Self { host: host.to_owned(), chain, next_key }
    }

    /// The TLSA records that senders need at port 25: for the present certificate, and for the next key if it differs.
    /// Empty if the host has no usable ones, or on a timeout.
    pub async fn records(&self, source: RecordSource<'_>) -> Vec<WantedRecord> {
        // Some servers do not know the type, and most hosts have no such records.
        self.wanted(&source.tlsa(&self.host, SMTP).await.unwrap_or_default())
    }

    /// True if senders still accept the host by these records after a renewal by the same authority with this key, a
    /// SubjectPublicKeyInfo in DER.
    pub fn outlasts(&self, found: &[TlsaRecord], key: &[u8]) -> bool {
        let usable = Association::usable(found);
        usable.is_empty() || self.lasting(&usable, key).is_some()
    }

    fn wanted(&self, found: &[TlsaRecord]) -> Vec<WantedRecord> {
        let usable = Association::usable(found);
        let key = self.chain.first().and_then(|own| PublicKeyInfo::of_certificate(own));
        let Some(PublicKeyInfo { whole: key, .. }) = key.filter(|_| !usable.is_empty()) else { return Vec::new() };
        let record = |key: &[u8], by: Option<&Association>, otherwise: FoundRecord| WantedRecord {
            name: format!("_{SMTP}._tcp.{}", self.host),
            kind: "TLSA",
            value: by.map_or_else(|| Association::of_key(key, &usable).to_string(), ToString::to_string),
            found: if by.is_some() { FoundRecord::Same } else { otherwise },
        };
        let there: Vec<String> = usable.iter().map(|of| of.text(SHOWN_OCTETS)).collect();
        let there = FoundRecord::Other(there.join(", "));
        let Some(next) = self.next_key.as_deref() else {
            return vec![record(key, self.accepting(&usable), there)];
        };
        if next == key {
            return vec![record(key, self.lasting(&usable, key), there)];
        }
        let mut both = vec![
            record(key, self.accepting(&usable), there),
            record(next, self.lasting(&usable, next), FoundRecord::Nothing),
        ];
        // An anchor is for both.
        both.dedup();
        both
    }

    /// The first record that matches the present certificate.
    fn accepting<'a>(&self, usable: &'a [Association]) -> Option<&'a Association> {
        usable.iter().find(|of| self.is_accepted_by(of))
    }

    /// The first record that matches a later certificate with this key.
    fn lasting<'a>(&self, usable: &'a [Association], key: &[u8]) -> Option<&'a Association> {
        let later = SentCertificate::of_key(key);
        usable.iter().find(|of| of.names_server(&later) || of.is_anchor() && self.is_accepted_by(of))
    }

    fn is_accepted_by(&self, of: &Association) -> bool {
        let (Some((own, sent)), Ok(name)) = (self.chain.split_first(), ServerName::try_from(self.host.clone())) else {
            return false;
        };
        let verifier = DaneVerifier::new([of.clone()].into(), vec![name.clone()]);
        verifier.verify_server_cert(own, sent, &name, &[], UnixTime::now()).is_ok()
    }
}

fn read_chain(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    if !file.is_file() {
        return None;
    }
    let chain = CertificateDer::pem_file_iter(file).ok()?.collect::<Result<Vec<_>, _>>().ok()?;
    (!chain.is_empty()).then_some(chain)
}

fn read_key(file: &Path) -> Option<Vec<u8>> {
    let key = file.is_file().then(|| PrivateKeyDer::from_pem_file(file).ok()).flatten()?;
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).ok()?;
    Some(key.public_key()?.to_vec())
}

fn has_name(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let parsed = ParsedCertificate::try_from(certificate).ok();
    parsed.zip(ServerName::try_from(host).ok()).is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
}

/// Mail between hosts.
const SMTP: u16 = 25;
/// Shown octets of a record: the longest digest.
const SHOWN_OCTETS: usize = 64;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PublicKeyData};

    use super::*;
    use crate::association::tests::record;
    use crate::verifier::tests::chain;

    const HOST: &str = "mx.example";
    const NAME: &str = "_25._tcp.mx.example";

    fn certificate(key: &KeyPair) -> CertificateDer<'static> {
        CertificateParams::new(vec![HOST.to_owned()]).unwrap().self_signed(key).unwrap().der().clone()
    }

    /// A host with a certificate of the first key, and the second as the next one.
    fn host(own: &KeyPair, next: Option<&KeyPair>) -> HostCertificate {
        let next_key = next.map(KeyPair::subject_public_key_info);
        HostCertificate { host: HOST.to_owned(), chain: vec![certificate(own)], next_key }
    }

    fn keys() -> [KeyPair; 3] {
        [(); 3].map(|()| KeyPair::generate().unwrap())
    }

    /// Values, with what was found.
    fn lines(host: &HostCertificate, found: &[TlsaRecord]) -> Vec<(String, FoundRecord)> {
        let wanted = host.wanted(found);
        assert!(wanted.iter().all(|record| record.name == NAME && record.kind == "TLSA"));
        wanted.into_iter().map(|record| (record.value, record.found)).collect()
    }

    fn value(record: &TlsaRecord) -> String {
        Association::usable(std::slice::from_ref(record)).remove(0).to_string()
    }

    #[test]
    fn a_host_without_usable_records_needs_none() {
        let [own, next, _] = keys();
        let host = host(&own, Some(&next));
        assert_eq!(lines(&host, &[]), []);
        let unusable = [record(1, 1, 1, &certificate(&own)), record(0, 0, 1, &certificate(&next))];
        assert_eq!(lines(&host, &unusable), []);
        assert!(host.outlasts(&[], b"") && host.outlasts(&unusable, b""));
        assert_eq!(lines(&HostCertificate::default(), &[record(3, 1, 1, &certificate(&own))]), [], "it has no TLS");
    }

    #[test]
    fn records_that_name_another_key_are_told_with_the_right_one() {
        let [own, other, _] = keys();
        let good = record(3, 1, 1, &certificate(&own));
        for (selector, matching) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)] {
            let host = host(&own, None);
            let found = record(3, selector, matching, &certificate(&other));
            let told = lines(&host, std::slice::from_ref(&found));
            let [(shown, there)] = &told[..] else { panic!("{told:?}") };
            let expected =
                if (selector, matching) == (1, 2) { record(3, 1, 2, &certificate(&own)) } else { good.clone() };
            assert_eq!(*shown, value(&expected), "{selector} {matching}");
            let FoundRecord::Other(there) = there else { panic!("{there:?}") };
            assert!(
                there.starts_with(&format!("3 {selector} {matching} ")) && there.len() <= 6 + 2 * 64 + 3,
                "{there}"
            );
            assert_eq!(lines(&host, &[found, expected.clone()]), [(value(&expected), FoundRecord::Same)]);
        }
    }

    #[test]
    fn a_next_key_has_its_record_before_it_is_used() {
        let [own, next, _] = keys();
        let host = host(&own, Some(&next));
        let (now, later) = (record(3, 1, 1, &certificate(&own)), record(3, 1, 1, &certificate(&next)));
        let lines = |found: &[TlsaRecord]| lines(&host, found);
        let (same, missing) = (FoundRecord::Same, FoundRecord::Nothing);
        assert_eq!(lines(std::slice::from_ref(&now)), [(value(&now), same.clone()), (value(&later), missing.clone())]);
        assert_eq!(lines(&[now.clone(), later.clone()]), [(value(&now), same.clone()), (value(&later), same.clone())]);
        let key = next.subject_public_key_info();
        assert!(!host.outlasts(std::slice::from_ref(&now), &key) && host.outlasts(&[now.clone(), later.clone()], &key));
        // A digest that is weaker than that of the present key would not count.
        let strong = record(3, 1, 2, &certificate(&own));
        let expected = value(&record(3, 1, 2, &certificate(&next)));
        assert_eq!(lines(std::slice::from_ref(&strong)), [(value(&strong), same), (expected, missing)]);
        assert!(!host.outlasts(&[strong, later], &key));
    }

    #[test]
    fn a_record_of_the_certificate_does_not_outlast_it() {
        let [own, ..] = keys();
        let host = host(&own, Some(&own));
        let of_certificate = record(3, 0, 1, &host.chain[0]);
        let of_key = record(3, 1, 1, &host.chain[0]);
        let found = lines(&host, std::slice::from_ref(&of_certificate));
        assert!(matches!(&found[..], [(shown, FoundRecord::Other(_))] if *shown == value(&of_key)), "{found:?}");
        assert_eq!(lines(&host, &[of_certificate, of_key.clone()]), [(value(&of_key), FoundRecord::Same)]);
    }

    #[test]
    fn an_anchor_outlasts_each_key() {
        let [next, ..] = keys();
        let good = chain(HOST, |_| {});
        let sent = [&good.server, &good.authority].map(|one| CertificateDer::from(one.clone()));
        let next_key = Some(next.subject_public_key_info());
        let host = HostCertificate { host: HOST.to_owned(), chain: sent.to_vec(), next_key };
        let anchor = record(2, 1, 1, &good.authority);
        assert_eq!(lines(&host, std::slice::from_ref(&anchor)), [(value(&anchor), FoundRecord::Same)]);
        let other = record(2, 1, 1, &chain(HOST, |_| {}).authority);
        let found = lines(&host, &[other]);
        assert!(matches!(&found[..], [(_, FoundRecord::Other(_)), (_, FoundRecord::Nothing)]), "{found:?}");
    }

    #[test]
    fn the_certificate_is_that_which_a_sender_sees() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, name: &str, key: &KeyPair| {
            let made = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(key).unwrap();
            std::fs::write(dir.path().join(file), key.serialize_pem() + &made.pem()).unwrap();
            dir.path().join(file)
        };
        let [of_operator, of_authority, own] = keys();
        let files = HostFiles {
            configured: vec![write("web", "www.example", &of_operator)],
            obtained: vec![dir.path().join("absent"), write("obtained", HOST, &of_authority)],
            self_made: Some(write("own", HOST, &own)),
            next_key: Some(dir.path().join("web")),
        };
        let read = |files: &HostFiles| {
            let read = HostCertificate::read(HOST, files);
            let key =
                read.chain.first().and_then(|own| PublicKeyInfo::of_certificate(own)).map(|key| key.whole.to_vec());
            (key, read.next_key)
        };
        let [of_operator, of_authority, own] =
            [&of_operator, &of_authority, &own].map(|key| Some(key.subject_public_key_info()));
        assert_eq!(read(&files), (of_authority.clone(), of_operator.clone()));
        let keeping = HostFiles { next_key: None, ..files.clone() };
        assert_eq!(read(&keeping), (of_authority.clone(), of_authority));
        let configured = HostFiles { obtained: Vec::new(), ..files.clone() };
        assert_eq!(read(&configured), (of_operator, None), "its names do not matter if there is no other");
        let self_made = HostFiles { configured: Vec::new(), ..configured };
        assert_eq!(read(&self_made), (own.clone(), own));
        assert_eq!(read(&HostFiles::default()), (None, None));
    }
}
