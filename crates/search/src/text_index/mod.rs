//! The text index: the immutable part of messages, by message number. Written once for each message, deleted when it is
//! gone.
//!
//! Each field has its own terms. Positions are kept for all text, since phrases, addresses and identifiers need them.
//! Norms and scores are not: hits are sorted by date, size and so on. The fields for display are stored as one packed
//! value.

mod build;
mod files;
mod gone;
mod head;
mod index;
mod inverted;
mod merge;
mod part;
mod pool;

pub(crate) use build::SegmentBuilder;
pub(crate) use files::check_files;
pub use head::Head;
pub(crate) use index::{FinishedSegment, TextIndex, numbers_in};
