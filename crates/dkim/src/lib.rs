//! DKIM (RFC 6376, RFC 8301, RFC 8463): keys, their DNS records, streaming signatures, and their verification.
//!
//! For every program that sends mail to other hosts, or receives it from them. A [`Draft`] takes the fields of a
//! header, then the body in pieces. It keeps the fields to sign and a hash. A [`Signer`] makes a `DKIM-Signature` field
//! of it. [`KeyDirectory`] keeps the keys in files. A [`Verifier`] reads an arriving message, and returns its
//! signatures as [`Claim`]s, to be verified with the records of their keys. Nothing here opens a socket or reads a
//! clock.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod canon;
mod claim;
mod der;
mod draft;
mod generate;
mod header_fields;
mod key;
mod key_file;
mod known_keys;
mod names;
mod public;
mod received;
mod record;
mod signature;
mod simple;
mod store;
mod verifier;

pub use canon::{BodyHasher, relaxed_field};
pub use claim::{Claim, DkimResult, Verification};
pub use draft::{Draft, DraftError, HEADER_BYTES_MAX, SIGNED_FIELDS_MAX, is_signed};
pub use generate::{GenerateError, generate};
pub use key::{Algorithm, KeyError, SigningKey};
pub use key_file::{KEY_FILE_BYTES_MAX, KeyFile, KeyFileError, KeyState};
pub use known_keys::KnownKeys;
pub use names::{is_domain, is_selector};
pub use record::{KeyRecord, RecordError};
pub use signature::{SignError, Signer};
pub use store::{DomainKeys, KeyDirectory, KeyRecords, KeyStoreError, StoredKey};
pub use verifier::{HEADER_FIELDS_MAX, SIGNATURES_MAX, Verifier};
