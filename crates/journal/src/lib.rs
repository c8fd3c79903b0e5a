//! Reads the log in which versions before the spool kept accepted mail.
//!
//! For the first start of a newer version, which moves that mail into its spool. Nothing here writes: what is in the directory stays as it is,
//! however damaged it may be. ARCHITECTURE.md has the byte tables.
//!
//! ```no_run
//! let reader = posthaste_journal::Reader::open("data/journal".as_ref())?;
//! for record in reader.records() {
//!     println!("{}: kind {}, {} bytes", record.id, record.kind, reader.read(record.id)?.len());
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod judge;
pub mod layout;
mod reader;
mod recovery;
mod scan;
mod segment;
pub mod storage;

pub use layout::KIND_USER;
pub use reader::{Reader, Record, segments};
pub use recovery::Note;
pub use scan::{Gap, Located, Scan, scan};
pub use segment::Damage;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
