//! A closed spool: inspection, verification and export. Changes nothing except in [`repair`](ClosedFileSpool::repair).

mod export;
mod file_spool;
mod import;
mod inspection;
mod rebuild;
mod records;
mod repair;
mod verify;

use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;

pub use export::{ExportedBatch, ExportedBody, ExportedEntry, ExportedSnapshot, ExportedStream, ExportedStreams};
pub use file_spool::ClosedFileSpool;
pub use import::{ImportedBatch, SpoolImport};
pub use inspection::{Inspection, PlaceReport};
pub use rebuild::Rebuilt;
pub(crate) use records::RECORD_MISSING;
pub use repair::Repaired;

use crate::state::Stream;
use crate::{Lsn, ScrubReport};

/// Mail of a closed spool, or of one moment of an open one, for verification, repair and export. One interface for all
/// kinds of spool.
pub trait ClosedSpool {
    /// Visits every needed entry, in order, with the stream's name, the batch, the payload, and the length of the
    /// batch's body, which is not read.
    ///
    /// # Errors
    /// An error of reading. Skips entries of batches with a lost head.
    fn entries(&self, each: &mut dyn FnMut(&str, Lsn, &Bytes, u64)) -> io::Result<()>;

    /// The body of a batch, or the error of reading it; `None` if there is none, or its batch is lost.
    ///
    /// # Errors
    /// An error of reading.
    fn body(&self, lsn: Lsn) -> io::Result<Option<Result<ExportedBody, String>>>;

    /// Visits every needed batch, in order, with the needed parts, until `each` returns false. Returns the needed
    /// batches that it skipped because their heads are unreadable.
    ///
    /// # Errors
    /// An error of reading; other damage is reported in the batch.
    fn export(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<Vec<Lsn>>;

    /// Needed but unreadable bodies, in order, each with the reason.
    ///
    /// # Errors
    /// An error of reading, except for unreadable sectors.
    fn unreadable_bodies(&self) -> io::Result<Vec<(Lsn, String)>>;

    /// Batches with unreadable heads of which only entries are needed, in order: these entries are lost.
    ///
    /// # Errors
    /// An error of reading, except for unreadable sectors.
    fn lost_entries(&self) -> io::Result<Vec<Lsn>>;

    /// The streams that need any part of a batch.
    fn needed_by(&self, lsn: Lsn) -> Vec<&str>;

    /// Approximate number of bytes that [`verify`](Self::verify) reads.
    fn bytes(&self) -> u64;

    /// Reads all needed data and verifies the checksums. Calls `pace` after each batch with the progress so far. Sleep
    /// there to leave the disk to others, or break to end it.
    ///
    /// # Errors
    /// An error of reading, except for damage.
    fn verify_with(&self, pace: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport>;

    /// [`verify_with`](Self::verify_with) without pauses.
    ///
    /// # Errors
    /// Like [`verify_with`](Self::verify_with).
    fn verify(&self) -> io::Result<ScrubReport> {
        self.verify_with(&mut |_| ControlFlow::Continue(()))
    }

    /// Rewrites data that a second copy or the batches contain: one of the two checkpoint files, a copy of a segment's
    /// header, the index of a pack. Moves an unreadable snapshot to `kept/`: its stream starts from the previous one,
    /// or from the batches. Changes nothing else. A lost live file needs no repair: the next opening reconstructs it;
    /// until then no index is written for its batches. Batches and bodies have no second copy, so their lost bytes stay
    /// lost. A damaged copy of a head is harmless and stays.
    ///
    /// # Errors
    /// An error of reading. The result lists files that could not be written.
    fn repair(&self) -> io::Result<Repaired>;
}

impl ClosedSpool for ClosedFileSpool {
    fn entries(&self, each: &mut dyn FnMut(&str, Lsn, &Bytes, u64)) -> io::Result<()> {
        self.each_entry(each)
    }

    fn body(&self, lsn: Lsn) -> io::Result<Option<Result<ExportedBody, String>>> {
        self.body_at(lsn)
    }

    fn export(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<Vec<Lsn>> {
        self.each_batch(each)
    }

    fn unreadable_bodies(&self) -> io::Result<Vec<(Lsn, String)>> {
        self.lost_bodies()
    }

    fn lost_entries(&self) -> io::Result<Vec<Lsn>> {
        self.lost_heads()
    }

    fn needed_by(&self, lsn: Lsn) -> Vec<&str> {
        let needs = |stream: &&Stream| stream.entries.contains(lsn.get()) || stream.bodies.contains(lsn.get());
        self.state.streams.values().filter(needs).map(|stream| &*stream.name).collect()
    }

    fn bytes(&self) -> u64 {
        self.needed_bytes()
    }

    fn verify_with(&self, pace: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport> {
        self.read_all(pace)
    }

    fn repair(&self) -> io::Result<Repaired> {
        self.rewrite()
    }
}
