//! A node of a cluster: its shards and their services.
//!
//! The server's own spool stays on its machine, with the event log. All mail is accepted by the spool of this node's
//! home shard; each owned shard has a relay. A standby's relay only applies entries, and is reopened at each change of
//! the owner.

#[cfg(not(feature = "cluster"))]
mod absent;
#[cfg(feature = "cluster")]
mod control;
#[cfg(feature = "cluster")]
mod engine_view;
#[cfg(feature = "cluster")]
mod health;
#[cfg(feature = "cluster")]
mod lending;
#[cfg(feature = "cluster")]
mod log_cutter;
#[cfg(feature = "cluster")]
mod node;
#[cfg(feature = "cluster")]
mod nodes;
#[cfg(feature = "cluster")]
mod others;
#[cfg(feature = "cluster")]
mod reseed;
#[cfg(feature = "cluster")]
mod serving_node;
#[cfg(feature = "cluster")]
mod shard;

#[cfg(not(feature = "cluster"))]
pub(crate) use absent::OpenShards;
#[cfg(not(feature = "cluster"))]
pub use absent::set_copy_aside;
#[cfg(feature = "cluster")]
pub(crate) use node::OpenShards;
#[cfg(feature = "cluster")]
pub use reseed::set_copy_aside;
