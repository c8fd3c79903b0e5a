//! Durable batches for several ordered consumers.
//!
//! For every program that processes each accepted item in several ways, each at its own pace: a message is delivered
//! into mailboxes, relayed and logged. A *batch* becomes durable as a whole: its body once, and an entry for each
//! *stream* that it concerns. A stream reports its position and the bodies that it no longer needs; unneeded data are
//! removed. docs/formats.md has the byte tables, docs/internals/recovery.md what a power cut leaves.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
mod batch;
mod bodies;
mod checkpoint;
mod checkpointing;
mod closed;
mod codec;
mod config;
mod core;
mod error;
mod events;
mod fields;
mod files;
mod front;
mod keeper;
mod live;
mod lsn;
mod lsn_set;
mod message_reader;
mod names;
mod open;
mod pace;
mod pack;
mod packing;
mod place;
mod pressure;
mod reading;
mod replay;
mod room;
mod scrub;
mod set_aside;
mod shared;
mod showing;
mod snapshots;
mod spool;
mod state;
mod store;
mod ticket;

pub use api::{
    Consumer, Published, PublishedBody, Released, Replayed, Restored, ScrubReport, SetAside, Spool, SpoolAdmin, Stats,
    StreamStats, Then,
};
pub use batch::{Batch, Body, Entry, StreamId};
pub use bodies::{FinishedUpload, Upload};
pub use closed::{
    ClosedFileSpool, ClosedSpool, ExportedBatch, ExportedBody, ExportedEntry, ExportedSnapshot, ExportedStream,
    ExportedStreams, ImportedBatch, Inspection, PlaceReport, Rebuilt, Repaired, SpoolImport,
};
pub use config::{Config, LsmDurability};
pub use error::{AppendError, CheckpointError, OpenError, ReadError, ReplayError, RestoreError, StreamError};
pub use events::{Damage, Events, SpoolEvent};
pub use fields::{Fields, put_text};
pub use front::{FrontFields, FrontFieldsError};
pub use lsn::Lsn;
pub use message_reader::{LostMessage, MessageReader};
pub use open::OpenReport;
pub use pressure::{PAUSE_MAX, Pressure};
pub use snapshots::{SnapshotError, SnapshotName, SnapshotReader};
pub use spool::{FileSpool, FileStats};
pub use store::StoreKind;
pub use ticket::{Cancel, Cancelled, Ticket};
