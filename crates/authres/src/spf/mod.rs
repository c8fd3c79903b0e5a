//! Sender Policy Framework (RFC 7208): may this client send mail of this domain?

mod check;
mod macros;
mod record;
mod result;

pub use check::{Question, Verdict, check};
pub use result::SpfResult;

#[cfg(test)]
mod tests;
