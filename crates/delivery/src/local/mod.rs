//! Local delivery as a consumer of the spool: a stream for each mail mount.

mod entry;

pub use entry::{Deliver, LargeBody, LocalEntry, Trouble, Visible};
