//! Reads and verifies all needed data.

use std::io;
use std::ops::ControlFlow;

use posthaste_ring::layout::RecordHeader;

use super::export::mended;
use super::file_spool::ClosedFileSpool;
use super::records::ClosedRecords;
use crate::batch::Head;
use crate::pack::{self, PackError};
use crate::reading::LOST_FRONT;
use crate::scrub::{Broken, scrub_pack};
use crate::snapshots::SnapshotName;
use crate::state::Stream;
use crate::store::RecordError;
use crate::{Lsn, ScrubReport};

impl ClosedFileSpool {
    pub(super) fn read_all(&self, pace: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport> {
        let mut report = ScrubReport { damage: self.damage.clone(), ..ScrubReport::default() };
        let is_needed = |lsn: u64| self.state.is_any_needed(lsn..=lsn);
        let is_body_needed = |lsn: u64| self.state.is_body_needed(lsn);
        for row in &self.state.packs {
            let place = pack::pack_path(self.packs.dir(), row.id).display().to_string();
            let needed = self.state.needed(row.first..=row.last);
            let outcome = self.packs.get(row.id).and_then(|reader| {
                scrub_pack(&reader, &needed, &mut |lsn, read| {
                    match read {
                        Ok(bytes) => report.count(bytes),
                        Err(Broken::Head(what)) if is_needed(lsn) => report.note(Some(lsn), &place, what),
                        Err(Broken::Body(what)) if is_body_needed(lsn) => report.note(Some(lsn), &place, what),
                        Err(_) => {}
                    }
                    report.is_partial = pace(&report).is_break();
                    if report.is_partial { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
            });
            match outcome {
                Err(PackError::Damaged(what)) => report.note(None, &place, what),
                outcome => outcome?,
            }
            if report.is_partial {
                return Ok(report);
            }
        }
        for (lsn, (at, offset, header)) in &self.places {
            let segment = &self.ring[*at];
            match segment.reader.body(*offset, header, 0..0) {
                Ok(_) => report.count(u64::from(header.head_len) + u64::from(header.body_len)),
                Err(posthaste_ring::RingReadError::Io(_, error)) => return Err(error),
                Err(posthaste_ring::RingReadError::BodyDamaged(_)) if !is_body_needed(*lsn) => {}
                Err(posthaste_ring::RingReadError::BodyDamaged(_)) if self.has_lost_front(*at, *offset, header) => {
                    report.note(Some(*lsn), &segment.name, LOST_FRONT);
                }
                Err(error) if is_needed(*lsn) => report.note(Some(*lsn), &segment.name, error.to_string()),
                Err(_) => {}
            }
            if pace(&report).is_break() {
                report.is_partial = true;
                return Ok(report);
            }
        }
        if self.verify_records(&mut report, pace)? {
            report.is_partial = true;
            return Ok(report);
        }
        for (lsn, body) in &self.state.large {
            match self.bodies.verify(*body) {
                Ok(()) => report.count(body.len),
                Err(error) => report.note(Some(*lsn), self.bodies.name(body.upload), error.what()?),
            }
            if pace(&report).is_break() {
                report.is_partial = true;
                return Ok(report);
            }
        }
        for name in self.snapshots() {
            match self.snapshots.verify(&name) {
                Ok(bytes) => report.count(bytes),
                Err(error) => report.damage.push(name.damage(&error)),
            }
            if pace(&report).is_break() {
                report.is_partial = true;
                return Ok(report);
            }
        }
        Ok(report)
    }

    /// True if a record in the ring has damage in its front fields only.
    fn has_lost_front(&self, at: usize, offset: u32, header: &RecordHeader) -> bool {
        let reader = &self.ring[at].reader;
        let head = reader.head(offset, header).ok().and_then(Head::decode);
        head.is_some_and(|head| mended(reader, offset, header, &head).is_some())
    }

    /// The last and the previous snapshot of each stream.
    pub(super) fn snapshots(&self) -> Vec<SnapshotName> {
        let rows = self.state.streams.values().flat_map(Stream::snapshots);
        rows.map(|row| row.name).filter(SnapshotName::is_file).collect()
    }

    pub(super) fn needed_bytes(&self) -> u64 {
        let packs: u64 = self.state.packs.iter().map(|row| row.bytes).sum();
        let ring = self.places.values().map(|(_, _, header)| u64::from(header.head_len) + u64::from(header.body_len));
        let large: u64 = self.state.large.values().map(|body| body.len).sum();
        let records = self.records.as_ref().map_or(0, ClosedRecords::bytes);
        packs + ring.sum::<u64>() + records + large
    }

    /// Verifies the records. True if `pace` ended it early.
    fn verify_records(
        &self,
        report: &mut ScrubReport,
        pace: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        let Some(records) = &self.records else { return Ok(false) };
        for lsn in records.held.iter(0..=u64::MAX) {
            let is_needed = self.state.is_any_needed(lsn..=lsn);
            let header = match records.medium.head(Lsn::new(lsn)) {
                Ok((header, _)) => header,
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                // Reported when the heads were read.
                Err(_) => continue,
            };
            match records.medium.body(Lsn::new(lsn), 0..0) {
                Ok(_) => report.count(header.record_len()),
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                Err(RecordError::BodyDamaged(_)) if !self.state.is_body_needed(lsn) => {}
                Err(RecordError::BodyDamaged(_)) if self.mended_record(lsn).is_some() => {
                    report.note(Some(lsn), records.place(), LOST_FRONT);
                }
                Err(error) if is_needed => report.note(Some(lsn), records.place(), error.to_string()),
                Err(_) => {}
            }
            if pace(report).is_break() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
