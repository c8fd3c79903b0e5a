//! Mail to other hosts: MX hosts, routes, connections and outgoing sessions.
//!
//! For any program that relays mail to responsible hosts. It does not know local mailboxes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod classify;
pub mod sender;
pub mod session;
