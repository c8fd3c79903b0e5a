//! A closed spool with one file for each record.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use bytes::Bytes;

use super::ClosedFileSpool;
use crate::Lsn;
use crate::batch::Head;
use crate::lsn_set::LsnSet;
use crate::reading::LOST_FRONT;
use crate::scrub::ScrubReport;
use crate::store::RecordError;
use crate::store::files::record::{self, FILES, RecordFile};

/// The files of records.
pub(super) struct RecordFiles {
    dir: PathBuf,
    held: LsnSet,
}

impl RecordFiles {
    pub fn open(&self, lsn: u64) -> Result<RecordFile, RecordError> {
        RecordFile::open(&self.dir, Lsn::new(lsn))
    }

    /// Bytes of them all.
    pub fn bytes(&self) -> u64 {
        let len = |lsn| std::fs::metadata(record::path_of(&self.dir, lsn)).map_or(0, |file| file.len());
        self.held.iter(0..=u64::MAX).map(len).sum()
    }
}

impl ClosedFileSpool {
    /// Finds the records; returns their heads.
    pub(super) fn read_records(&mut self) -> io::Result<BTreeMap<u64, Head>> {
        let dir = self.dir.join(FILES);
        let (held, _) = record::list(&dir)?;
        let records = RecordFiles { dir, held };
        let mut heads = BTreeMap::new();
        for lsn in records.held.iter(0..=u64::MAX) {
            match records.open(lsn).and_then(|record| record.head()) {
                Ok(head) => match Head::decode(head) {
                    Some(head) => drop(heads.insert(lsn, head)),
                    None => self.note(Some(lsn), FILES, "its head has a format that is not known"),
                },
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                // Forgotten meanwhile, or told as damage if it is needed.
                Err(_) => {}
            }
        }
        self.state.packed_through = 0;
        self.state.published = self.checkpoint.through.max(records.held.last().unwrap_or(0));
        self.records = Some(records);
        Ok(heads)
    }

    /// Notes needed records whose file is gone.
    pub(super) fn note_missing_records(&mut self) {
        let Some(records) = &self.records else { return };
        let missing: Vec<u64> =
            self.state.all_needed().without(&records.held, 0..=u64::MAX).iter(0..=u64::MAX).collect();
        missing.into_iter().for_each(|lsn| self.note(Some(lsn), FILES, "its file is missing"));
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
            let read = records.open(lsn).and_then(|record| Ok((record.head()?, record.body(0..0)?, record)));
            match read {
                Ok((.., record)) => report.count(record.header.file_len()),
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                Err(RecordError::BodyDamaged(_)) if !self.state.is_body_needed(lsn) => {}
                Err(RecordError::BodyDamaged(_)) if self.mended_record(lsn).is_some() => {
                    report.note(Some(lsn), FILES, LOST_FRONT);
                }
                Err(error) if is_needed => report.note(Some(lsn), FILES, error.to_string()),
                Err(_) => {}
            }
            if pace(report).is_break() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The body region of a record, if it is damaged in its front fields alone: something else stands in their place.
    pub(super) fn mended_record(&self, lsn: u64) -> Option<Bytes> {
        let record = self.records.as_ref()?.open(lsn).ok()?;
        let head = Head::decode(record.head().ok()?)?;
        head.front().mended(&record.body_again().ok()?.0, record.header.body_crc)
    }
}
