//! Records and damage found in a segment.

use crate::Lsn;
use crate::pool::Segment;
use crate::scan::Scan;

/// A place in the log where records are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingDamage {
    /// Name of the segment file; empty if a whole one must be missing.
    pub segment: String,
    /// Byte offset in the file where the first damaged byte may be: everything before it is intact.
    pub offset: u64,
    /// The lost records, first and last; `None` if unknown.
    pub lsns: Option<(Lsn, Lsn)>,
    /// True if a later record proves that these had been durable: acknowledged bytes were damaged afterwards. False for
    /// a torn tail, which was never acknowledged.
    pub promised: bool,
    /// Description of the defect.
    pub what: &'static str,
}

/// A segment in service, with its scanned records.
pub(crate) struct Read {
    pub segment: Segment,
    pub scan: Scan,
    /// The file is shorter than when it was made.
    pub is_cut: bool,
}
