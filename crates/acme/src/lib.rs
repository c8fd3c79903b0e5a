//! Certificates from an ACME authority (RFC 8555): one for each name, renewed in time, in force without a reload.
//!
//! For any server on tokio and rustls. It knows no configuration and no resolver: the caller gives [`AcmeSettings`], looks names up ([`NameLookup`]), shows the
//! [`Challenges`] at its listeners, and has the certificates in a [`CertificateList`](posthaste_net::CertificateList).
//!
//! A certificate is ordered only if the order can succeed: the name's address is ours, and a test challenge was fetched
//! through the name. A failing name does not delay the others.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backoff;
mod challenge;
mod client;
mod error;
mod files;
mod order;
mod probe;
mod program;
mod settings;
mod worker;

pub use backoff::{failures, last_failure};
pub use challenge::{CHALLENGE_PATH, Challenges};
pub use error::AcmeError;
pub use files::{certificate_file, next_key_file};
pub use settings::{AcmeSettings, LookupAnswer, LookupError, NameLookup, Ports, Way};
pub use worker::{AcmeHandle, NameOutcome, NameState, start};
