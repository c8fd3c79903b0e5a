//! A segment of the journal, and what may be wrong with it.

use std::sync::Arc;

use crate::layout::SegmentHeader;
use crate::storage::SegmentFile;

/// A place in the log where records should be and are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Name of the segment file; empty if a whole one must be missing.
    pub segment: String,
    /// Byte offset in the file where the first damaged byte may lie: everything before it is whole.
    pub offset: u64,
    /// Sequence numbers of the records that are lost, first and last, or their ids if only a checkpoint tells of them; `None` when nothing does.
    pub seqs: Option<(u64, u64)>,
    /// True when a later record proves that these had been made durable: promised bytes were damaged afterwards.
    /// False for a torn tail, which nobody was told about.
    pub promised: bool,
    /// What is wrong there.
    pub what: &'static str,
}

/// A segment file with a whole header.
pub(crate) struct Segment {
    pub name: String,
    pub file: Arc<dyn SegmentFile>,
    pub header: SegmentHeader,
}

/// Sequence numbers skipped at each opening: more than a crash can have torn away, so that none is ever used twice.
pub(crate) const SEQ_GAP: u64 = 1 << 20;
