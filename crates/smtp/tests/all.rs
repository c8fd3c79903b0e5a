//! Both sides of the protocol and their drivers, one thing in each file. One program: those that change the process or measure it are programs of their own.

mod certificates;
mod client;
mod common;
mod listen;
mod listeners;
mod names;
#[cfg(feature = "tokio")]
#[path = "common/nobody.rs"]
mod nobody;
mod pipelining;
mod prop;
#[path = "common/script.rs"]
mod script;
mod secure;
