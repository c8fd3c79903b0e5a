//! DANE for SMTP (RFC 7672): what the TLSA records of a host demand of TLS with it, and a verifier for rustls.
//!
//! [`Dane::demand`] is all that a sender asks. [`HostCertificate`] is for the records of a host of one's own.
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
