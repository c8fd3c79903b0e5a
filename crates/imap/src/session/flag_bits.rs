//! Bits of the system flags in a row.

pub(crate) const SEEN: u64 = 1;
pub(crate) const ANSWERED: u64 = 1 << 1;
pub(crate) const FLAGGED: u64 = 1 << 2;
pub(crate) const DELETED: u64 = 1 << 3;
pub(crate) const DRAFT: u64 = 1 << 4;
/// In the order in which they are told.
pub(crate) const SYSTEM_FLAGS: [(u64, &str); 5] =
    [(ANSWERED, "\\Answered"), (FLAGGED, "\\Flagged"), (DELETED, "\\Deleted"), (SEEN, "\\Seen"), (DRAFT, "\\Draft")];
