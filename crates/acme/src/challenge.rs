//! Pending challenges that the listeners answer.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_net::ValidationCertificates;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::CertifiedKey;

use crate::error::AcmeError;

/// Path of an HTTP challenge, followed by its token (RFC 8555 section 8.3).
pub const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// Pending challenges, answered by each listener. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Challenges {
    tls: ValidationCertificates,
    http: Arc<RwLock<HashMap<String, String>>>,
}

impl Challenges {
    /// Validation certificates for TLS listeners.
    pub fn certificates(&self) -> &ValidationCertificates {
        &self.tls
    }

    /// The answer to a request for [`CHALLENGE_PATH`] and this token.
    pub fn answer(&self, token: &str) -> Option<String> {
        self.http.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// Answers requests for `token` until the guard is dropped.
    pub(crate) fn show_http(&self, token: &str, answer: &str) -> Shown {
        self.http.write().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), answer.to_owned());
        Shown { challenges: self.clone(), what: What::Token(token.to_owned()) }
    }

    /// Presents a certificate with this digest to clients that validate `name`, until the guard is dropped. Returns the
    /// certificate, too.
    pub(crate) fn show_tls(&self, name: &str, digest: &[u8; 32]) -> Result<(Shown, Arc<CertifiedKey>), AcmeError> {
        let made = validation_certificate(name, digest).map_err(|error| AcmeError::Certificate(error.to_string()))?;
        let made = Arc::new(made);
        self.tls.insert(name, Arc::clone(&made));
        Ok((Shown { challenges: self.clone(), what: What::Name(name.to_owned()) }, made))
    }
}

/// A challenge that is answered until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Shown {
    challenges: Challenges,
    what: What,
}

#[derive(Debug)]
enum What {
    Token(String),
    Name(String),
}

impl Drop for Shown {
    fn drop(&mut self) {
        match &self.what {
            What::Token(token) => {
                self.challenges.http.write().unwrap_or_else(PoisonError::into_inner).remove(token);
            }
            What::Name(name) => self.challenges.tls.remove(name),
        }
    }
}

/// RFC 8737 section 3: a certificate with this name only and the digest in a critical extension.
fn validation_certificate(
    name: &str,
    digest: &[u8; 32],
) -> Result<CertifiedKey, Box<dyn std::error::Error + Send + Sync>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?;
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    let key = rustls::crypto::aws_lc_rs::default_provider().key_provider.load_private_key(der.into())?;
    // Not `from_der`, which refuses critical extensions that it does not know.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_shown_until_its_guard_is_dropped() {
        let challenges = Challenges::default();
        assert_eq!(challenges.answer("token"), None);
        let shown = challenges.show_http("token", "token.thumb");
        assert_eq!(challenges.answer("token").as_deref(), Some("token.thumb"));
        let (tls, _) = challenges.show_tls("mx.example.org", &[7; 32]).unwrap();
        assert!(!challenges.certificates().is_empty());
        drop((shown, tls));
        assert!(challenges.certificates().is_empty() && challenges.answer("token").is_none());
    }
}
