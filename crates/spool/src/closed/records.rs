//! A closed spool of a kind that writes its records in groups.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::ClosedFileSpool;
use crate::batch::Head;
use crate::events::Damage;
use crate::lsn_set::LsnSet;
use crate::reading::LOST_FRONT;
use crate::scrub::ScrubReport;
use crate::store::RecordError;
use crate::store::groups::Medium;
use crate::{Lsn, StoreKind};

/// The records.
#[derive(Clone)]
pub(super) struct ClosedRecords {
    pub kind: StoreKind,
    pub medium: Arc<dyn Medium>,
    pub held: LsnSet,
}

impl ClosedRecords {
    /// The directory in the spool.
    pub fn place(&self) -> &'static str {
        self.kind.dir()
    }

    fn damage(&self, lsn: u64, what: &str) -> Damage {
        Damage { lsn: Some(Lsn::new(lsn)), place: self.place().to_owned(), what: what.to_owned() }
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        self.medium.bytes(&self.held)
    }

    /// The body region of a record with damage in its front fields only: placeholders replace them.
    pub fn mended(&self, lsn: u64, head: &Head) -> Option<Bytes> {
        let crc = self.medium.header(Lsn::new(lsn)).ok()?.body_crc;
        head.front().mended(&self.medium.body_again(Lsn::new(lsn)).ok()?.0, crc)
    }
}

impl ClosedFileSpool {
    /// Takes the records in; returns the heads that can be read, and of the others why not.
    pub(super) fn read_records(&mut self, records: ClosedRecords) -> io::Result<(BTreeMap<u64, Head>, Vec<Damage>)> {
        let mut heads = BTreeMap::new();
        let mut damaged = Vec::new();
        for lsn in records.held.iter(0..=u64::MAX) {
            match records.medium.head(Lsn::new(lsn)) {
                Ok((_, head)) => match Head::decode(head) {
                    Some(head) => drop(heads.insert(lsn, head)),
                    None => damaged.push(records.damage(lsn, "its head has a format that is not known")),
                },
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                // Forgotten meanwhile.
                Err(RecordError::NotFound(_)) => {}
                Err(error) => damaged.push(records.damage(lsn, &error.to_string())),
            }
        }
        self.state.packed_through = 0;
        self.state.published = self.checkpoint.through.max(records.held.last().unwrap_or(0));
        self.records = Some(records);
        Ok((heads, damaged))
    }

    /// Notes damaged records that are needed, and all after the last checkpoint: records are published whole, so these
    /// were acknowledged.
    pub(super) fn note_damaged_records(&mut self, damaged: Vec<Damage>, heads: &BTreeMap<u64, Head>) {
        let through = self.checkpoint.through;
        let cancelled = self.cancelled(heads);
        let counts =
            |lsn: u64| if lsn > through { !cancelled.contains(&lsn) } else { self.state.is_any_needed(lsn..=lsn) };
        let noted: Vec<_> = damaged.into_iter().filter(|it| it.lsn.is_some_and(|lsn| counts(lsn.get()))).collect();
        self.damage.extend(noted);
    }

    /// Notes missing records that are needed.
    pub(super) fn note_missing_records(&mut self) {
        let Some(records) = self.records.clone() else { return };
        let missing = self.state.all_needed().without(&records.held, 0..=u64::MAX);
        missing.iter(0..=u64::MAX).for_each(|lsn| self.note(Some(lsn), records.place(), RECORD_MISSING));
    }

    /// Reads the records. True if `pace` has ended it.
    pub(super) fn verify_records(
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
                // Noted when the heads were read.
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

    /// See [`ClosedRecords::mended`].
    pub(super) fn mended_record(&self, lsn: u64) -> Option<Bytes> {
        let records = self.records.as_ref()?;
        let (_, head) = records.medium.head(Lsn::new(lsn)).ok()?;
        records.mended(lsn, &Head::decode(head)?)
    }
}

/// Damage.
pub(crate) const RECORD_MISSING: &str = "its record is missing";
