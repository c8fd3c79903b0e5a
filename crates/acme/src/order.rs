//! One order: from an account to a certificate.

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeHandle, ChallengeType, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use posthaste_net::x509;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, Der, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::challenge::{Challenges, Shown};
use crate::error::AcmeError;
use crate::files::Kept;
use crate::program::write_record;
use crate::settings::Way;

/// Maximum wait for the authority to validate, and to sign.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(180));

/// A certificate and its key.
pub(crate) struct Obtained {
    pub kept: Kept,
    /// Key and chain, for the file.
    pub pem: String,
}

/// A certificate to be ordered.
pub(crate) struct Wanted<'a> {
    pub name: &'a str,
    pub way: &'a Way,
    /// Its key.
    pub key: KeyPair,
    /// The certificate that the new one replaces, for authorities that track replacements (ARI).
    pub replaces: Option<&'a Kept>,
}

impl Wanted<'_> {
    /// Places the order, answers the challenge, and downloads the certificate.
    ///
    /// # Errors
    /// See [`AcmeError`].
    pub async fn obtain(self, account: &Account, challenges: &Challenges) -> Result<Obtained, AcmeError> {
        let identifiers = [Identifier::Dns(self.name.to_owned())];
        let mut order = self.order(account, &identifiers).await?;
        let shown = self.prove(&mut order, challenges).await?;
        let status = order.poll_ready(&PATIENCE).await?;
        drop(shown);
        if status != OrderStatus::Ready {
            return Err(AcmeError::NotValidated(refusal(&mut order).await));
        }
        order.finalize_csr(&request(self.name, &self.key).map_err(unusable)?).await?;
        let chain = order.poll_certificate(&PATIENCE).await?;
        obtained(self.name, &self.key, &chain)
    }

    /// Places the order; repeats it without a replacement if the authority refuses: some believe that the certificate
    /// was already replaced.
    async fn order(&self, account: &Account, identifiers: &[Identifier]) -> Result<Order, AcmeError> {
        if let Some(id) = self.replaces.and_then(identifier)
            && let Ok(order) = account.new_order(&NewOrder::new(identifiers).replaces(id)).await
        {
            return Ok(order);
        }
        Ok(account.new_order(&NewOrder::new(identifiers)).await?)
    }

    /// Answers the challenge of each name that is not validated yet.
    async fn prove(&self, order: &mut Order, challenges: &Challenges) -> Result<Vec<Shown>, AcmeError> {
        let mut shown = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(AcmeError::NotValidated(format!("the authorization is {status:?}"))),
            }
            let kind = match self.way {
                Way::Tls => ChallengeType::TlsAlpn01,
                Way::Http => ChallengeType::Http01,
                Way::Dns(_) => ChallengeType::Dns01,
            };
            let Some(mut challenge) = authorization.challenge(kind) else {
                return Err(AcmeError::NotValidated(format!("it offers no {}", self.way.kind())));
            };
            shown.extend(self.show(&challenge, challenges).await?);
            challenge.set_ready().await?;
        }
        Ok(shown)
    }

    async fn show(&self, challenge: &ChallengeHandle<'_>, challenges: &Challenges) -> Result<Option<Shown>, AcmeError> {
        let authorization = challenge.key_authorization();
        Ok(match self.way {
            Way::Http => Some(challenges.show_http(&challenge.token, authorization.as_str())),
            Way::Tls => {
                let digest = authorization.digest();
                let digest = digest
                    .as_ref()
                    .try_into()
                    .map_err(|_| AcmeError::Certificate("a digest of SHA-256 has 32 octets".to_owned()))?;
                Some(challenges.show_tls(self.name, digest)?.0)
            }
            Way::Dns(program) => {
                write_record(program, self.name, &authorization.dns_value()).await?;
                None
            }
        })
    }
}

impl Way {
    /// Challenge type, as registered at IANA.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Tls => "tls-alpn-01",
            Self::Http => "http-01",
            Self::Dns(_) => "dns-01",
        }
    }
}

/// The authority's error texts about failed challenges.
async fn refusal(order: &mut Order) -> String {
    let mut said = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        said.extend(errors.map(ToString::to_string));
    }
    if said.is_empty() { "the order is invalid".to_owned() } else { said.join("; ") }
}

/// Identifier of a certificate in renewal queries (RFC 9773 section 4.1).
pub(crate) fn identifier(kept: &Kept) -> Option<CertificateIdentifier<'static>> {
    let own = kept.key.cert.first()?;
    let (authority, serial) = (x509::authority_key_id(own)?, x509::serial(own)?);
    Some(CertificateIdentifier::new(Der::from_slice(authority), Der::from_slice(serial)).into_owned())
}

/// The certificate request for this name only.
fn request(name: &str, key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

fn obtained(name: &str, key: &KeyPair, chain: &str) -> Result<Obtained, AcmeError> {
    let certificates = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(unusable)?;
    if certificates.is_empty() {
        return Err(AcmeError::Certificate("there is none".to_owned()));
    }
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let certified = CertifiedKey::from_der(certificates, der.into(), &provider).map_err(unusable)?;
    let kept = Kept::of(Arc::new(certified), name);
    let kept = kept.ok_or_else(|| AcmeError::Certificate("it is not for this name, or has no end".to_owned()))?;
    Ok(Obtained { kept, pem: key.serialize_pem() + chain })
}

fn unusable(error: impl std::fmt::Display) -> AcmeError {
    AcmeError::Certificate(error.to_string())
}
