//! Fetches a test challenge as the authority would. A failed order counts against the account for a week; a failed test
//! does not.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_net::ACME_TLS;
use rustix::rand::{GetRandomFlags, getrandom};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::challenge::{CHALLENGE_PATH, Challenges};
use crate::error::AcmeError;
use crate::settings::{Ports, Way};

const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of an HTTP answer.
const ANSWER_BYTES_MAX: u64 = 8 << 10;

/// Publishes a challenge for `name` and fetches it at each of `addresses`.
///
/// # Errors
/// [`AcmeError::Unreachable`]: the first address at which it is not found.
pub(crate) async fn look(
    challenges: &Challenges,
    way: &Way,
    ports: Ports,
    name: &str,
    addresses: &[IpAddr],
) -> Result<(), AcmeError> {
    let secret = secret().map_err(|error| AcmeError::File(error.to_string()))?;
    let token: String = secret.iter().map(|octet| format!("{octet:02x}")).collect();
    for address in addresses {
        let (found, at) = match way {
            // A record is seen by its own servers first, and by our resolver when it pleases.
            Way::Dns(_) => return Ok(()),
            Way::Tls => {
                let (_shown, certificate) = challenges.show_tls(name, &secret)?;
                let at = SocketAddr::new(*address, ports.tls);
                (by_tls(at, name, certificate).await, at.to_string())
            }
            Way::Http => {
                let answer = format!("{token}.own");
                let _shown = challenges.show_http(&token, &answer);
                let at = SocketAddr::new(*address, ports.http);
                (by_http(at, name, &token, &answer).await, format!("http://{at}{CHALLENGE_PATH}"))
            }
        };
        found.map_err(|error| AcmeError::Unreachable { at, why: error.to_string() })?;
    }
    Ok(())
}

fn secret() -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    let filled = getrandom(&mut secret, GetRandomFlags::empty())?;
    assert_eq!(filled, secret.len(), "the kernel gives up to 256 bytes at once");
    Ok(secret)
}

async fn by_tls(at: SocketAddr, name: &str, expected: Arc<CertifiedKey>) -> io::Result<()> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    // Our own listeners have it, and its signatures can be verified by the key alone.
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(io::Error::other)?.dangerous();
    let verifier = Arc::new(Exactly { expected, provider });
    let mut config = builder.with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    let handshake = async {
        let stream = TcpStream::connect(at).await?;
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let stream = timeout(PATIENCE, handshake).await.map_err(|_| io::ErrorKind::TimedOut)??;
    match stream.get_ref().1.alpn_protocol() {
        Some(protocol) if protocol == ACME_TLS => Ok(()),
        _ => Err(io::Error::other("TLS without the protocol acme-tls/1: is something in front of the listener?")),
    }
}

/// Redirects are not followed: the authority might follow them elsewhere.
async fn by_http(at: SocketAddr, name: &str, token: &str, expected: &str) -> io::Result<()> {
    let asked = async {
        let mut stream = TcpStream::connect(at).await?;
        let request = format!("GET {CHALLENGE_PATH}{token} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(PATIENCE, asked).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    match status {
        Some(200) if answer.contains(expected) => Ok(()),
        Some(200) => Err(io::Error::other("another answer than ours")),
        Some(status) => Err(io::Error::other(format!("it answers {status}"))),
        None => Err(io::Error::other("it does not speak HTTP")),
    }
}

/// Certificate verifier that accepts this certificate only.
#[derive(Debug)]
struct Exactly {
    expected: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.expected.cert.first() == Some(shown) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("another certificate than ours".to_owned()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 was not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // By our own key: the verifier of certificates refuses the critical extension of RFC 8737.
        let key =
            self.expected.key.public_key().ok_or(rustls::Error::General("a key without its other half".to_owned()))?;
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
