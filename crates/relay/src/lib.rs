//! Mail to other hosts: MX hosts, routes, connections and outgoing sessions.
//!
//! For any program that sends mail on to the host that is responsible for it. It does not know local mailboxes.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod classify;
pub mod sender;
pub mod session;
