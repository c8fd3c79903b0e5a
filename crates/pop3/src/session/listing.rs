//! A list or a message on its way to the client.

use crate::stuffing::Stuffer;

/// A list in progress.
#[derive(Debug)]
pub(super) struct Listing {
    pub wanted: RowsFor,
    /// The first line was sent: from then on no error can be reported.
    pub has_begun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowsFor {
    List,
    Uidl,
    /// One line.
    ListOne,
    /// One line.
    UidlOne,
    /// STAT: sum of the octets so far.
    Stat(u64),
}

/// A message being sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub message: u32,
    pub from: u64,
    pub len: u64,
    pub stuffer: Stuffer,
    /// RETR, not TOP.
    pub is_whole: bool,
}
