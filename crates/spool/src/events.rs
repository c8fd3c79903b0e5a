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
        /// Text of the checkpoint's error.
        error: String,
    },
    /// A checkpoint took longer than [`Config::checkpoint_slow`](crate::Config::checkpoint_slow).
    CheckpointSlow {
        /// Duration of the checkpoint.
        took: Duration,
    },
    /// Needed batches could not be moved into a pack, or packs could not be merged.
    PackingFailed {
        /// Text of the error.
        error: String,
    },
    /// A segment of the ring could not be created: batches that need it are refused.
    SegmentFailed {
        /// Text of the error.
        error: String,
    },
    /// A write or a sync failed: nothing is accepted until the spool is reopened.
    Poisoned {
        /// Text of the first error.
        why: String,
    },
    /// Stored bytes differ from the written bytes.
    Damage(Damage),
    /// Free space fell below a configured floor, or is above all floors again.
    ShortOfSpace {
        /// True if it fell below a floor.
        is_short: bool,
        /// Free bytes on the file system.
        free_bytes: u64,
        /// Free inodes on the file system.
        free_inodes: u64,
    },
}

/// Damage to stored data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// LSN of the damaged batch; `None` if unknown.
    pub lsn: Option<Lsn>,
    /// Damaged file or part of the spool.
    pub place: String,
    /// Description of the damage, and of the loss.
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

/// Callback for events. Must not block for long: the keeper waits for it.
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
