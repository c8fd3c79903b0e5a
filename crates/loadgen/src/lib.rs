//! Load generator, sink, accounting and reports for any SMTP or LMTP server, ours or another's.
//!
//! It does not depend on the server: what it proves of one it can prove of all. Others use it to test a mail server
//! or a relay of their own.
#![forbid(unsafe_code)]

pub mod doctor;
pub mod sink;
pub mod stamp;
