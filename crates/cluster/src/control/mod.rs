//! The control shard: small values shared by all nodes.
//!
//! Its log has no owner: any node appends. Each append names the record that it follows. A node whose append is refused
//! reads on and tries again. An entry is an absolute value. [`ControlShard`] follows the log and appends to it;
//! [`ControlTable`] has the values. The log is cut once a node has restated all values, and all nodes on the list have
//! read on: see [`ControlShard::restate`].

mod chunk;
mod compact;
mod entry;
mod place;
mod replay;
mod shard;
mod shared;
mod table;

pub use entry::{ControlEntry, ControlKind, ENTRIES_MAX};
pub use place::{CONTROL_SHARD, ControlPlace};
pub use replay::ControlRules;
pub use shard::ControlShard;
pub use shared::{ControlFollower, ControlShardError};
pub use table::ControlTable;
