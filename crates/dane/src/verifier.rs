use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use crate::{Association, PublicKeyInfo, SentCertificate};

/// Verifies a server by TLSA records instead of authorities (RFC 7672 section 3.1).
#[derive(Debug)]
pub struct DaneVerifier {
    associations: Arc<[Association]>,
    /// Names accepted for DANE-TA.
    names: Vec<ServerName<'static>>,
    is_misnamed: Arc<AtomicBool>,
    provider: Arc<CryptoProvider>,
}

/// The server has no certificate that the records of its host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no certificate of the server matches the TLSA records of its host")]
pub struct MismatchError;

impl DaneVerifier {
    /// A verifier by these records. `names`: the host's names, one of which has the records, and the recipient's
    /// domain. For DANE-TA the certificate must contain one of them (RFC 7672 section 3.2.2).
    pub fn new(associations: Arc<[Association]>, names: Vec<ServerName<'static>>) -> Self {
        static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
        Self { associations, names, is_misnamed: Arc::default(), provider: Arc::clone(&PROVIDER) }
    }

    /// Becomes true when a chain to a recorded authority ends at a certificate without any of the names.
    pub fn is_misnamed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_misnamed)
    }

    /// A client configuration with this verifier. TLS sessions are not resumed: a resumption shows no certificate.
    ///
    /// # Errors
    /// Only with a faulty build of rustls.
    pub fn into_config(self) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(self));
        let mut config = builder.with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The chain must lead to a certificate that a record names. The date counts, except for the anchor's own.
    fn verify_chain(
        &self,
        server: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let is_named = |one: &&CertificateDer<'_>| {
            let one = SentCertificate::new(one);
            self.associations.iter().any(|of| of.names_anchor(&one))
        };
        let own = self.associations.iter().filter_map(Association::own_anchor);
        let mut anchors = RootCertStore::empty();
        // One that cannot be read is not an anchor; another may be.
        anchors.add_parsable_certificates(sent.iter().filter(is_named).cloned().map(CertificateDer::into_owned));
        anchors.add_parsable_certificates(own.map(CertificateDer::into_owned));
        if anchors.is_empty() {
            return Err(CertificateError::Other(OtherError(Arc::new(MismatchError))).into());
        }
        let server = ParsedCertificate::try_from(server)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&server, &anchors, sent, now, algorithms)?;
        // The error about the host's own name.
        let mut wrong = None;
        for name in &self.names {
            match verify_server_name(&server, name) {
                Ok(()) => return Ok(()),
                Err(error) => _ = wrong.get_or_insert(error),
            }
        }
        self.is_misnamed.store(true, Ordering::Relaxed);
        Err(wrong.unwrap_or(CertificateError::NotValidForName.into()))
    }
}

