//! A deterministic simulation of several nodes: real are ownership, cells, the owner's sender, readers and records.
//! Models are the engine, the disk of a member, its writer and the queue (`engine.rs`, `member.rs`); clocks and network
//! follow from the seed.
//!
//! Promises:
//!
//! - Mail that was acknowledged is delivered, and all members have the same records.
//! - A message is delivered twice only if its delivery was not recorded when the next owner began.
//! - No owner acts after the next one has begun.
//! - A log is cut only below what two disks have.
//!
//! `POSTHASTE_CLUSTER_SEEDS` is the number of seeds, `POSTHASTE_CLUSTER_SEED` one seed, `POSTHASTE_CLUSTER_SIZE` nodes
//! and shards (`5x3`).

mod engine;
mod lending;
mod member;
mod node;
mod promises;
mod random;
mod rules;
mod scenarios;
mod world;
