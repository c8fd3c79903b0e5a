//! Durable batches for several ordered consumers.
//!
//! For every program in which one accepted item has several things to become of it, each at its own pace: a message is delivered into mailboxes, relayed
//! and logged. A *batch* is durable as a whole: its body once, and an entry for each *stream* that it concerns. A stream says how far it has come and
//! which bodies it no longer needs; what nobody needs goes. ARCHITECTURE.md has the byte tables and what a power cut leaves.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod bodies;
mod checkpoint;
mod codec;
mod device;
mod files;
mod live;
mod lsn_set;
mod snapshots;

pub use batch::{Batch, Body, Entry, StreamId};
pub use bodies::{FinishedUpload, Upload};
pub use snapshots::SnapshotName;
