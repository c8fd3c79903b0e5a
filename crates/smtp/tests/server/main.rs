//! The server on real sockets: limits on connections, back-pressure, time, shutdown.
#![cfg(feature = "tokio")]

mod client;
mod connections;
mod messages;
mod shutdown;
mod support;
mod times;
