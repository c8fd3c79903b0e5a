//! The kinds of sockets of a session, the start of TLS, and the close of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(feature = "tls")]
use tokio::io::AsyncBufRead;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use crate::after;

/// A connection's octets, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a UNIX socket.
    Unix(UnixStream),
    /// A TCP or UNIX stream, encrypted.
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::TlsStream<Stream>>),
    /// During a handshake, or after a failed one.
    Gone,
}

impl Stream {
    /// Waits until there may be input, without a buffer for it.
    ///
    /// # Errors
    /// Errors of the socket; reading will fail with the same error.
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            // What has come may be no more than a part of a record: there is something to read once a record is whole.
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_fill_buf(cx).map_ok(drop),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Waits until a socket may have input, or its peer has closed it.
    pub(crate) async fn ready_to_read(&self) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(Interest::READABLE).await,
            Self::Unix(stream) => stream.ready(Interest::READABLE).await,
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Runs `work`, which reads from a socket. `WouldBlock` from it clears the socket's readiness.
    pub(crate) fn try_read<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Tcp(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(Interest::READABLE, || work(stream.as_fd())),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// True if all written bytes have gone to the socket.
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => !stream.get_ref().1.wants_write(),
            Self::Gone => true,
        }
    }

    /// True after a failed handshake: nothing can be written any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => false,
            Self::Gone => true,
        }
    }

    /// Writes without waiting, for replies to refused clients.
    ///
    /// # Errors
    /// `WouldBlock` if it cannot be written now; errors of the socket.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
            Self::Gone => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, slices),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Self::Gone => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// Parameters of a TLS session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFacts {
    /// Such as `TLSv1_3`.
    pub version: String,
    /// Such as `TLS13_AES_256_GCM_SHA384`.
    pub cipher: String,
    /// The name requested by the client (SNI), if any.
    pub server_name: Option<String>,
    /// `tls-exporter` of RFC 9266, for SASL with channel binding; `None` before TLS 1.3, where it is not unique without an extension.
    pub exporter: Option<[u8; 32]>,
    /// The client's certificate, if it sent one and the acceptor's verifier accepted it. Only an acceptor with a client
    /// verifier asks for one.
    pub client: Option<ClientCertificate>,
}

/// A client's certificate with a verified chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Certificates in DER as received: the client's own first, then those that lead to an authority.
    pub chain: Vec<Vec<u8>>,
    /// The DNS names in the client's own (subjectAltName, RFC 5280 section 4.2.1.6).
    pub dns_names: Vec<String>,
}

/// The certificate of a listener, which a reload replaces. Clones share it; new handshakes see the newest.
#[derive(Debug, Clone, Default)]
pub struct CurrentCertificate(Arc<RwLock<Certificate>>);

impl CurrentCertificate {
    /// Starts with this certificate.
    pub fn new(certificate: Certificate) -> Self {
        Self(Arc::new(RwLock::new(certificate)))
    }

    /// The newest certificate.
    pub fn get(&self) -> Certificate {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it for later handshakes.
    pub fn set(&self, certificate: Certificate) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }
}

/// The server's certificate for TLS. Without the feature `tls` there is none.
#[derive(Clone, Default)]
pub struct Certificate {
    #[cfg(feature = "tls")]
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    /// Certificates for validations by an authority, and the configuration of their handshakes.
    #[cfg(feature = "tls")]
    validations: Option<(crate::ValidationCertificates, Arc<rustls::ServerConfig>)>,
}

