//! Cancelling a batch in flight.

use std::fmt;
use std::sync::Arc;

use crate::Lsn;

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The batch is not and will not be written, and `then` is not called.
    NotWritten,
    /// It is being or was just written under this LSN. `then` is not called, and no consumer sees the batch.
    Written(Lsn),
    /// `then` was called or is being called.
    TooLate,
}

/// A batch that some kind of spool writes.
pub trait Cancel: Send + Sync {
    /// See [`Ticket::cancel`].
    fn cancel(&self) -> Cancelled;
}

/// A batch in flight, which may be cancelled.
#[derive(Clone)]
pub struct Ticket(Fate);

/// One for each append, so that the ring's needs no allocation.
#[derive(Clone)]
enum Fate {
    Decided,
    OfRing(posthaste_ring::RingTicket),
    Other(Arc<dyn Cancel>),
}

impl Ticket {
    /// For a batch whose cancellation is decided by `batch`.
    pub fn new(batch: Arc<dyn Cancel>) -> Self {
        Ticket(Fate::Other(batch))
    }

    /// For a batch that was refused at once.
    pub fn refused() -> Self {
        Ticket(Fate::Decided)
    }

    pub(crate) fn of_ring(ticket: posthaste_ring::RingTicket) -> Self {
        Ticket(Fate::OfRing(ticket))
    }

    /// Cancels the batch unless it was published: one atomic decision, so that either `then` is called or this succeeds, never both. Streams never see a
    /// cancelled batch, with one exception: it was written, and the power fails before its cancel entry is durable.
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