impl ServerCertVerifier for DaneVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // Neither names nor dates count then (RFC 7672 section 3.1.1).
        let own = SentCertificate::new(server);
        if !self.associations.iter().any(|of| of.names_server(&own)) {
            self.verify_chain(server, sent, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let info = key_of(certificate)?;
        let mapping = self.provider.signature_verification_algorithms.mapping;
        let algorithms = mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme).flat_map(|(_, all)| *all);
        let mut of_key = algorithms.filter(|algorithm| *algorithm.public_key_alg_id() == *info.algorithm);
        let is_valid =
            of_key.any(|algorithm| algorithm.verify_signature(info.key, message, signed.signature()).is_ok());
        if is_valid { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key_of(certificate)?.whole);
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The key's octets, as a record with selector 1 names them.
fn key_of<'a>(certificate: &'a CertificateDer<'_>) -> Result<PublicKeyInfo<'a>, Error> {
    PublicKeyInfo::of_certificate(certificate).ok_or_else(|| CertificateError::BadEncoding.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData};
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::{ClientConnection, HandshakeKind, ServerConfig, ServerConnection, SupportedProtocolVersion, version};

    use super::*;
    use crate::association::tests::record;

    pub fn self_signed(name: &str) -> (Vec<u8>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.der().to_vec(), key)
    }

    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], &content].concat()
    }

    /// A certificate of version 1, without extensions. Its own signature is void.
    pub fn version_1(key: &KeyPair) -> Vec<u8> {
        let sequence = 0x30;
        let none = element(0x30, &[]);
        let serial = [0x02, 1, 7];
        let signed = [&serial[..], &none, &none, &none, &none, &key.subject_public_key_info()];
        element(sequence, &[&element(sequence, &signed), &none, &element(0x03, &[&[0, 1]])])
    }

    /// An authority, and a server's certificate by it.
    pub struct Chain {
        pub authority: Vec<u8>,
        pub server: Vec<u8>,
        key: KeyPair,
    }

    pub fn chain(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Chain {
        let mut of_authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let key = KeyPair::generate().unwrap();
        let authority = of_authority.self_signed(&authority_key).unwrap().der().to_vec();
        let mut of_server = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut of_server);
        let issuer = Issuer::new(of_authority, authority_key);
        let server = of_server.signed_by(&key, &issuer).unwrap().der().to_vec();
        Chain { authority, server, key }
    }

    fn config(associations: Vec<Association>) -> Arc<ClientConfig> {
        let names = ["mx.example", "alias.example"].map(|name| ServerName::try_from(name).unwrap());
        Arc::new(DaneVerifier::new(associations.into(), names.into()).into_config().unwrap())
    }

    /// A server that sends this chain.
    fn server(sent: &[&[u8]], key: &KeyPair, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
        let sent: Vec<_> = sent.iter().map(|one| CertificateDer::from(one.to_vec())).collect();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let key = provider.key_provider.load_private_key(key.into()).unwrap();
        // `from_der` compares key and certificate, and reads no version 1.
        let resolver = SingleCertAndKey::from(CertifiedKey::new(sent, key));
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver)))
    }

    /// Completes a handshake in memory, including session tickets.
    fn shake_with(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<HandshakeKind, Error> {
        let mut server = ServerConnection::new(server.clone()).unwrap();
        let mut client = ClientConnection::new(client.clone(), ServerName::try_from("mx.example").unwrap()).unwrap();
        let mut is_done = false;
        while !is_done {
            is_done = !client.is_handshaking() && !server.is_handshaking();
            let mut octets = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut octets).unwrap();
            }
            let mut left = &octets[..];
            while !left.is_empty() {
                server.read_tls(&mut left).unwrap();
                server.process_new_packets()?;
            }
            octets.clear();
            while server.wants_write() {
                server.write_tls(&mut octets).unwrap();
            }
            let mut left = &octets[..];
            while !left.is_empty() {
                client.read_tls(&mut left).unwrap();
                client.process_new_packets()?;
            }
        }
        Ok(client.handshake_kind().unwrap())
    }

    fn shake(
        client: &Arc<ClientConfig>,
        sent: &[&[u8]],
        key: &KeyPair,
        version: &'static SupportedProtocolVersion,
    ) -> Result<(), Error> {
        shake_with(client, &server(sent, key, version)).map(drop)
    }

    fn is_mismatch(result: &Result<(), Error>) -> bool {
        matches!(result, Err(Error::InvalidCertificate(CertificateError::Other(other))) if other.0.is::<MismatchError>())
    }

    const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

    #[test]
    fn a_named_server_certificate_needs_no_name_and_no_date() {
        let mut old = CertificateParams::new(vec!["elsewhere.example".to_owned()]).unwrap();
        old.not_after = rcgen::date_time_ymd(2001, 1, 1);
        old.not_before = rcgen::date_time_ymd(2000, 1, 1);
        let key = KeyPair::generate().unwrap();
        let old = old.self_signed(&key).unwrap().der().to_vec();
        let (other, _) = self_signed("mx.example");
        for version in VERSIONS {
            for (selector, matching) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                let by =
                    |certificate: &[u8]| config(Association::usable(&[record(3, selector, matching, certificate)]));
                assert_eq!(shake(&by(&old), &[&old], &key, version), Ok(()), "{selector} {matching}");
                let wrong = shake(&by(&other), &[&old], &key, version);
                assert!(is_mismatch(&wrong), "{selector} {matching}: {wrong:?}");
            }
        }
    }

    #[test]
    fn a_certificate_of_version_1_will_do() {
        let key = KeyPair::generate().unwrap();
        let certificate = version_1(&key);
        for version in VERSIONS {
            for selector in [0, 1] {
                let config = config(Association::usable(&[record(3, selector, 1, &certificate)]));
                assert_eq!(shake(&config, &[&certificate], &key, version), Ok(()));
                let stolen = shake(&config, &[&certificate], &KeyPair::generate().unwrap(), version);
                assert!(stolen.is_err(), "the certificate without its key");
            }
        }
    }

    #[test]
    fn an_anchor_needs_a_chain_a_name_and_a_date() {
        let good = chain("mx.example", |_| {});
        let alias = chain("alias.example", |_| {});
        let named_otherwise = chain("elsewhere.example", |_| {});
        let expired = chain("mx.example", |params| {
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        });
        let of = |chain: &Chain, selector, matching, sent: &[&[u8]]| {
            let config = config(Association::usable(&[record(2, selector, matching, &chain.authority)]));
            shake(&config, sent, &chain.key, &version::TLS13)
        };
        for (selector, matching) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            let of = |chain: &Chain| of(chain, selector, matching, &[&chain.server, &chain.authority]);
            assert_eq!((of(&good), of(&alias)), (Ok(()), Ok(())), "{selector} {matching}");
            for wrong in [&named_otherwise, &expired] {
                let error = of(wrong).unwrap_err();
                assert!(matches!(error, Error::InvalidCertificate(_)) && !is_mismatch(&Err(error.clone())), "{error}");
            }
        }
        assert_eq!(of(&good, 0, 0, &[&good.server]), Ok(()), "the record has the anchor");
        assert!(is_mismatch(&of(&good, 0, 1, &[&good.server])), "nobody has the anchor");
        // The anchor is in the chain, but has not signed the certificate.
        let of_another = of(&good, 1, 1, &[&alias.server, &good.authority]);
        assert!(of_another.is_err_and(|error| matches!(error, Error::InvalidCertificate(_))));
    }

    #[test]
    fn an_anchor_vouches_for_the_names_alone() {
        let names =
            vec![ServerName::try_from("mx.eu.example.org").unwrap(), ServerName::try_from("a.example").unwrap()];
        for (certified, is_good) in [
            ("mx.eu.example.org", true),
            ("*.eu.example.org", true),
            ("a.example", true),
            ("eu.example.org", false),
            ("example", false),
            ("mx2.eu.example.org", false),
            ("ample.org", false),
            ("sub.mx.eu.example.org", false),
        ] {
            let of = chain(certified, |_| {});
            let associations = Association::usable(&[record(2, 0, 1, &of.authority)]);
            let verifier = DaneVerifier::new(associations.into(), names.clone());
            let is_misnamed = verifier.is_misnamed();
            let config = Arc::new(verifier.into_config().unwrap());
            let shaken = shake(&config, &[&of.server, &of.authority], &of.key, &version::TLS13);
            assert_eq!(shaken.is_ok(), is_good, "{certified}: {shaken:?}");
            assert_eq!(is_misnamed.load(Ordering::Relaxed), !is_good, "{certified}");
            assert!(is_good || shaken.unwrap_err().to_string().contains("mx.eu.example.org"), "{certified}");
        }
    }

    #[test]
    fn an_anchor_record_never_names_the_server_itself() {
        let (certificate, key) = self_signed("mx.example");
        let config = config(Association::usable(&[record(2, 1, 1, &certificate)]));
        assert!(is_mismatch(&shake(&config, &[&certificate], &key, &version::TLS13)));
    }

    #[test]
    fn no_session_is_resumed() {
        let (certificate, key) = self_signed("mx.example");
        let ours = config(Association::usable(&[record(3, 1, 1, &certificate)]));
        let mut resuming = (*ours).clone();
        resuming.resumption = Resumption::default();
        let resuming = Arc::new(resuming);
        for version in VERSIONS {
            let server = server(&[&certificate], &key, version);
            let twice = |client| [(); 2].map(|()| shake_with(client, &server).unwrap());
            assert_eq!(twice(&resuming), [HandshakeKind::Full, HandshakeKind::Resumed], "the server would");
            assert_eq!(twice(&ours), [HandshakeKind::Full, HandshakeKind::Full]);
        }
    }
}
