//! The Posthaste server: configuration, routing and the wiring between the protocol and the store.
//!
//! Used by the binary, and by tests that run the real server in process. It contains no protocol or storage rules;
//! those are in the crates below.
#![forbid(unsafe_code)]

mod config;
mod control;
mod ids;
mod lifecycle;
mod listen;
mod log_format;
pub mod logging;
mod receive;
mod repeats;
mod services;
#[cfg(test)]
mod test_log;

pub use config::error::ServeError;
pub use config::privileges::PrivilegeError;
pub use control::config_check::{ConfigFindings, check_config};
pub use control::outbound::{OutboundError, open_routes};
pub use control::requests::{ClosedAnswer, ClosedError, open_closed};
pub use control::serve::{ServeFailure, ServeOptions, serve};
pub use control::server::{MailServer, Stopped};
pub use posthaste_intake::Left;
pub use services::cluster::set_copy_aside;
