//! A replicated spool over the engine in memory, one thing in each file.

mod driver;
mod failures;
#[cfg(feature = "nats")]
mod nats;
mod replicated;
mod standby;
mod suite;
mod world;
