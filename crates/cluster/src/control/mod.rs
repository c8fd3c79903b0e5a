//! The control shard: what all nodes have in common. State machines without IO over its stream; all nodes are members of it.
//!
//! [`ControlTable`] applies its entries in order. [`ControlSpread`] tells when all nodes on the list have a change, or which do not. [`ControlForwarder`] brings
//! entries of a queue shard to the owner of the control shard until that has stored them.

mod entry;
mod forward;
mod spread;
mod table;

pub use entry::{ControlEntry, ControlKind, NodeEntry};
pub use forward::{ControlForwarder, ForwardEffect};
pub use spread::{ControlSpread, SpreadOutcome};
pub use table::{ControlChange, ControlTable};
