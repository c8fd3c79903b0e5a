//! Records on their way into the ring, and the decision between publication and cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::layout::record_span;
use crate::{Lsn, RingAppendError};

/// Callback, on the writer's thread, once a record is durable or refused.
pub(crate) type Then = Box<dyn FnOnce(Result<Lsn, RingAppendError>) + Send>;

/// A record to write.
pub(crate) struct Pending {
    pub head: Vec<Bytes>,
    pub body: Vec<Bytes>,
    pub head_len: u32,
    pub body_len: u32,
    pub head_crc: u32,
    pub body_crc: u32,
    pub fate: RecordFate,
    then: Then,
}

/// An item for the writer.
pub(crate) enum Item {
    Record(Pending),
    /// Answered once all earlier items were.
    Flush(Box<dyn FnOnce(Result<(), RingAppendError>) + Send>),
}

impl Pending {
    /// A record whose head and body together fit into a `u32` length.
    pub fn new(head: Vec<Bytes>, body: Vec<Bytes>, then: Then) -> Self {
        let of = |parts: &[Bytes]| {
            let len: usize = parts.iter().map(Bytes::len).sum();
            let crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
            (u32::try_from(len).expect("checked against the segment's size"), crc)
        };
        let ((head_len, head_crc), (body_len, body_crc)) = (of(&head), of(&body));
        Pending { head, body, head_len, body_len, head_crc, body_crc, fate: RecordFate::default(), then }
    }

    pub fn bytes(&self) -> usize {
        self.head_len as usize + self.body_len as usize
    }

    pub fn span(&self) -> usize {
        record_span(self.head_len as usize, self.body_len as usize)
    }

    pub fn has_body(&self) -> bool {
        self.body_len > 0
    }

    /// Calls back with the outcome, unless the record was cancelled. True if it called.
    pub fn tell(self, outcome: Result<Lsn, RingAppendError>) -> bool {
        let decided = self.fate.decide();
        if decided {
            (self.then)(outcome);
        }
        decided
    }
}

impl Item {
    pub fn bytes(&self) -> usize {
        match self {
            Item::Record(pending) => pending.bytes(),
            Item::Flush(_) => 0,
        }
    }

    pub fn fail(self, error: &RingAppendError) {
        match self {
            Item::Record(pending) => drop(pending.tell(Err(error.clone()))),
            Item::Flush(then) => then(Err(error.clone())),
        }
    }
}

/// A handle to cancel or forget a pending append: the other side of a [`RecordFate`].
#[derive(Debug, Clone)]
pub struct RingTicket(RecordFate);

/// Result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingCancelled {
    /// The record is not and will not be written, and `then` is not called.
    NotWritten,
    /// It is being or was just written under this LSN. `then` is not called; after a successful write
    /// [`RingEvent::Cancelled`](crate::RingEvent::Cancelled) follows instead. After a crash the record may be found,
    /// until the ring's user has recorded its cancellation durably.
    Written(Lsn),
    /// `then` was called or is being called.
    TooLate,
}

impl RingTicket {
    /// Cancels the record unless it was published: one atomic decision, so that either `then` is called or this succeeds, never both.
    pub fn cancel(&self) -> RingCancelled {
        self.0.cancel()
    }
}

/// State of a record in one word: waiting, taken with an LSN, cancelled (with its LSN if any), or decided. For every
/// log with cancellable appends.
#[derive(Debug, Clone, Default)]
pub struct RecordFate(Arc<AtomicU64>);

const WAITING: u64 = 0;
const DECIDED: u64 = 3;
/// In the lowest two bits, with the LSN above them.
const TAKEN: u64 = 1;
const CANCELLED: u64 = 2;

impl RecordFate {
    /// The ticket for the caller that appends it.
    pub fn ticket(&self) -> RingTicket {
        RingTicket(self.clone())
    }

    /// Assigns the LSN under which the record is written now. False if it was cancelled.
    pub fn take(&self, lsn: Lsn) -> bool {
        self.swap(WAITING, lsn.get() << 2 | TAKEN)
    }

    /// Decides for publication: from here on it cannot be cancelled. False if it was cancelled before.
    pub fn decide(&self) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now & 3 != CANCELLED && self.swap(now, DECIDED)
    }

    fn cancel(&self) -> RingCancelled {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let outcome = match (now & 3, now >> 2) {
                (WAITING, _) | (CANCELLED, 0) => RingCancelled::NotWritten,
                (TAKEN | CANCELLED, lsn) => RingCancelled::Written(Lsn::new(lsn)),
                _ => return RingCancelled::TooLate,
            };
            if now & 3 == CANCELLED || self.swap(now, now & !3 | CANCELLED) {
                return outcome;
            }
            now = self.0.load(Ordering::Acquire);
        }
    }

    /// Only the writer goes from waiting to taken and on to decided, so a failure means a cancellation.
    fn swap(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_cancelled_or_published_and_never_both() {
        let lsn = Lsn::new(77);
        for before in [WAITING, TAKEN] {
            for _ in 0..2000 {
                let fate = RecordFate::default();
                assert!(before == WAITING || fate.take(lsn));
                let ticket = fate.ticket();
                let (published, cancelled) = std::thread::scope(|scope| {
                    let cancels = scope.spawn(|| ticket.cancel());
                    let published = (before == TAKEN || fate.take(lsn)) && fate.decide();
                    (published, cancels.join().unwrap())
                });
                match cancelled {
                    RingCancelled::TooLate => assert!(published),
                    RingCancelled::NotWritten => assert!(!published && before == WAITING),
                    RingCancelled::Written(written) => assert!(!published && written == lsn),
                }
                assert_eq!(ticket.cancel(), cancelled, "it stays as it was told");
            }
        }
    }
}
