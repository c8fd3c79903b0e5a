//! A write-ahead log as a ring of segments, with group commit: many callers append, one `fdatasync` makes all of it durable.
//!
//! The ring knows nothing of mail. It is for programs that acknowledge thousands of durable writes per second. Segments of a fixed size are
//! filled with zeros once, used in order and recycled, oldest first, so a sync costs one device flush and no file-system commit.
//! The caller copies still needed records out of the oldest segment before freeing it. docs/formats.md has the byte tables,
//! docs/internals/invariants.md the invariants.
//!
//! ```
//! # let dir = tempfile::tempdir().unwrap();
//! use posthaste_ring::{Config, OnRecord, Ring};
//!
//! let config = Config { segment_bytes: 1 << 20, ..Config::default() };
//! let (ring, recovery) = Ring::open(dir.path(), config, OnRecord::default()).unwrap();
//! assert!(recovery.damage.is_empty());
//! let (tell, told) = std::sync::mpsc::channel();
//! ring.append(vec!["for a.example".into()], vec!["a promise".into()], move |outcome| tell.send(outcome).unwrap());
//! let lsn = told.recv().unwrap().unwrap(); // durable from here on
//! assert_eq!(&ring.read_body(lsn, 2..9).unwrap()[..], b"promise");
//! ```
#![forbid(unsafe_code)]

mod config;
mod damage;
mod error;
mod file;
mod judge;
pub mod layout;
mod pool;
mod queue;
mod recovery;
mod ring;
mod roster;
mod scan;
mod segment;
mod shared;
mod stats;
mod storage;
mod table;
mod window;
mod writer;

pub use config::{Config, OnRecord, Proof, RingEvent, RingEvents, Room};
pub use damage::RingDamage;
pub use error::{RingAppendError, RingOpenError, RingReadError};
pub use layout::Lsn;
pub use queue::{RecordFate, RingCancelled, RingTicket};
pub use recovery::{Examined, Recovery, examine};
pub use ring::{RecordHead, Ring};
pub use scan::{Gap, LSN_GAP, Located};
pub use segment::SegmentReader;
pub use stats::RingStats;
pub use table::SegmentInfo;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
