//! SPF (RFC 7208), DMARC (RFC 9989) and the field `Authentication-Results` (RFC 8601): checks the sender domain of a
//! message.
//!
//! For every program that receives mail. Nothing here opens a socket or reads a clock: questions go through [`Dns`], and the caller bounds the time.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod dmarc;
mod questions;
mod results;
pub mod spf;
#[cfg(test)]
mod zone;

pub use questions::{Dns, NoAnswer};
pub use results::{AuthResults, PlainText, RESULTS_MAX};

/// True for a name that DNS can be asked for: labels of 1 to 63 octets, 253 in all, no final dot.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= results::NAME_BYTES_MAX && name.split('.').all(|label| (1..64).contains(&label.len()))
}

/// True if the name is the domain or lies below it.
pub(crate) fn is_at_or_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
