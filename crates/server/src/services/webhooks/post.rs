//! A request to a webhook.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use rustls::crypto::aws_lc_rs::default_provider;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use posthaste_config::Webhook;

/// Posts bodies to a webhook.
pub(super) struct Poster {
    agent: ureq::Agent,
    url: String,
    name: String,
    key: Option<hmac::Key>,
}

impl Poster {
    /// Reads the files of secret and authorities.
    ///
    /// # Errors
    /// Describes the mistake.
    pub fn new(webhook: &Webhook) -> Result<Self, String> {
        let key = webhook.secret_file.as_deref().map(secret).transpose()?;
        let mut tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()));
        if webhook.url.starts_with("https:") {
            tls = tls.root_certs(authorities(&webhook.ca_file)?);
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(webhook.timeout_secs)))
            .http_status_as_error(false)
            // A secret belongs to its URL.
            .max_redirects(0)
            .proxy(None)
            .max_idle_connections(1)
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build());
        let url = webhook.url.clone();
        let name = webhook.name.clone();
        Ok(Self { agent: config.build().new_agent(), url, name, key })
    }

    /// Posts a JSON array. Done when the server has answered with 2xx.
    ///
    /// # Errors
    /// Why it is not done.
    pub fn post(&self, body: &[u8]) -> Result<(), String> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        request = request.header("X-Posthaste-Webhook", &self.name);
        if let Some(key) = &self.key {
            request = request.header("X-Posthaste-Signature", signature(key, body));
        }
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        // Read to its end, so that the connection can be used again.
        let _ = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}

/// `sha256=` and HMAC-SHA256 of the body in hexadecimal digits.
fn signature(key: &hmac::Key, body: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::from("sha256=");
    for byte in hmac::sign(key, body).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn secret(file: &Path) -> Result<hmac::Key, String> {
    let shown = file.display();
    let refused = |why: &dyn std::fmt::Display| {
        format!(
            "{shown}: {why}; restore the file, or make a new secret with `openssl rand -base64 24 > {shown}` and give it to the webhook's server"
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(&error))?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.len() < SECRET_BYTES_MIN {
        return Err(refused(&format_args!("a secret has at least {SECRET_BYTES_MIN} bytes")));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
}

fn authorities(file: &Path) -> Result<RootCerts, String> {
    let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(format!("{}: no certificate in it", file.display()));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

const ANSWER_BYTES_MAX: u64 = 64 << 10;
const SECRET_BYTES_MIN: usize = 8;

#[cfg(test)]
#[path = "post_tests.rs"]
mod https;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_rfc_4231_test_case_2() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        assert_eq!(
            signature(&key, b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        std::fs::write(&file, "short\n").unwrap();
        let refused = secret(&file).unwrap_err();
        let remedy = format!("`openssl rand -base64 24 > {}`", file.display());
        assert!(refused.contains("at least 8 bytes") && refused.contains(&remedy), "{refused}");
        assert!(secret(&dir.path().join("missing")).unwrap_err().contains("openssl rand"));
        std::fs::write(&file, "long enough\n").unwrap();
        assert!(secret(&file).is_ok());
    }
}
