//! Cancelling a batch in flight.

use std::fmt;
use std::sync::Arc;

use crate::Lsn;

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// In time: the batch is not written, and `then` is not called.
    NotWritten,
    /// The batch is being written, or was just written, under this LSN. `then` is not called, and no consumer sees the
    /// batch.
    Written(Lsn),
    /// Too late: `then` was called, or is being called.
    TooLate,
}

/// A batch that a store is writing.
pub trait Cancel: Send + Sync {
    /// See [`Ticket::cancel`].
    fn cancel(&self) -> Cancelled;
}

/// A batch in flight, which may be cancelled.
#[derive(Clone)]
pub struct Ticket(Fate);

/// A variant for each source, so that an append to the ring needs no allocation.
#[derive(Clone)]
enum Fate {
    Decided,
    OfRing(posthaste_ring::RingTicket),
    Other(Arc<dyn Cancel>),
}

impl Ticket {
    /// A ticket for a batch that `batch` can cancel.
    pub fn new(batch: Arc<dyn Cancel>) -> Self {
        Ticket(Fate::Other(batch))
    }

    /// A ticket for a batch that was refused at once.
    pub fn refused() -> Self {
        Ticket(Fate::Decided)
    }

    pub(crate) fn of_ring(ticket: posthaste_ring::RingTicket) -> Self {
        Ticket(Fate::OfRing(ticket))
    }

    /// Cancels the batch unless it was published. This is one atomic decision: either `then` is called or this
    /// succeeds, never both. Streams never see a cancelled batch, with one exception: it was written, and the power
    /// fails before its cancel entry is durable.
    pub fn cancel(&self) -> Cancelled {
        match &self.0 {
            Fate::Decided => Cancelled::TooLate,
            Fate::OfRing(ticket) => match ticket.cancel() {
                posthaste_ring::RingCancelled::NotWritten => Cancelled::NotWritten,
                posthaste_ring::RingCancelled::Written(lsn) => Cancelled::Written(lsn.into()),
                posthaste_ring::RingCancelled::TooLate => Cancelled::TooLate,
            },
            Fate::Other(batch) => batch.cancel(),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Written;

    impl Cancel for Written {
        fn cancel(&self) -> Cancelled {
            Cancelled::Written(Lsn::new(7))
        }
    }

    #[test]
    fn any_kind_of_spool_makes_a_ticket() {
        assert_eq!(Ticket::new(Arc::new(Written)).cancel(), Cancelled::Written(Lsn::new(7)));
        assert_eq!(Ticket::refused().cancel(), Cancelled::TooLate);
    }
}
