//! Bindings of the few RocksDB functions that a mail spool needs, from the system's library.
//!
//! For programs that must not compile RocksDB. Its C interface is stable. All unsafe code is here: memory of the library has one
//! owner, and what it returns is copied.
#![cfg(feature = "system")]
#![warn(missing_docs)]
#![allow(unsafe_code, reason = "a library in C++ is called")]

mod batch;
mod calls;
mod database;
mod error;

pub use batch::RocksBatch;
pub use database::{Family, RocksDb};
pub use error::RocksError;
