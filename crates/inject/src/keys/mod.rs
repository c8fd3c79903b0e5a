//! Idempotency keys: a repeated request is received once.
//!
//! A batch carries the entry of its key, so mail is never durable without its key, and a key never claims mail that
//! is not durable.

mod entry;
mod log;
mod table;

pub use entry::{BodyDigest, Indexes, KeyId, Settled, body_digest};
pub use log::{KEY_STREAM, KeyLog, KeyReport};
pub use table::{FoundKey, KeyOutcome, KeyRefusal, RunningKey};
