//! The spool that a member applies the log to.

use posthaste_spool::{FileSpool, Spool, SpoolAdmin};

/// A local spool that can tell in advance if it will accept a batch.
pub trait LocalSpool: SpoolAdmin + 'static {
    /// True if it will accept `bytes` more. An estimate: a batch that is nevertheless refused is retried until there is
    /// room.
    fn has_room(&self, segment_bytes: u64, bytes: u64, has_body: bool) -> bool;

    /// Asks its keeper to make room.
    fn ask_for_room(&self);
}

impl LocalSpool for FileSpool {
    fn has_room(&self, segment_bytes: u64, bytes: u64, has_body: bool) -> bool {
        let ring = self.file_stats().ring;
        if ring.max_segments == 0 {
            // Of another kind, whose only bound is the disk's.
            return true;
        }
        // One segment is in use, and one is kept for batches without a body.
        let kept = if has_body { 1 } else { 0 };
        let free = ring.max_segments.saturating_sub(ring.segments_in_service.max(1) + kept) as u64;
        bytes <= free * (segment_bytes / 2)
    }

    fn ask_for_room(&self) {
        // Refused, as no disk has so much: that rings its keeper.
        drop(self.check_room(u64::MAX / 2));
    }
}

/// Bytes of room reserved for a batch: one over half of a segment may need a segment of its own.
pub(crate) fn room_of(bytes: u64, segment_bytes: u64) -> u64 {
    let bytes = bytes + OVERHEAD;
    if bytes > segment_bytes / 2 { segment_bytes } else { bytes }
}

/// Headers of the record, its head, and the entry of the log.
const OVERHEAD: u64 = 256;
