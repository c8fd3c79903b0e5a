//! Validates challenges, as an authority does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

/// A challenge that a client claims to show.
#[derive(Debug, Clone)]
pub struct Challenge {
    /// `http-01`, `tls-alpn-01` or `dns-01`.
    pub kind: String,
    /// The name to be validated.
    pub name: String,
    /// The challenge's token.
    pub token: String,
    /// The token and the thumbprint of the account's key.
    pub key_authorization: String,
}

const PATIENCE: Duration = Duration::from_secs(10);

/// Validates `http-01` at this address.
///
/// # Errors
/// The mismatch found.
pub fn by_http(at: SocketAddr, challenge: &Challenge) -> Result<(), String> {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let Challenge { name, token, .. } = challenge;
        let request =
            format!("GET /.well-known/acme-challenge/{token} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let answer = asked().map_err(|error| error.to_string())?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if answer.starts_with("HTTP/1.1 200") && body == challenge.key_authorization { Ok(()) } else { Err(answer) }
}

/// Validates `tls-alpn-01` at this address: the protocol, the one certificate, and the digest in it (RFC 8737 section 3).
///
/// # Errors
/// The mismatch found.
pub fn by_tls(at: SocketAddr, challenge: &Challenge) -> Result<(), String> {
    let handshake = || {
        let ring = Arc::new(provider::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&ring)).with_safe_default_protocol_versions();
        let builder = builder.map_err(std::io::Error::other)?.dangerous();
        let mut config = builder.with_custom_certificate_verifier(Arc::new(Anything(ring))).with_no_client_auth();
        config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
        let name = ServerName::try_from(challenge.name.clone()).map_err(std::io::Error::other)?;
        let mut session = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok::<_, std::io::Error>(session)
    };
    let session = handshake().map_err(|error| error.to_string())?;
    if session.alpn_protocol() != Some(b"acme-tls/1") {
        return Err("another protocol".to_owned());
    }
    let shown = session.peer_certificates().and_then(<[_]>::first).ok_or("no certificate")?;
    // The extension id-pe-acmeIdentifier, critical, with an OCTET STRING of 32 octets.
    let mut expected =
        vec![0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x1f, 0x01, 0x01, 0xff, 0x04, 0x22, 0x04, 0x20];
    expected.extend_from_slice(digest(&SHA256, challenge.key_authorization.as_bytes()).as_ref());
    if shown.windows(expected.len()).any(|part| part == expected) {
        Ok(())
    } else {
        Err("a certificate without the digest".to_owned())
    }
}

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

    // The library refuses the critical extension of RFC 8737 in a certificate, so the handshake's signature is believed.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
