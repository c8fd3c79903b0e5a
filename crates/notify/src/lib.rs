//! Notices to the senders of mail, and the mail that comes back to them.
//!
//! For every program that reports the outcome of a message, or reads such reports. It does not decide when.
//!
//! * [`dsn`] writes delivery status notifications (bounces): `dsn/mod.rs` the message, `dsn/wording.rs` its text.
//! * [`report`] reads those of other hosts, and complaints.
//! * [`return_path`] signs the sender of each recipient, so that a report names it. [`originals`] keeps its addresses.
//! * [`srs`] rewrites the senders of forwarded mail, and back. [`secrets`] are the keys of both.
//! * [`suppression`] lists addresses that get no mail.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod database;
pub mod dsn;
pub mod originals;
pub mod report;
pub mod return_path;
pub mod secrets;
pub mod srs;
pub mod suppression;
