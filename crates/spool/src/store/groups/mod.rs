//! Stores whose records are written in groups by one thread. It takes all waiting records, makes them durable in their
//! [`Medium`], and calls back in order.

mod counters;
mod header;
mod import;
mod medium;
mod numbers;
mod queue;
mod shared;
mod store;
mod writer;

pub(crate) use self::header::{HEADER, StoredHeader};
pub(crate) use self::import::RecordImport;
pub(crate) use self::medium::{GroupWriter, Medium, NewRecord, OpenedMedium, WriteError};
pub(crate) use self::numbers::{NEXT, STEP};
pub(crate) use self::store::{GroupStore, records_lost};
