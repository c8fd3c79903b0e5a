//! A DNS server on loopback for tests: UDP and TCP on one port, zones given in code, failures on request.
//!
//! For any test of a program that asks DNS. Only for tests: one client at a time over TCP, and panics where the system refuses a socket.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod server;
mod wire;
mod zone;

pub use server::{Asked, Server};
pub use wire::Kind;
pub use zone::Zone;
