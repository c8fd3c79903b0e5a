//! The control socket: operators' requests to the running server, over a UNIX socket in its data directory.
//!
//! A request is one line of JSON, the answer lines of JSON. The last line has `done` or `error`; a connection takes one request. Only the server's user, who
//! owns the socket, and root can connect.
//!
//! | question | file |
//! | --- | --- |
//! | the socket, and sessions that need it | `socket.rs` |
//! | the answer of each request | `dispatch.rs`; about waiting mail: `this_node.rs`, of a whole cluster: `everywhere.rs` |
//! | lines of an answer | `answering.rs` |
//!
//! Each group of requests has a file of its own.

mod account;
mod acme;
mod act;
mod answering;
mod asker;
mod cat;
pub(crate) mod closed;
mod closed_mailboxes;
mod closed_spool;
mod cluster;
mod dispatch;
mod divert;
mod domains;
pub(crate) mod everywhere;
mod explain;
mod export;
mod find;
mod import;
mod list;
mod logins;
mod mail;
pub(crate) mod queue_counts;
mod queues;
mod scopes;
mod search;
mod shared;
mod socket;
mod summary;
mod suppression;
pub(crate) mod suspend;
mod this_node;
mod trace;
mod transfer;
mod transports;

pub(crate) use account::ControlMailboxes;
pub use closed::{ClosedAnswer, open_closed};
pub use closed_spool::ClosedError;
pub(crate) use dispatch::ask;
pub(crate) use socket::{Control, ControlSocket, ReloadAsked};
