//! The common part of all owners of streams of a [`Spool`](posthaste_spool::Spool).
//!
//! For any program in which a stream has a state that follows from its entries, with effects outside the spool. It does
//! not interpret entries.
//!
//! An owner goes through the same steps. It [registers](StreamHandle::register) its stream;
//! [`replay`](StreamHandle::replay) applies every entry to its [state](StreamState); the [`ReplayedStream`] is
//! [attached](ReplayedStream::attach), and from then on the owner receives new entries. Only an [`AttachedStream`] may
//! act. It is detached on drop, so an opening that fails later leaves no dead consumer. Its threads are
//! [started](StreamHandle::start_thread) under the spool's watch, or in a [`ConsumerRuntime`] with its own watch.
//!
//! | owner | its state | position | a damaged batch | lost entries | acts on the world |
//! | --- | --- | --- | --- | --- | --- |
//! | `delivery`, a stream for each mount | messages in flight | the first of them | told | told by the repair | files; `visible` and `sync begun` are entries |
//! | `transport` | queues | the first message that waits | told | told by the repair | programs, files, LMTP; [`OutcomeBudget`] |
//! | `relay` | the queue, from a snapshot | its snapshot | told; without a body, recipients are held | recipients are held | sessions; [`OutcomeBudget`] |
//! | `events` | a place in files | that place | a line in the log | nothing | files that are cut back to the place |
//! | `mailstore` | rows, from a table | the last commit of the table | UIDs are left out | UIDs are left out | nothing |
//! | `inject` | idempotency keys, from a snapshot | its snapshot | told | told | nothing |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod budget;
mod error;
mod notices;
mod runtime;
mod stream;
mod thread;

pub use budget::{BudgetChange, BudgetGate, BudgetWait, OutcomeBudget, PoisonWatch, UNRECORDED_MAX, poison_watch};
pub use error::StreamOpenError;
pub use notices::NoticeSchedule;
pub use posthaste_watch::Pulse;
pub use runtime::{ConsumerRuntime, Ending, NewRuntime};
pub use stream::{
    AttachedStream, ROOM_PATIENCE, ReplayedEntry, ReplayedStream, StreamHandle, StreamState, append_within,
};
pub use thread::StreamThread;
