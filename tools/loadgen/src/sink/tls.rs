//! The sink's side of TLS: a certificate from files, or one made at the start.

use std::path::PathBuf;

use posthaste_smtp::tls::{server_config, server_config_from};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::SinkError;

/// Start of encryption in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Never.
    #[default]
    Off,
    /// At the client's request (RFC 3207).
    StartTls,
    /// From the first octet on (RFC 8314).
    Implicit,
}

/// The sink's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Certificate {
    /// Made at the start, self-signed, for the host name, `localhost` and 127.0.0.1.
    #[default]
    SelfSigned,
    /// PEM files: the chain, leaf first, and its private key.
    Files {
        /// The chain.
        chain: PathBuf,
        /// The key: PKCS #8, PKCS #1 or SEC 1.
        key: PathBuf,
    },
}

pub(super) fn acceptor(certificate: &Certificate, host_name: &str) -> Result<TlsAcceptor, SinkError> {
    let config = match certificate {
        Certificate::SelfSigned => {
            let (chain, key) = self_signed(host_name)?;
            server_config_from(chain, key)?
        }
        Certificate::Files { chain, key } => server_config(chain, key)?,
    };
    Ok(TlsAcceptor::from(config))
}

fn self_signed(host_name: &str) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SinkError> {
    let names = vec![host_name.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![made.cert.der().clone()], key.into()))
}
