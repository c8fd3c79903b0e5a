//! Whom the client trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Which certificates are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsTrust {
    /// Those signed by the authorities in this PEM file.
    Authorities(PathBuf),
    /// All: for test servers with self-signed certificates.
    Anything,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("cannot read certificates from {path}: {text}")]
    File { path: PathBuf, text: String },
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

/// The client's side of TLS 1.2 and 1.3.
///
/// # Errors
/// When the file of authorities cannot be read, or holds none.
pub fn client_config(trust: &TlsTrust) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    Ok(Arc::new(match trust {
        TlsTrust::Authorities(path) => builder.with_root_certificates(authorities(path)?).with_no_client_auth(),
        TlsTrust::Anything => {
            let verifier = Arc::new(Anything(provider));
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    }))
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let failed = |text: String| TlsError::File { path: path.to_owned(), text };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
        store.add(certificate.map_err(|error| failed(error.to_string()))?)?;
    }
    match store.is_empty() {
        true => Err(failed("there are none".into())),
        false => Ok(store),
    }
}

/// Takes every certificate; signatures are still checked, so that the handshake costs what it costs.
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
