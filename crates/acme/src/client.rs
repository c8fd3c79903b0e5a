//! HTTP for the ACME library, with the client of this workspace. Each request blocks a thread of its own.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::crypto::aws_lc_rs::default_provider;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::error::AcmeError;

const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes of an answer: a certificate chain has some KiB.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A client of one authority. Clones share connections.
#[derive(Debug, Clone)]
pub(crate) struct Client(ureq::Agent);

impl Client {
    /// A client that trusts only the authorities of `ca_file`. Blocks.
    ///
    /// # Errors
    /// [`AcmeError::File`].
    pub fn new(ca_file: &Path) -> Result<Self, AcmeError> {
        let failed = |why: String| AcmeError::File(format!("{}: {why}", ca_file.display()));
        let text = std::fs::read(ca_file).map_err(|error| failed(error.to_string()))?;
        let certificates = parse_pem(&text).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = certificates.collect();
        if certificates.is_empty() {
            return Err(failed("no certificate in it".to_owned()));
        }
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
            .root_certs(RootCerts::Specific(Arc::new(certificates)));
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .https_only(true)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls.build());
        Ok(Self(config.build().new_agent()))
    }

    fn blocking(&self, request: Request<Vec<u8>>) -> Result<BytesResponse, Error> {
        let failed = |error: ureq::Error| Error::Other(error.into());
        // An empty body is sent as such, which GET and HEAD do not have.
        let response = if request.body().is_empty() { self.0.run(request.map(drop)) } else { self.0.run(request) };
        let (parts, mut body) = response.map_err(failed)?.into_parts();
        let octets = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)?;
        Ok(BytesResponse { parts, body: Box::new(Bytes::from(octets)) })
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // The library reads bodies of responses only.
            let mut body = BytesResponse::from(Response::new(body)).body;
            let octets = body.into_bytes().await.map_err(Error::Other)?.to_vec();
            let request = Request::from_parts(parts, octets);
            let asked = tokio::task::spawn_blocking(move || client.blocking(request)).await;
            asked.map_err(|error| Error::Other(error.into()))?
        })
    }
}
