//! Settings of a ring, its events, and its owner's own records about it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::layout::{BLOCK, Lsn};

/// Sizes and limits. Every field may change from one opening to the next.
#[derive(Clone)]
pub struct Config {
    /// Bytes of a segment file: rounded down to a multiple of 4 KiB, at least 64 KiB and below 4 GiB. A record's head
    /// and body together must be about 8 KiB shorter. Default 64 MiB: smaller ones are changed more often, larger ones
    /// take long to make and to free (measured: bench-results/segments).
    pub segment_bytes: u64,
    /// Maximum segment files, at least 3; when all hold records, appends fail with [`RingAppendError::Full`](crate::RingAppendError::Full). 64 by
    /// default.
    pub max_segments: usize,
    /// Bytes that new segment files may take on the file system now; unlimited by default. With less than a segment,
    /// none is made, as if the maximum existed. The last one, for records without a body, only needs space on the disk.
    pub room: Room,
    /// Maximum records in one commit, at least 1. 1024 by default.
    pub max_batch: usize,
    /// Bytes that may wait for a commit; beyond, appends fail with [`RingAppendError::Busy`](crate::RingAppendError::Busy). 256 MiB by default.
    pub max_pending_bytes: usize,
    /// Called for events that no append reports. By default they are dropped.
    pub events: RingEvents,
    /// The file with the list of segments: outside of the ring's directory it reveals a loss of the whole directory.
    /// `roster` in the directory by default.
    pub roster: Option<PathBuf>,
    /// Opens the ring without the segments that are missing, and remembers that. False by default: see [`RingOpenError::Missing`](crate::RingOpenError::Missing).
    pub gives_up_missing: bool,
}

/// Callback for [`RingEvent`]s, called on the ring's threads or the caller's. Must not block. The ring holds no lock during the call.
pub type RingEvents = Arc<dyn Fn(RingEvent) + Send + Sync>;

/// Bytes that may still be used on the file system. Called on the threads that make segments, without locks that
/// appends need.
pub type Room = Arc<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// Events that no append reports.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RingEvent {
    /// A cancelled record was written nevertheless. Reported on the ring's thread, in LSN order, instead of calling
    /// `then`. The ring's user must record durably that it does not count; [`Ring::append_first`](crate::Ring::append_first) does so with the next
    /// write.
    Cancelled(Lsn),
    /// A segment is needed and all are in use: [`Ring::free_below`](crate::Ring::free_below) makes room. Reported each time.
    RoomWanted,
    /// A segment could not be made. Reported at each attempt; appends that need it are refused.
    SegmentFailed(Arc<io::Error>),
    /// The ring accepts nothing more. Reported once.
    Poisoned(Arc<str>),
}

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: 64 << 20,
            max_segments: 64,
            room: Arc::new(|| Ok(u64::MAX)),
            max_batch: 1024,
            max_pending_bytes: 256 << 20,
            events: Arc::new(|_| ()),
            roster: None,
            gives_up_missing: false,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { segment_bytes, max_segments, room: _, max_batch, max_pending_bytes, .. } = self;
        f.debug_struct("Config")
            .field("segment_bytes", segment_bytes)
            .field("max_segments", max_segments)
            .field("max_batch", max_batch)
            .field("max_pending_bytes", max_pending_bytes)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Commits are written in whole blocks, and offsets have 32 bits. Of three segments one is being written, one is
    /// for records with a body and one for those without.
    pub(crate) fn within_bounds(self) -> Self {
        let block = BLOCK as u64;
        let segment_bytes = self.segment_bytes.clamp(SEGMENT_BLOCKS_MIN * block, u32::MAX.into()) / block * block;
        Config { segment_bytes, max_segments: self.max_segments.max(3), max_batch: self.max_batch.max(1), ..self }
    }
}

/// Gap between the highest LSN known outside and the first LSN of a replaced log.
pub(crate) const SEEN_GAP: u64 = 1 << 32;

/// Facts about the ring from its owner's own durable records.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnRecord {
    /// The first segment still in use. All below are free, so damage in them does not count. 0 if unknown.
    pub low: u64,
    /// The highest known LSN; new ones begin above it. A ring with only free segments does not know its last LSN.
    pub known: Lsn,
    /// The highest LSN of this log known outside, as in a checkpoint. If the next LSN would not be above it, the log
    /// was replaced, and LSNs begin `SEEN_GAP` higher: later ones may have been seen.
    pub seen: Lsn,
    /// The last [`Ring::proof`](crate::Ring::proof). Without it, damage to the log's last record counts as torn, as no later record proves
    /// its durability.
    pub proof: Proof,
    /// No segment from `low` on contains a record up to this one.
    pub freed: Lsn,
}

/// All records of an epoch up to an LSN are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proof {
    /// The number of an opening; 0 for none.
    pub epoch: u64,
    /// The last of the records.
    pub through: Lsn,
}

/// The roster, in the directory of the ring.
pub(crate) const ROSTER: &str = "roster";
const SEGMENT_BLOCKS_MIN: u64 = 16;
