//! The control shard: small values shared by all nodes.
//!
//! Its log has no owner: any node appends. Each append names the record that it follows. A node whose append is refused
//! reads on and tries again. An entry is an absolute value. [`ControlShard`] follows the log and appends to it;
//! [`ControlTable`] has the values. The log is cut once a node has restated all values, and all nodes on the list have
//! read on: see [`ControlShard::restate`].

mod chunk;
mod compact;
mod entry;
mod shard;
mod table;

pub use compact::ControlRules;
pub use entry::{ControlEntry, ControlKind};
pub use shard::{CONTROL_SHARD, ControlFollower, ControlPlace, ControlShard, ControlShardError, ENTRIES_MAX};
pub use table::ControlTable;
