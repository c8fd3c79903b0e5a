//! Keys of requests, by which a request that is repeated is received once.
//!
//! What a batch settles of a request stands in the batch itself, so mail is never durable without its key, and no key says more than what is durable.

mod entry;
mod log;
mod table;

pub use entry::{BodyDigest, Indexes, KeyId, Settled, body_digest};
pub use log::{KEY_STREAM, KeyLog, KeyReport};
pub use table::{FoundKey, KeyOutcome, KeyRefusal, RunningKey};
