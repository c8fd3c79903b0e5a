//! The Posthaste server: configuration, routing and the wiring between the protocol and the store.
//!
//! The binary uses this crate, and so does a test that wants the real server in its own process. It holds no protocol
//! rules and no storage rules; those are in the crates nearer to the bytes.
#![forbid(unsafe_code)]

mod acme;
mod author;
mod banner;
mod bound;
mod certificates;
mod config_check;
mod control;
mod delays;
mod destinations;
mod detail_folders;
mod disks;
mod dkim;
mod error;
mod events;
mod expiry;
mod first_password;
mod forward;
mod future;
mod head;
mod http;
mod ids;
mod indexing;
mod inject;
mod listening;
mod live;
mod log_format;
pub mod logging;
mod logins;
mod mailboxes;
mod maildirs;
mod maps;
mod message_log;
mod meters;
mod opening;
mod outbound;
mod overview;
mod own_certificates;
mod own_domains;
mod page_door;
mod panics;
mod pickup;
mod privileges;
mod public_files;
mod reading;
mod ready;
mod receive;
mod relay;
mod relay_log;
mod remote;
mod renders;
mod repeats;
mod replies;
mod returned;
mod self_made;
mod sender_checks;
mod serve;
mod server;
mod services;
mod settings;
mod start_files;
mod stuck;
mod success;
mod tenants;
#[cfg(test)]
mod test_log;
mod text_search;
mod tidy;
mod transaction;
mod transports;
mod watch;
mod webhooks;

pub use config_check::{ConfigFindings, check_config};
pub use control::{ClosedAnswer, ClosedError, open_closed};
pub use error::ServeError;
pub use outbound::{OutboundError, open_routes};
pub use posthaste_intake::Left;
pub use privileges::PrivilegeError;
pub use serve::{ServeFailure, ServeOptions, serve};
pub use server::{Server, Stopped};
