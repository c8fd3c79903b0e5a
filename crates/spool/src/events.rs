//! Events for the operator, as values: the program that opened the spool logs and counts them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Lsn;

/// An event for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpoolEvent {
    /// A checkpoint failed: nothing is freed until one succeeds, and the spool fills.
    CheckpointFailed {
        /// The error.
        error: String,
    },
    /// A checkpoint took longer than [`Config::checkpoint_slow`](crate::Config::checkpoint_slow).
    CheckpointSlow {
        /// Duration of the checkpoint.
        took: Duration,
    },
    /// Needed batches could not be moved into a pack, or packs could not be merged.
    PackingFailed {
        /// The error.
        error: String,
    },
    /// A segment of the ring could not be made: batches that need it are refused.
    SegmentFailed {
        /// The error.
        error: String,
    },
    /// A write or a sync failed: nothing is accepted until the spool is reopened.
    Poisoned {
        /// Why.
        why: String,
    },
    /// Stored bytes differ from the written ones.
    Damage(Damage),
    /// The file system fell below a floor, or is above them again.
    ShortOfSpace {
        /// True if it is below.
        is_short: bool,
        /// Bytes and inodes that are free.
        free_bytes: u64,
        /// See `free_bytes`.
        free_inodes: u64,
    },
}

/// Damage to stored data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The batch, if it is known.
    pub lsn: Option<Lsn>,
    /// File or part of the spool.
    pub place: String,
    /// The damage.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lsn {
            Some(lsn) => write!(f, "{}: batch {lsn}: {}", self.place, self.what),
            None => write!(f, "{}: {}", self.place, self.what),
        }
    }
}

/// Receives events. Must not block for long: the keeper waits for it.
#[derive(Clone)]
pub struct Events(Arc<dyn Fn(SpoolEvent) + Send + Sync>);

impl Events {
    /// Calls `tell` with each event.
    pub fn new(tell: impl Fn(SpoolEvent) + Send + Sync + 'static) -> Self {
        Events(Arc::new(tell))
    }

    pub(crate) fn tell(&self, event: SpoolEvent) {
        (self.0)(event);
    }
}

impl Default for Events {
    /// Drops all events.
    fn default() -> Self {
        Events::new(|_| ())
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
