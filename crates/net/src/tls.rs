//! Certificates, for programs without their own rustls configuration: TLS 1.2 and 1.3, with `ring`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// Certificates that a client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsTrust {
    /// Certificates signed by the authorities in this PEM file, such as `/etc/ssl/certs/ca-certificates.crt`.
    Authorities(PathBuf),
    /// All certificates: for test servers with self-signed ones. An attacker in between reads everything, passwords
    /// included.
    Anything,
}

/// Error of a TLS configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM file cannot be read, or lacks the expected items.
    #[error("cannot read {path}: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        text: String,
    },
    /// The key belongs to another certificate.
    #[error("the private key in {key} does not belong to the certificate in {chain}")]
    OtherKey {
        /// The file of the certificate.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Key and certificate do not match, or the library cannot use them.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

/// A client configuration for TLS 1.2 and 1.3.
///
/// # Errors
/// When the file of authorities cannot be read, or contains none.
pub fn client_config(trust: &TlsTrust) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_as(trust, None)
}

/// [`client_config`] with a certificate for servers that ask for one: PEM files of its chain, leaf first, and of its key.
///
/// # Errors
/// When a file cannot be read, or the two do not match.
pub fn client_config_as(trust: &TlsTrust, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match trust {
        TlsTrust::Authorities(path) => builder.with_root_certificates(authorities(path)?),
        TlsTrust::Anything => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anything(provider))),
    };
    Ok(Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(certificates(chain)?, private_key(key)?)?,
    }))
}

/// The server's side of TLS 1.2 and 1.3, from PEM files: the chain of certificates, leaf first, and the private key.
/// The key is in PKCS #8, PKCS #1 or SEC 1.
///
/// # Errors
/// When a file cannot be read, or the two do not match.
pub fn server_config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    server_config_with(Arc::new(SingleCertAndKey::from(certified_key(chain, key)?)))
}

/// Loads a chain of certificates, leaf first, and its private key, from PEM files, which may be the same.
///
/// # Errors
/// As [`server_config`].
pub fn certified_key(chain: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let read = CertifiedKey::from_der(certificates(chain)?, private_key(key)?, &aws_lc_rs::default_provider());
    read.map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::OtherKey { chain: chain.to_owned(), key: key.to_owned() },
        error => TlsError::Library(error),
    })
}

/// The server's side of TLS 1.2 and 1.3 with the certificates of `resolver`.
///
/// # Errors
/// [`TlsError::Library`]: only with a faulty build of the library.
pub fn server_config_with(resolver: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(Arc::new(builder.with_cert_resolver(resolver)))
}

fn certificates(chain: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(chain).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| failed(chain, plain(&error)))?;
    if certificates.is_empty() { Err(failed(chain, "no certificate in it".into())) } else { Ok(certificates) }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        pem::Error::NoItemsFound => failed(file, "no private key in it".into()),
        error => failed(file, plain(&error)),
    })
}

/// Like [`server_config`], from data read before.
///
/// # Errors
/// When the two do not match.
pub fn server_config_from(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let one = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?;
    server_config_with(Arc::new(SingleCertAndKey::from(one)))
}

/// The system's error, without the library's words around it.
fn plain(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn failed(path: &Path, text: String) -> TlsError {
    TlsError::File { path: path.to_owned(), text }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let failed = |text: String| failed(path, text);
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(plain(&error)))? {
        store.add(certificate.map_err(|error| failed(plain(&error)))?)?;
    }
    if store.is_empty() { Err(failed("no certificate in it".into())) } else { Ok(store) }
}

/// Accepts every certificate. Signatures are still checked, so that a handshake has its usual cost.
#[derive(Debug)]
struct Anything(Arc<CryptoProvider>);

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
