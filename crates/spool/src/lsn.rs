//! The numbers of batches.

use std::fmt;

/// Log sequence number: the permanent name of a batch. Grows from batch to batch of a spool, with gaps, and is never reused.
///
/// In JSON it is a string: it may be larger than the integers that JavaScript and others tell apart (2^53).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// Below every batch.
    pub const ZERO: Lsn = Lsn(0);

    /// The sequence number `number`.
    pub const fn new(number: u64) -> Self {
        Lsn(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A batch is one record of the ring.
impl From<posthaste_ring::Lsn> for Lsn {
    fn from(lsn: posthaste_ring::Lsn) -> Self {
        Lsn(lsn.get())
    }
}

impl From<Lsn> for posthaste_ring::Lsn {
    fn from(lsn: Lsn) -> Self {
        posthaste_ring::Lsn::new(lsn.get())
    }
}
