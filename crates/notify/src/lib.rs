//! Notifications to the senders of mail: their form and their wording.
//!
//! For every program that has to report the outcome of a message. It does not decide when.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod dsn;
