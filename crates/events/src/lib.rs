//! An event log for mail: one JSON line for each event, written by a consumer of the spool.
//!
//! For every program on a [`Spool`](posthaste_spool::Spool) whose operators trace items. An event is an entry in a
//! batch: of the batch that it describes ([`EventRecorder::entry`]), or of a separate one ([`EventRecorder::note`]).
//! The log's stream passes them, in the order of the spool, to a thread that writes them into numbered files. The
//! stream's position and the file position are one value of the spool, a [`Cursor`], so each line exists once after a
//! kill or a power cut.
//!
//! The log never blocks its callers. While its files cannot be written, entries wait in the spool, up to a bound.
//! Beyond it events are left out and counted; the count is an event, too.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod destination;
mod entry;
mod event;
mod files;
mod inbox;
mod json;
pub mod last;
mod log;
mod notes;
mod pack;
pub mod read;
mod section;
pub mod story;
mod writer;

pub use config::{Config, EventLogStats, Notice};
pub use event::{
    Admin, AdminTarget, Delivered, Event, EventKind, Fate, Feedback, LIST_MAX, LeftOut, LoginEvent, MailboxRef,
    OfRelay, OfTransport, ReceivedEvent, RefusalStage, RefusedEvent, RelayFate, ShardTrouble, TlsFailed,
    TransportTarget, WaitingEvent,
};
pub use files::{Cursor, file_name, packed_name};
pub use json::lines;
pub use log::{EventLog, EventRecorder, STREAM, give_up};
pub use posthaste_intake::ArrivalFacts;
pub use section::Section;
