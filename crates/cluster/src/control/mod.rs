//! The control shard: small values that all nodes have in common.
//!
//! Its log has no owner. An entry is an absolute value, and each append names the record that it follows: so any node appends, and one whose append was refused reads
//! on and tries again. [`ControlShard`] follows the log and appends to it; [`ControlTable`] has the values. The log is never cut.

mod entry;
mod shard;
mod table;

pub use entry::{ControlEntry, ControlKind};
pub use shard::{CONTROL_SHARD, ControlFollower, ControlPlace, ControlShard, ControlShardError, ENTRIES_MAX};
pub use table::ControlTable;
