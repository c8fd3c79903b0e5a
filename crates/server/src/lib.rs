//! The Posthaste server: configuration, routing and the wiring between the protocol and the store.
//!
//! The binary uses this crate, and so does a test that wants the real server in its own process. It holds no protocol
//! rules and no storage rules; those are in the crates nearer to the bytes.
#![forbid(unsafe_code)]

mod banner;
mod body;
pub mod config;
mod indexing;
mod listening;
pub mod logging;
mod memory;
mod message_log;
mod opening;
mod owners;
mod privileges;
mod ready;
mod receive;
mod reload;
mod repeats;
mod serve;
mod shares;
mod tidy;
mod transaction;
mod watch;

pub use privileges::PrivilegeError;
pub use serve::{ServeError, ServeOptions, Server, Stopped, serve};

/// What each mailbox is called, within the directory of its user.
pub(crate) const MAILDIR: &str = "Maildir";
