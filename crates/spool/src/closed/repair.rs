//! Puts right what a second copy, or the batches themselves, tell.

use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::Path;

use posthaste_ring::SegmentReader;
use posthaste_ring::layout::{BLOCK, SegmentHeader};
use rustix::fs::OFlags;

use super::{Spare, copies};
use crate::ClosedSpool;
use crate::checkpoint::CheckpointFiles;
use crate::files::OWNER;
use crate::open::RING;
use crate::pack::{self, IndexEntry, PackError};

/// What a repair has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Files that are whole again.
    pub files: Vec<String>,
    /// Files that stay as they are, and why. All else was repaired.
    pub failed: Vec<(String, String)>,
}

impl ClosedSpool {
    /// Rewrites what a second copy or the batches themselves tell: one of the two checkpoint files, a copy of a segment's header, the index of a pack. Nothing
    /// else is changed. A lost live file needs no repair: the next opening finds again what it said. Bytes of a batch or of a body are not written
    /// twice; what is lost of them stays lost.
    ///
    /// # Errors
    /// Those of reading; what could not be written is told in what is returned.
    pub fn repair(&self) -> io::Result<Repaired> {
        assert!(self._lock.is_some(), "who only glances repairs nothing");
        let mut repaired = Repaired::default();
        for spare in &self.spare {
            let (name, outcome) = match spare {
                Spare::Checkpoint => ("checkpoint".to_owned(), self.repair_checkpoint()),
                Spare::Header(name) => (name.clone(), self.repair_header(name)),
            };
            repaired.note(name, outcome);
        }
        for row in &self.state.packs {
            let is_whole = self.packs.get(row.id).and_then(|reader| reader.each(|_| Ok::<_, PackError>(())));
            match is_whole {
                Ok(()) => continue,
                Err(PackError::Io(error)) => return Err(error),
                Err(PackError::Damaged(_)) => {}
            }
            repaired.note(format!("{:016x}.index", row.id), self.repair_index(row.id));
        }
        Ok(repaired)
    }

    fn repair_checkpoint(&self) -> io::Result<()> {
        let (mut files, ..) = CheckpointFiles::open(&self.dir)?;
        // The one that counts must be on the disk before the other is written.
        files.make_durable(&self.checkpoint)?;
        files.write(&self.checkpoint)
    }

    fn repair_header(&self, name: &str) -> io::Result<()> {
        let path = self.dir.join(RING).join(name);
        let whole = copies(&path)?.into_iter().flatten().next();
        let header = whole.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "both copies are damaged"))?;
        write_damaged_copies(&path, &header)
    }

    fn repair_index(&self, id: u64) -> io::Result<()> {
        let path = pack::pack_path(self.packs.dir(), id);
        let mut entries = Vec::new();
        let gaps = SegmentReader::open(&path)?.scan(&mut |located| {
            let header = located.header;
            // A segment that was adopted has others, too: cancelled ones must not come back.
            if self.state.is_any_needed(header.lsn.get()..=header.lsn.get()) {
                entries.push(IndexEntry::of(located.offset, &header));
            }
            ControlFlow::Continue(())
        })?;
        pack::replace_index(self.packs.dir(), id, &entries)?;
        match gaps.is_empty() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "written anew, but the pack is damaged, too")),
        }
    }
}

/// The other copy is not touched.
fn write_damaged_copies(path: &Path, header: &SegmentHeader) -> io::Result<()> {
    let blocks = header.encode_blocks();
    let file = posthaste_fsops::open(path, OFlags::WRONLY | OFlags::CLOEXEC, OWNER)?;
    for (nth, _) in copies(path)?.iter().enumerate().filter(|(_, copy)| copy.is_none()) {
        let block = nth * BLOCK..(nth + 1) * BLOCK;
        let at = block.start as u64;
        posthaste_fsops::write_all_parts(&file, &mut [IoSlice::new(&blocks[block])], Some(at))?;
    }
    Ok(posthaste_fsops::fsync(&file)?)
}

impl Repaired {
    fn note(&mut self, name: String, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.files.push(name),
            Err(error) => self.failed.push((name, error.to_string())),
        }
    }
}
