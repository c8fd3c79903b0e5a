//! The queue of mail to other hosts: decides which mail is sent, when, and in which order.
//!
//! For every program that sends mail on, and for tools that read what its queue has kept.
//!
//! A state machine: no IO, no threads and no clock ([`Queue::tick`] gets the time of a [`QueueClock`]); a seed decides every
//! random choice. Only [`Queue::apply`] changes lasting state, by the entries of a stream in their order, so a replay
//! gives the same queue. A decision has three steps: a method returns a [`Change`], the caller appends it to the spool,
//! and applies the entry once it is durable. In between the recipient is *busy*: nothing else is decided about it.
//! Addresses are not kept; they are in the entry of the message.
//!
//! ```text
//!              due               next()              Deferred
//! Scheduled ────────► Due ─────────────► Busy ─────────────────► Scheduled
//!     ▲                                   │ Delivered, Failed, Suppressed, Deleted
//!     │ Released                          ├──────────────────────────────────► gone
//!     └──────────────── Held ◄────────────┘ Held
//! ```
//!
//! A settled recipient may owe its sender a notice: it stays known, with its message, until [`What::Told`]. See
//! [`OwedNotice`].
//!
//! | question | file |
//! | --- | --- |
//! | the change of each entry | `apply.rs` |
//! | the next message of a site | `ready.rs`, turns: `turns.rs` |
//! | retries and expiry | `schedule.rs`, `wheel.rs` |
//! | routes, sources | `routes.rs`, `pick.rs` |
//! | suspensions, diversions, slow-downs | `interventions.rs`, `temporary.rs`; durable: `entry.rs`, `snapshot.rs` |
//! | owed and due notices | `notices.rs`, `owed.rs` |
//! | operators' commands | `admin.rs` |
//!
//! An operator releases held recipients; those held until a time are released then ([`Queue::end_holds`]).
//!
//! A due recipient waits in the queue of its tenant, campaign and domain (the scheduled level). [`Queue::route`]
//! assigns such a queue to a site and to sources. Each pair of them is a ready queue, which holds no recipients itself:
//! it takes turns among tenants, then among their queues. So it needs no memory per recipient, and mail that waits for
//! one site holds up no other.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod apply;
mod change;
mod clock;
mod codec;
mod destinations;
mod digest;
pub mod entry;
mod gate;
mod imported;
mod interventions;
mod names;
mod notices;
mod owed;
mod pick;
mod queue;
mod queued;
mod ready;
mod recipient;
mod routes;
mod schedule;
mod scope;
mod served_kinds;
mod snapshot;
mod table;
mod tally;
mod temporary;
mod turns;
mod wheel;

pub use admin::{RecipientState, Selection, Waits};
pub use change::{DueNotice, OwedNotice, QueueAction};
pub use clock::{QueueClock, STOPPED_SECS_MAX, Secs};
pub use codec::QueueDecodeError;
pub use destinations::{QueueId, QueueName, domain_of};
pub use entry::{Change, EntryText, QueueEntry, Queued, QueuedRecipient, QueuedRet, RecipientKey, Status, What};
pub use gate::{Gate, Parked};
pub use imported::{IMPORT_KEPT_SECS, ImportNoted, Imported, ImportedState, Origin};
pub use owed::OwedRecipient;
pub use queue::Queue;
pub use ready::{AttemptOutcome, Prefer, Take, Taken, Transaction};
pub use routes::{Hop, LateHop, RouteSource};
pub use schedule::{RetrySchedule, ScheduleRule, Schedules};
pub use served_kinds::ServedKinds;
pub use snapshot::{QueueRestoreError, QueueSnapshot};
pub use tally::{QueueTally, SuspendedPart};
pub use temporary::{Diversion, Slow};
pub use turns::ReadyId;

#[cfg(test)]
mod tests;