impl Certificate {
    /// Takes the certificate of `config`. [`tls::server_config`](crate::tls::server_config) makes one from PEM files.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn new(config: Arc<rustls::ServerConfig>) -> Self {
        Self { acceptor: Some(config.into()), validations: None }
    }

    /// Also answers authorities that validate names (TLS-ALPN-01, RFC 8737). Their connections end with the handshake.
    ///
    /// # Errors
    /// [`TlsError`](crate::tls::TlsError): only with a faulty build of the library.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn with_validations(self, certificates: &crate::ValidationCertificates) -> Result<Self, crate::tls::TlsError> {
        let config = certificates.server_config()?;
        Ok(Self { validations: Some((certificates.clone(), config)), ..self })
    }

    /// True if there is a certificate.
    pub fn is_there(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.acceptor.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Does the server's side of a TLS handshake. The caller must limit its time.
    ///
    /// # Errors
    /// The handshake failed, or there is no certificate. The connection is closed.
    #[cfg(feature = "tls")]
    pub async fn accept(&self, stream: Stream) -> io::Result<(Stream, TlsFacts)> {
        let acceptor = self.acceptor.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let validations = self.validations.as_ref().filter(|(certificates, _)| !certificates.is_empty());
        let stream = match validations {
            Some((_, config)) => accept_unless_validation(acceptor, config, stream).await?,
            None => acceptor.accept(stream).await?,
        };
        let tls = stream.get_ref().1;
        let facts = TlsFacts {
            version: tls.protocol_version().map_or(String::new(), |version| format!("{version:?}")),
            cipher: tls.negotiated_cipher_suite().map_or(String::new(), |suite| format!("{:?}", suite.suite())),
            server_name: tls.server_name().map(String::from),
            exporter: exporter(tls),
            client: tls.peer_certificates().and_then(client_certificate),
        };
        Ok((Stream::Tls(Box::new(stream.into())), facts))
    }

    /// Without the feature `tls`, there is no handshake.
    ///
    /// # Errors
    /// Always. The connection is closed.
    #[cfg(not(feature = "tls"))]
    pub async fn accept(&self, _: Stream) -> io::Result<(Stream, TlsFacts)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Looks at the ClientHello first: an authority asks for a protocol of its own.
#[cfg(feature = "tls")]
async fn accept_unless_validation(
    acceptor: &tokio_rustls::TlsAcceptor,
    validation: &Arc<rustls::ServerConfig>,
    stream: Stream,
) -> io::Result<tokio_rustls::server::TlsStream<Stream>> {
    let begun = tokio_rustls::LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
    let is_validation =
        begun.client_hello().alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == crate::ACME_TLS));
    if !is_validation {
        return begun.into_stream(Arc::clone(acceptor.config())).await;
    }
    let mut done = begun.into_stream(Arc::clone(validation)).await?;
    // The authority has seen what it wanted (RFC 8737 section 3).
    done.shutdown().await?;
    Err(io::Error::new(io::ErrorKind::ConnectionAborted, "an authority has validated a name"))
}

#[cfg(feature = "tls")]
fn exporter(tls: &rustls::ServerConnection) -> Option<[u8; 32]> {
    let is_unique = tls.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
    is_unique.then(|| tls.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(b"")).ok())?
}

#[cfg(feature = "tls")]
fn client_certificate(chain: &[rustls::pki_types::CertificateDer<'_>]) -> Option<ClientCertificate> {
    let names = webpki::EndEntityCert::try_from(chain.first()?);
    let dns_names = names.map_or(Vec::new(), |parsed| parsed.valid_dns_names().map(String::from).collect());
    Some(ClientCertificate { chain: chain.iter().map(|der| der.to_vec()).collect(), dns_names })
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_there() { "Certificate" } else { "no certificate" })
    }
}

/// Writes the last replies, shuts down the sending side, and reads until the client has closed too, for at most
/// `linger`. Closing with unread input would reset the connection, and the client might lose replies that it has not
/// read yet.
pub async fn close(mut stream: Stream, last: Vec<u8>, linger: Duration) {
    const READ_BYTES: usize = 1 << 10;
    let deadline = after(Instant::now(), linger);
    let Ok(Ok(())) = timeout_at(deadline, stream.write_all(&last)).await else { return };
    if !matches!(timeout_at(deadline, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let mut scratch = Vec::with_capacity(READ_BYTES);
    // The clock is asked each time: `timeout_at` prefers a read that is ready, and a client may send without a pause for ever.
    while Instant::now() < deadline
        && let Ok(Ok(1..)) = timeout_at(deadline, stream.read_buf(&mut scratch)).await
    {
        scratch.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unread_input_does_not_extend_the_linger_time() {
        let (ours, mut client) = UnixStream::pair().unwrap();
        client.write_all(&[b'x'; 10_000]).await.unwrap();
        close(Stream::Unix(ours), b"bye\n".to_vec(), Duration::ZERO).await;
        let mut said = Vec::new();
        let end = client.read_to_end(&mut said).await;
        assert_eq!(said, b"bye\n");
        // As the other side was closed with something left to read (unix(7)).
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "it was read after its time");
    }
}
