//! The generator against servers of every temper, all on loopback.

mod account;
mod errors;
mod figures;
mod sessions;
mod stall;
mod support;
mod tls;
