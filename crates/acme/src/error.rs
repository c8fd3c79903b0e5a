//! Why a name has no certificate.

use std::net::IpAddr;

use crate::settings::LookupError;

/// Why a name got no certificate this time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcmeError {
    /// The name has no address. Nothing was ordered.
    #[error("{0}")]
    NoAddress(String),
    /// The name has no answer from DNS, so nothing was ordered.
    #[error("{0}")]
    NoAnswer(String),
    /// The name leads to another host. Nothing was ordered.
    #[error("DNS points to {}, not to this host: correct the record or, behind NAT, add the public address to `acme.addresses`", list(.0))]
    Elsewhere(Vec<IpAddr>),
    /// Our own challenge was not found through the name. Nothing was ordered.
    #[error("our own challenge was not found at {at}: {why}")]
    Unreachable {
        /// Address that was asked.
        at: String,
        /// The error at that address.
        why: String,
    },
    /// The program that writes DNS records failed.
    #[error("acme.dns_program: {0}")]
    Program(String),
    /// The authority did not validate the name.
    #[error("the authority says: {0}")]
    NotValidated(String),
    /// The authority refused, or could not be asked.
    #[error("the authority: {0}")]
    Authority(#[from] instant_acme::Error),
    /// The certificate cannot be used.
    #[error("the authority's certificate: {0}")]
    Certificate(String),
    /// A local file cannot be read or written.
    #[error("{0}")]
    File(String),
}

impl AcmeError {
    /// True if only DNS was queried, so a retry soon is cheap.
    pub(crate) fn is_of_dns(&self) -> bool {
        matches!(self, Self::NoAddress(_) | Self::NoAnswer(_) | Self::Elsewhere(_))
    }
}

impl From<LookupError> for AcmeError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Missing(why) => Self::NoAddress(why),
            LookupError::Unknown(why) => Self::NoAnswer(why),
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
