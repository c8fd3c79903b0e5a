//! A write-ahead log with group commit: many callers append, one `fdatasync` makes all of them durable.
//!
//! The journal knows nothing of mail; whoever must promise that bytes survive a power cut, and wants to promise it
//! thousands of times a second, can use it. Segments of a fixed size are written full of zeros once and recycled, so
//! a sync costs one device flush and no file-system commit. ARCHITECTURE.md has the byte tables and the invariants.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! use posthaste_journal::{Config, Journal, KIND_USER};
//!
//! let config = Config { segment_bytes: 1 << 20, ..Config::default() };
//! let (journal, recovery) = Journal::open(dir.path(), config).unwrap();
//! assert!(recovery.records.is_empty());
//! let id = journal.append(KIND_USER, vec!["a promise".into()]).wait().unwrap(); // durable from here on
//! assert_eq!(&journal.read(id).unwrap().1[..], b"a promise");
//! journal.settle(id); // kept elsewhere now; the next checkpoint frees its space
//! journal.checkpoint(|| Ok(())).unwrap();
//! ```
#![forbid(unsafe_code)]

mod append;
mod checkpoint;
pub mod inspect;
mod journal;
mod judge;
pub mod layout;
mod pool;
mod recovery;
mod scan;
mod shared;
pub mod sim;
mod stats;
pub mod storage;
mod writer;

pub use append::{Append, AppendError};
pub use checkpoint::{CheckpointError, CheckpointStats};
pub use journal::{Config, Journal, OpenError, ReadError, RecordId, Recovered, Recovery};
pub use layout::KIND_USER;
pub use recovery::{Damage, Note};
pub use scan::{Gap, Located, Scan, scan};
pub use stats::StatsSnapshot;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
