//! A spool on several machines.
//!
//! An engine keeps an ordered log for each shard. It answers an append once a quorum has the record on stable storage.
//! The *owner* of the shard appends; every *member* applies the log to a spool of its own. This crate has the traits of
//! an engine, the records in the log, the common rule for valid records, and an engine in memory for tests.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod applier;
mod batch;
mod bundle;
mod by_hand;
mod cell;
mod clock;
mod collect;
mod control;
mod driver;
mod entry;
mod follower;
mod guard;
mod hub;
mod keeper;
mod lending;
mod local;
mod log;
mod member;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
mod node;
mod opening;
mod ownership;
mod peers;
mod pipeline;
mod queue;
mod reader;
mod record;
mod replicated;
mod roster;
mod runs;
mod sender;
mod settings;
mod survey;
mod writer;

pub use batch::{LoggedBatch, LoggedBody, LoggedEntry};
pub use by_hand::{HandOpening, HandOpeningError, OpeningRisk, UNCHANGED, look_at_opening};
pub use cell::{CellKey, CellOwner, Digest, MemberReport, NodeCell, NodeName, ShardCell};
pub use clock::{BootTime, LeaseClock};
pub use control::{
    CONTROL_SHARD, ControlEntry, ControlFollower, ControlKind, ControlPlace, ControlRules, ControlShard,
    ControlShardError, ControlTable, ENTRIES_MAX,
};
pub use driver::{
    BegunTransaction, CallLane, CallThreads, DriverConfig, DriverWorld, EngineCall, EngineCalls, Lease, NodeDriver,
    NodeNews, NodeShard, ShardService,
};
pub use lending::{
    Borrower, Heard, LendingCounts, LendingRules, LendingShards, PACE, TokenAnswer, TokenAsk, TokenGrant, TokenHome,
    TokenRequest, TokensReturned, VALID, limit_key,
};
pub use local::LocalSpool;
pub use log::{Appended, Cells, LogError, LogPosition, ShardLog};
pub use node::ClusterNode;
pub use opening::ShardOpenError;
pub use ownership::{
    LogState, OwnReport, OwnershipConfig, OwnershipEffect, OwnershipRules, OwnershipTimes, ShardOwnership, StopReason,
};
pub use peers::{ANSWER_BYTES_MAX, PeerAnswerer, PeerName, Peers, QUESTION_BYTES_MAX, QUESTIONS_MAX};
pub use reader::{History, Invalid, LogReader, Read, ReaderRules, Skipped};
pub use record::{Content, LogRecord, LogRecordError, LogRecordHeader, RECORD_BYTES_MAX};
pub use replicated::{MemberPlace, ReplicatedSpool};
pub use roster::{RosterError, add_node, is_removed, remove_node};
pub use sender::{Effect, IN_FLIGHT_MAX, OwnerIdentity, Sender, SenderEnd, SenderRules};
pub use settings::{ReplicatedConfig, WriterRules};
pub use survey::{SURVEY, SurveyedNode, survey};
