//! Records and damage found in a segment.

use crate::Lsn;
use crate::pool::Segment;
use crate::scan::Scan;

/// A place in the log where records should be and are not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingDamage {
    /// Name of the segment file; empty if a whole one must be missing.
    pub segment: String,
    /// Byte offset in the file where the first damaged byte may lie: everything before it is whole.
    pub offset: u64,
    /// The records that are lost, first and last; `None` when nothing tells which.
    pub lsns: Option<(Lsn, Lsn)>,
    /// True when a later record proves that these had been made durable: promised bytes were damaged afterwards.
    /// False for a torn tail, which nobody was told about.
    pub promised: bool,
    /// The defect.
    pub what: &'static str,
}

/// A segment in service and what was found in it.
pub(crate) struct Read {
    pub segment: Segment,
    pub scan: Scan,
    /// The file is shorter than it was made.
    pub is_cut: bool,
}
