//! Certificates by which an authority validates our names (TLS-ALPN-01, RFC 8737).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::{TlsError, server_config_with};

/// The protocol of an authority's handshake (RFC 8737 section 6.2).
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// Certificates of pending validations, by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ValidationCertificates(Arc<RwLock<HashMap<String, Arc<CertifiedKey>>>>);

impl ValidationCertificates {
    /// Shows `certificate` to authorities that validate `name`, until [`remove`](Self::remove).
    pub fn insert(&self, name: &str, certificate: Arc<CertifiedKey>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_ascii_lowercase(), certificate);
    }

    /// Ends the validation of a name.
    pub fn remove(&self, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&name.to_ascii_lowercase());
    }

    /// True without a pending validation.
    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The server's side of the handshake of a validation.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::clone(&*server_config_with(Arc::new(self.clone()))?);
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for ValidationCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&name.to_ascii_lowercase()).cloned()
    }
}
