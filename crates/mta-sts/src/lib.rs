//! MTA-STS policies of other domains (RFC 8461): found by DNS, fetched by HTTPS, kept on disk.
//!
//! [`Policies::of`] is all that a sender asks.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod fetch;
mod kept;
mod policies;
mod policy;
mod public;
mod record;

pub use fetch::AuthoritiesError;
pub use policies::{FoundPolicy, OpenError, Policies};
pub use policy::{Mode, Policy, PolicyError};
pub use record::policy_id;
