//! DANE for SMTP (RFC 7672): the demand of a host's TLSA records on TLS, and a verifier for rustls.
//!
//! A sender needs only [`Dane::demand`]. [`HostCertificate`] is for the records of a host of one's own.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod association;
mod demand;
mod der;
mod own;
mod verifier;

pub use association::{Association, SentCertificate};
pub use demand::{Dane, Demand};
pub use der::PublicKeyInfo;
pub use own::{HostCertificate, HostFiles};
pub use verifier::{DaneVerifier, MismatchError};
