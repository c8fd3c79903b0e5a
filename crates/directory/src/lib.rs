//! Who receives mail: domains, users, aliases, and the route of each address.
//!
//! For any program that accepts mail for users. It reads no file and opens no socket, and a look-up waits for nothing; where mail is kept is its
//! user's affair.
#![forbid(unsafe_code)]

mod config;
pub mod names;
mod routing;

pub use config::{Account, Domain, Targets, Users};
pub use routing::{Directory, Mailbox, Mailboxes, RouteError};
