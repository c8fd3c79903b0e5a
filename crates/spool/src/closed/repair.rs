//! Repairs data that a second copy, or the batches themselves, contain.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::Path;

use posthaste_ring::SegmentReader;
use posthaste_ring::layout::{BLOCK, SegmentHeader};
use rustix::fs::OFlags;

use super::file_spool::{ClosedFileSpool, Spare, copies};
use crate::checkpoint::{CheckpointFiles, Found, PackRow};
use crate::files::OWNER;
use crate::live::lsns_of;
use crate::pack::{self, IndexEntry, IndexWriter, PackError};
use crate::set_aside;
use crate::snapshots::SnapshotName;
use crate::state::State;
use crate::store::RING;

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// Repaired files.
    pub files: Vec<String>,
    /// Files that could not be repaired, each with the reason.
    pub failed: Vec<(String, String)>,
}

impl ClosedFileSpool {
    pub(super) fn rewrite(&self) -> io::Result<Repaired> {
        assert!(self._lock.is_some(), "who only glances repairs nothing");
        let mut repaired = Repaired::default();
        for spare in &self.spare {
            let (name, outcome) = match spare {
                Spare::Checkpoint(damage) => (damage.place.clone(), self.repair_checkpoint()),
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
            repaired.note(format!("{:016x}.index", row.id), self.repair_index(row));
        }
        for name in self.snapshots() {
            if let Err(error) = self.snapshots.verify(&name) {
                let place = name.damage(&error).place;
                repaired.note(format!("{place} {error}: its stream starts without it"), self.leave_out_snapshot(&name));
            }
        }
        Ok(repaired)
    }

    fn repair_checkpoint(&self) -> io::Result<()> {
        let (mut files, ..) = CheckpointFiles::open(&self.dir)?;
        // The valid checkpoint must be on the disk before the other file is written.
        files.make_durable(&self.checkpoint)?;
        files.write(&self.checkpoint)
    }

    fn leave_out_snapshot(&self, name: &SnapshotName) -> io::Result<()> {
        let (mut files, found, _) = CheckpointFiles::open(&self.dir)?;
        // Includes files repaired before.
        let Found::Valid(mut checkpoint) = found else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no checkpoint can be read"));
        };
        let mut state = State::of_rows(&checkpoint);
        state.streams.values_mut().for_each(|stream| stream.leave_out(std::slice::from_ref(name)));
        checkpoint.streams = state.rows().streams;
        files.make_durable(&checkpoint)?;
        files.write(&checkpoint)?;
        let kept = set_aside::kept_dir(&self.dir);
        posthaste_fsops::make_dir(&kept)?;
        self.snapshots.move_to(name, &kept)
    }

    fn repair_header(&self, name: &str) -> io::Result<()> {
        let path = self.dir.join(RING).join(name);
        let whole = copies(&path)?.into_iter().flatten().next();
        let header = whole.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "both copies are damaged"))?;
        write_damaged_copies(&path, &header)
    }

    /// Replaces a damaged index: written under a temporary name first.
    fn repair_index(&self, row: &PackRow) -> io::Result<()> {
        let is_lost = |window: &u64| {
            let lsns = lsns_of(*window);
            *lsns.start() <= row.last && row.first <= *lsns.end()
        };
        if self.lost_windows.iter().any(is_lost) {
            let what = "it is not known which of its batches are needed: start the server once, then repair";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let dir = self.packs.dir();
        let reader = SegmentReader::open(&pack::pack_path(dir, row.id))?;
        let damaged = self.packs.get(row.id).ok();
        let unfinished = dir.join(format!("{:016x}.index.new", row.id));
        let mut index = IndexWriter::create(&unfinished, row.id)?;
        let mut found = BTreeMap::new();
        reader.scan(&mut |located| {
            found.insert(located.header.lsn.get(), (located.offset, located.header));
            ControlFlow::Continue(())
        })?;
        let mut lost = false;
        // An adopted segment also has unneeded records: cancelled batches must not come back.
        for (lsn, _) in self.state.needed(row.first..=row.last) {
            // An intact index block may still list records whose heads the pack has lost.
            let known = damaged.as_ref().and_then(|index| Some((index.entry(lsn)?, index)));
            let known = known.map(|(entry, index)| (entry, index.head(&entry).unwrap_or_default()));
            let record = known.or_else(|| {
                let (offset, header) = found.get(&lsn)?;
                Some((IndexEntry::of((*offset).into(), header), reader.head(*offset, header).unwrap_or_default()))
            });
            lost |= record.is_none();
            if let Some((entry, head)) = record {
                index.push(entry, &head)?;
            }
        }
        index.finish()?;
        posthaste_fsops::rename(&unfinished, pack::index_path(dir, row.id))?;
        crate::files::sync_dir(dir)?;
        if lost {
            Err(io::Error::new(io::ErrorKind::InvalidData, "rewritten, but the pack is damaged, too"))
        } else {
            Ok(())
        }
    }
}

/// Rewrites the damaged copy of the header only.
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
