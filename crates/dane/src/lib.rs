//! DANE for SMTP (RFC 7672): what the TLSA records of a host demand of TLS with it, and a verifier for rustls.
//!
//! [`Dane::demand`] is all that a sender asks.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod association;
mod demand;
mod der;
mod verifier;

pub use association::{Association, SentCertificate};
pub use demand::{Dane, Demand};
pub use der::PublicKeyInfo;
pub use verifier::{DaneVerifier, MismatchError};
