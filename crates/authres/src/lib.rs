//! SPF (RFC 7208): judges the domain that a message names as its sender.
//!
//! For every program that receives mail. Nothing here opens a socket or reads a clock: questions go through [`Dns`], and the caller bounds the time.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod questions;
pub mod spf;
#[cfg(test)]
mod zone;

pub use questions::{Dns, NoAnswer};

/// True for a name that DNS can be asked for: labels of 1 to 63 octets, 253 in all, no final dot.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX && name.split('.').all(|label| (1..64).contains(&label.len()))
}

/// Octets of a name without the final dot (RFC 1035 section 2.3.4).
pub(crate) const NAME_BYTES_MAX: usize = 253;
