//! A spool on several machines.
//!
//! An engine keeps an ordered log for each shard. It answers an append once a quorum has the record on stable storage. The *owner* of the shard appends; every
//! *member* applies the log to a spool of its own. This crate has the traits of an engine, the records in the log, the one rule by which all readers
//! tell valid records from others, and an engine in memory for tests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod log;
pub mod memory;
mod reader;
mod record;
mod sender;

pub use batch::{LoggedBatch, LoggedBody, LoggedEntry};
pub use log::{Appended, Cells, Log, LogError, Position};
pub use reader::{History, Invalid, Read, Reader, ReaderRules, Skipped};
pub use record::{Content, DecodeError, Header, RECORD_BYTES_MAX, Record};
pub use sender::{Effect, End, IN_FLIGHT_MAX, Identity, Sender, SenderRules};
