//! MTA-STS policies of other domains (RFC 8461): found by DNS, fetched by HTTPS, kept on disk.
//!
//! A sender needs only [`Policies::of`]; [`seen_by_https`] checks our own policy from outside.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod fetch;
mod kept;
mod own;
mod policies;
mod policy;
mod public;
mod record;

pub use fetch::AuthoritiesError;
pub use own::seen_by_https;
pub use policies::{FoundPolicy, Policies, PolicyOpenError};
pub use policy::{Mode, PolicyError, StsPolicy};
pub use record::policy_id;
