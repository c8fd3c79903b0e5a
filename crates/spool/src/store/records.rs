//! The interface of a store: durable records.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use posthaste_ring::{Proof, Ring, SegmentInfo};

use super::commit::Commit;
use crate::batch::Head;
use crate::core::{CancelLog, Core};
use crate::events::Damage;
use crate::lsn_set::LsnSet;
use crate::{Lsn, Stats, Ticket};

/// Durable records with a head and a body, under increasing numbers that are never reused.
pub(crate) trait Store: CancelLog {
    /// Name of its directory in the spool.
    fn name(&self) -> &'static str;

    /// Appends a record; does not block. `then` is called on the store's own thread, in LSN order, once the record is
    /// on stable storage. A refusal is reported at once, on the caller's thread. A record cancelled in time drops
    /// `then`.
    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket;

    /// Like [`append`](Self::append), for a record that must be part of the next write, before waiting ones.
    fn append_first(&self, head: Bytes, then: Commit) {
        drop(self.append(head, Vec::new(), then));
    }

    /// Waits until all earlier appends are durable or refused.
    fn flush(&self);

    /// Visits the published records from `from` on, in order, including cancelled ones. Skips records that are
    /// forgotten meanwhile.
    ///
    /// # Errors
    /// See [`VisitError`].
    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> Result<(), VisitError>;

    /// The head of a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError>;

    /// A part of the body of a record; a range beyond its end is cut. The checksum of the whole body is verified first.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError>;

    /// The body read from the disk, bypassing the page cache, and true if it is intact.
    ///
    /// # Errors
    /// See [`RecordError`]; a damaged body is no error.
    fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError>;

    /// The checksum (CRC-32C) with which the body was written.
    ///
    /// # Errors
    /// See [`RecordError`].
    fn body_crc(&self, lsn: Lsn) -> Result<u32, RecordError>;

    /// The store's content when a checkpoint begins.
    fn extent(&self) -> Extent;

    /// Removes records that a durable checkpoint no longer needs.
    fn forget(&self, unneeded: &Unneeded);

    /// Refuses all appends until the store is reopened, because a sync has failed on its device.
    fn poison(&self, why: String);

    /// The reason why the store refuses all appends, or `None`. Takes no lock.
    fn poisoned(&self) -> Option<Arc<str>>;

    /// Counters of commits, and space in use. The other fields are zero.
    fn stats(&self) -> Stats;

    /// The ring, if the store is one: only the ring has segments, which become packs.
    fn ring(&self) -> Option<&Ring> {
        None
    }
}

impl<S: Store> CancelLog for S {
    fn append_cancel(&self, core: &Arc<Core>, cancelled: u64) {
        self.append_first(
            Head::cancelling(cancelled).encode().into(),
            Commit::Cancel { core: core.clone(), cancelled },
        );
    }
}

/// A record during [`Store::visit`].
pub(crate) struct Visited {
    pub lsn: Lsn,
    /// Head with a verified checksum.
    pub head: Bytes,
    /// Length of the body in bytes; it is not read.
    pub body_len: u32,
}

/// Why a visit was incomplete.
#[derive(Debug)]
pub(crate) enum VisitError {
    /// Records are damaged; all others were visited.
    Damaged(Vec<Damage>),
    /// An error of reading.
    Io(io::Error),
}

/// Content of a store at one moment.
#[derive(Default)]
pub(crate) struct Extent {
    /// Durable part of the records, if a checkpoint records it.
    pub proof: Proof,
    /// Segments in service, if whole segments are forgotten.
    pub segments: Vec<SegmentInfo>,
    /// LSNs of the records, if single records are forgotten.
    pub held: Option<LsnSet>,
}

/// Records to forget.
#[derive(Default)]
pub(crate) struct Unneeded {
    /// All records in segments below this number.
    pub segments_below: u64,
    /// Further records, for a store that forgets single ones.
    pub lsns: LsnSet,
}

/// Result of opening a store.
pub(crate) struct Reopened {
    /// Damage to acknowledged records.
    pub damage: Vec<Damage>,
    /// Truncated unfinished writes of the last process.
    pub cut_off: Vec<Damage>,
    /// LSN of the last record.
    pub last: Lsn,
    /// Acknowledged records up to this LSN are lost.
    pub lost_through: Lsn,
    /// Batches up to this LSN can only be in packs. `None` if the store does not record it.
    pub packed_through: Option<u64>,
    /// Bytes of records in use, which determine the pressure on intake. Read without a lock.
    pub bytes_used: Arc<AtomicU64>,
    /// Limit of `bytes_used` for mail; pressure begins at three quarters of it.
    pub usable_bytes: u64,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The record was never published, or was forgotten.
    #[error("record {0} is not in the log")]
    NotFound(Lsn),
    /// The checksum of its header or head is wrong: the batch is lost.
    #[error("record {0} is damaged")]
    HeadDamaged(Lsn),
    /// The head is intact, but the checksum of the body is wrong.
    #[error("the body of record {0} is damaged")]
    BodyDamaged(Lsn),
    /// The disk failed.
    #[error("cannot read record {0}: {1}")]
    Io(Lsn, io::Error),
}
