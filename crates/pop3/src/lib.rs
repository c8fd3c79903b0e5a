//! POP3 (RFC 1939) for servers: the grammar of commands and a session as a state machine without IO.
//!
//! Any server of mailboxes can use it: [`session::Pop3Machine`] asks its owner for logins, sizes and octets of messages, and holds none of them
//! longer than a command. It opens no file and no socket and reads no clock; with feature `tokio`, a driver does.
//!
//! ```
//! use posthaste_pop3::{Pop3Command, parse};
//!
//! assert_eq!(parse(b"top 3 10"), Ok(Pop3Command::Top { message: 3, lines: 10 }));
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod command;
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub mod driver;
mod line;
pub mod session;
mod stuffing;

pub use command::{Pop3Command, Pop3CommandError, parse};
