//! The server on real sockets: limits of connections, back-pressure, timeouts, shutdown.
#![cfg(feature = "tokio")]

mod client;
mod connections;
mod messages;
mod shutdown;
mod support;
mod times;
