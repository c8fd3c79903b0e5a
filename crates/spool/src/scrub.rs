//! Reads everything that is stored and needed, and compares the checksums.

use std::io;
use std::ops::ControlFlow;

use posthaste_ring::{Lsn, ReadError};

use crate::FileSpool;
use crate::bodies::BodyError;
use crate::checkpoint::PackRow;
use crate::events::Damage;
use crate::pack::{PackError, PackReader, pack_path};
use crate::spool::Shared;

/// What a scrub has read.
#[derive(Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Batches and large bodies.
    pub read: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are not what was written, if any stream needs them.
    pub damage: Vec<Damage>,
    /// Whether it was ended early.
    pub is_partial: bool,
}

impl ScrubReport {
    pub(crate) fn note(&mut self, lsn: Option<u64>, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() });
    }

    pub(crate) fn count(&mut self, bytes: u64) {
        self.read += 1;
        self.bytes += bytes;
    }
}

impl FileSpool {
    /// Reads packs, ring and large bodies, while everything goes on. Calls `pause` after each batch: whoever reads in the background sleeps there, or ends it.
    ///
    /// # Errors
    /// Those of reading, but for what is damaged.
    pub fn scrub(&self, pause: &mut dyn FnMut() -> ControlFlow<()>) -> io::Result<ScrubReport> {
        let mut report = ScrubReport::default();
        let shared = &self.shared;
        let packs: Vec<PackRow> = shared.core.state().packs.clone();
        let flow = shared.scrub_packs(&packs, &mut report, pause)?;
        let flow = if flow.is_continue() { shared.scrub_ring(&mut report, pause)? } else { flow };
        let flow = if flow.is_continue() { shared.scrub_large(&mut report, pause)? } else { flow };
        report.is_partial = flow.is_break();
        Ok(report)
    }
}

impl Shared {
    fn is_needed(&self, lsn: u64) -> bool {
        self.core.state().is_any_needed(lsn..=lsn)
    }

    fn scrub_packs(
        &self,
        packs: &[PackRow],
        report: &mut ScrubReport,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        for row in packs {
            let place = pack_path(self.packs.dir(), row.id).display().to_string();
            let is_there = || self.core.state().packs.iter().any(|other| other.id == row.id);
            let mut flow = ControlFlow::Continue(());
            let outcome = self.packs.get(row.id).and_then(|reader| {
                scrub_pack(&reader, &mut |lsn, read| {
                    match read {
                        Ok(bytes) => report.count(bytes),
                        Err(what) if self.is_needed(lsn) => report.note(Some(lsn), &place, what),
                        Err(_) => {}
                    }
                    flow = pause();
                    flow
                })
            });
            match outcome {
                // Cleaned away meanwhile.
                Err(_) if !is_there() => {}
                Err(PackError::Damaged(what)) => report.note(None, &place, what),
                outcome => outcome?,
            }
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn scrub_ring(
        &self,
        report: &mut ScrubReport,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let from = self.core.state().packed_through + 1;
        let mut outcome = Ok(ControlFlow::Continue(()));
        let visited = self.ring.visit(Lsn::new(from), &mut |record| {
            let lsn = record.lsn.get();
            match self.ring.read_body(record.lsn, 0..0) {
                Ok(_) => report.count(record.head.len() as u64 + u64::from(record.body_len)),
                Err(ReadError::Io(_, error)) => {
                    outcome = Err(error);
                    return ControlFlow::Break(());
                }
                // Freed meanwhile, or of no use to anybody.
                Err(ReadError::NotFound(_)) => {}
                Err(error) if self.is_needed(lsn) => report.note(Some(lsn), "ring", error.to_string()),
                Err(_) => {}
            }
            let flow = pause();
            if flow.is_break() {
                outcome = Ok(flow);
            }
            flow
        });
        match visited {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => report.note(None, "ring", error.to_string()),
            visited => visited?,
        }
        outcome
    }

    fn scrub_large(
        &self,
        report: &mut ScrubReport,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let all: Vec<_> = self.core.state().large.iter().map(|(lsn, body)| (*lsn, *body)).collect();
        for (lsn, body) in all {
            match self.bodies.verify(body) {
                Ok(()) => report.count(body.len),
                Err(BodyError::Damaged(what)) if self.is_needed(lsn) => {
                    report.note(Some(lsn), self.bodies.name(body.upload), what);
                }
                Err(BodyError::Io(error)) => return Err(error),
                Err(_) => {}
            }
            if pause().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Reads every record of a pack; tells how many bytes it has, or what is wrong.
pub(crate) fn scrub_pack(
    reader: &PackReader,
    each: &mut dyn FnMut(u64, Result<u64, &'static str>) -> ControlFlow<()>,
) -> Result<(), PackError> {
    let mut flow = ControlFlow::Continue(());
    reader.each(|entry| {
        if flow.is_break() {
            return Ok(());
        }
        let read = match reader.head(&entry).and_then(|_| reader.body(&entry)) {
            Ok(_) => Ok(u64::from(entry.head_len) + u64::from(entry.body_len)),
            Err(PackError::Damaged(what)) => Err(what),
            Err(error) => return Err(error),
        };
        flow = each(entry.lsn, read);
        Ok(())
    })
}
