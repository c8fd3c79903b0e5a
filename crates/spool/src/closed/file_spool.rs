//! The files of a closed spool, and the place of each batch in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use posthaste_fsops::FileLock;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::{FIRST_RECORD, RecordHeader, SegmentHeader};

use super::records::{ClosedRecords, RECORD_MISSING};
use crate::batch::{BodyPlace, Head};
use crate::bodies::{self, Bodies};
use crate::checkpoint::{Checkpoint, CheckpointFiles, Found};
use crate::events::Damage;
use crate::live::{LiveFiles, lsns_of};
use crate::pack::{self, PackCache};
use crate::place::{LOCK, ROSTER, has_been_imported};
use crate::snapshots::Snapshots;
use crate::state::State;
use crate::store::groups::records_lost;
use crate::store::{self, RING, RecordError, damage_of};
use crate::{Lsn, OpenError, StoreKind, files};

/// A spool in a directory, not opened for writing.
pub struct ClosedFileSpool {
    pub(super) dir: PathBuf,
    pub(super) checkpoint: Checkpoint,
    pub(super) state: State,
    pub(super) ring: Vec<Segment>,
    /// Place of each batch in the ring: index in `ring`, offset, header.
    pub(super) places: BTreeMap<u64, (usize, u32, RecordHeader)>,
    /// The records, if the spool's kind writes in groups.
    pub(super) records: Option<ClosedRecords>,
    pub(super) packs: PackCache,
    pub(super) bodies: Bodies,
    pub(super) snapshots: Snapshots,
    pub(super) damage: Vec<Damage>,
    /// Damaged copies whose counterpart is intact.
    pub(super) spare: Vec<Spare>,
    /// Windows of batches with an unreadable live file.
    pub(super) lost_windows: Vec<u64>,
    /// Missing segments of the ring, without which an opening is refused.
    pub(super) missing: Vec<u64>,
    pub(super) _lock: Option<FileLock>,
}

/// A damaged copy whose counterpart is intact.
#[derive(Debug, Clone)]
pub(super) enum Spare {
    Checkpoint(Damage),
    /// Damage of a segment's header.
    Header(String),
}

pub(super) struct Segment {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) reader: SegmentReader,
}

impl ClosedFileSpool {
    /// Locks the spool and indexes all its batches.
    ///
    /// # Errors
    /// [`OpenError::Locked`] while another process has it open; `NotFound` if there is no spool; see [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let lock = lock(dir)?;
        Self::read(dir, Some(lock))
    }

    /// Like [`open`](Self::open), but also works while a server has the spool open: shows one moment of it. Data may be
    /// moved or removed during the reading: a result is valid only if [`is_current`](Self::is_current) is true
    /// afterwards.
    ///
    /// # Errors
    /// Like [`open`](Self::open), but without [`OpenError::Locked`].
    pub fn glance(dir: &Path) -> Result<Self, OpenError> {
        if !dir.join(LOCK).exists() {
            return Err(no_spool().into());
        }
        let counter_now = || {
            Ok::<_, OpenError>(match CheckpointFiles::open(dir)?.1 {
                Found::Valid(checkpoint) => Some(checkpoint.counter),
                _ => None,
            })
        };
        for _ in 1..GLANCES {
            let closed = Self::read(dir, None);
            // Files are removed and segments reused only after a checkpoint.
            match (closed, counter_now()?) {
                (Ok(closed), Some(counter)) if counter == closed.checkpoint.counter => return Ok(closed),
                (Err(OpenError::NoCheckpoint), None) => return Err(OpenError::NoCheckpoint),
                _ => {}
            }
        }
        Self::read(dir, None)
    }

    /// True if another process has it open now. Takes no lock, so it does not block others.
    ///
    /// # Errors
    /// `NotFound` if there is no spool; errors of opening its lock file.
    pub fn is_in_use(dir: &Path) -> Result<bool, OpenError> {
        match lock(dir) {
            Err(OpenError::Locked) => Ok(true),
            free => free.map(|_| false),
        }
    }

    fn read(dir: &Path, lock: Option<FileLock>) -> Result<Self, OpenError> {
        has_been_imported(dir)?;
        let (_, found, spoiled) = CheckpointFiles::open(dir)?;
        let Found::Valid(checkpoint) = found else { return Err(OpenError::NoCheckpoint) };
        let mut closed = ClosedFileSpool {
            dir: dir.to_owned(),
            state: State::of_rows(&checkpoint),
            checkpoint,
            ring: Vec::new(),
            places: BTreeMap::new(),
            records: None,
            packs: PackCache::new(pack::dir_of(dir)),
            bodies: Bodies::at(bodies::dir_of(dir)),
            snapshots: Snapshots::at(dir),
            damage: Vec::new(),
            spare: spoiled.map(|spoiled| Spare::Checkpoint(spoiled.told())).into_iter().collect(),
            lost_windows: Vec::new(),
            missing: Vec::new(),
            _lock: lock,
        };
        let kind = StoreKind::of(dir).unwrap_or_default();
        if let Some((medium, held)) = store::look(kind, dir)? {
            let (heads, damaged) = closed.read_records(ClosedRecords { kind, medium, held })?;
            closed.take_in(&heads);
            closed.read_windows(&heads)?;
            closed.note_damaged_records(damaged, &heads);
            closed.note_missing_records();
            if closed.checkpoint.kind.is_some() && !store::has_records(kind, &dir.join(kind.dir()))? {
                closed.damage.push(records_lost(kind, closed.state.published.max(closed.checkpoint.freed)));
            }
            return Ok(closed);
        }
        let ring = dir.join(RING);
        let roster = dir.join(ROSTER);
        let examined = posthaste_ring::examine(&ring, Some(&roster), closed.checkpoint.on_record())?;
        let heads = closed.read_ring()?;
        closed.take_in(&heads);
        closed.read_windows(&heads)?;
        closed.missing = examined.missing;
        closed.note_lost(&examined.damage);
        Ok(closed)
    }

    pub(super) fn note(&mut self, lsn: Option<u64>, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() });
    }

    /// Notes damage to the ring that a stream needs; up to the checkpoint, the live files list the needed batches.
    fn note_lost(&mut self, found: &[posthaste_ring::RingDamage]) {
        let through = self.checkpoint.through;
        let is_needed = |(first, last): (posthaste_ring::Lsn, posthaste_ring::Lsn)| {
            last.get() > through || self.state.is_any_needed(first.get()..=last.get())
        };
        let lost = found.iter().filter(|damage| damage.promised && damage.lsns.is_none_or(is_needed));
        self.damage.extend(lost.map(damage_of).collect::<Vec<_>>());
    }

    /// Missing segments of the ring, without which an opening is refused: see [`OpenError::Missing`].
    pub fn missing(&self) -> &[u64] {
        &self.missing
    }

    /// Finds the batches in the ring; returns their heads.
    fn read_ring(&mut self) -> io::Result<BTreeMap<u64, Head>> {
        let dir = self.dir.join(RING);
        let mut heads = BTreeMap::new();
        let mut mark = 0;
        let names = match files::list(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        for name in names.into_iter().filter(|name| name.ends_with(".seg")) {
            let path = dir.join(&name);
            let reader = match SegmentReader::open(&path) {
                // Never used, or already reported as damage.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                reader => reader?,
            };
            let number = reader.header().number;
            if number < self.checkpoint.ring_low {
                continue;
            }
            if copies(&path)?.contains(&None) {
                self.spare.push(Spare::Header(name.clone()));
            }
            let at = self.ring.len();
            let mut unknown = Vec::new();
            reader.scan(&mut |located| {
                let lsn = located.header.lsn.get();
                mark = mark.max(located.header.durable.get());
                match Head::decode(Bytes::copy_from_slice(located.head)) {
                    Some(head) => {
                        heads.insert(lsn, head);
                        self.places.insert(lsn, (at, located.offset, located.header));
                    }
                    None => unknown.push(lsn),
                }
                ControlFlow::Continue(())
            })?;
            for lsn in unknown {
                self.note(Some(lsn), &name, "its head has an unknown format");
            }
            self.ring.push(Segment { name, number, reader });
        }
        // Records after the mark may be torn; a torn record does not exist.
        let mark = mark.max(self.checkpoint.through);
        let behind: Vec<_> = self.places.range(mark + 1..).map(|(lsn, place)| (*lsn, *place)).collect();
        for (lsn, (at, offset, header)) in behind {
            if self.ring[at].reader.body(offset, &header, 0..0).is_err() {
                heads.remove(&lsn);
                self.places.remove(&lsn);
            }
        }
        let first = self.places.keys().next();
        self.state.packed_through = first.map_or(self.checkpoint.through, |first| first - 1);
        self.state.published = self.checkpoint.through.max(self.places.keys().next_back().copied().unwrap_or(0));
        Ok(heads)
    }

    /// Every batch after the checkpoint is needed.
    fn take_in(&mut self, heads: &BTreeMap<u64, Head>) {
        let cancelled = self.cancelled(heads);
        for (lsn, head) in heads.range(self.checkpoint.through + 1..).filter(|(lsn, _)| !cancelled.contains(lsn)) {
            for entry in &head.entries {
                self.state.add_entry(*lsn, entry.stream, entry.needs_body);
            }
            if let BodyPlace::File(body) = head.body {
                self.state.add_large(*lsn, body);
            }
        }
    }

    pub(super) fn cancelled(&self, heads: &BTreeMap<u64, Head>) -> BTreeSet<u64> {
        heads.values().flat_map(Head::cancels).chain(self.checkpoint.cancelled.iter().copied()).collect()
    }

    fn read_windows(&mut self, heads: &BTreeMap<u64, Head>) -> io::Result<()> {
        let cancelled = self.cancelled(heads);
        let live = LiveFiles::at(&self.dir);
        for (window, generation) in self.state.windows.clone() {
            if let Some(content) = live.read(window, generation)? {
                self.state.add_window(content);
                continue;
            }
            self.lost_windows.push(window);
            let (first, last) = lsns_of(window).into_inner();
            self.note(
                None,
                format!("live/{window:x}.{generation:x}"),
                "cannot be read: the next opening finds again what is needed; of packs this look shows nothing of it",
            );
            let of_window = heads.range(first..=last.min(self.checkpoint.through));
            for (lsn, head) in of_window.filter(|(lsn, _)| !cancelled.contains(lsn)) {
                self.state.find_again(*lsn, head);
            }
        }
        Ok(())
    }

    /// True if no checkpoint was made since the opening: then everything found is still in its place.
    pub fn is_current(&self) -> bool {
        let now = CheckpointFiles::open(&self.dir);
        now.is_ok_and(|(_, found, _)| matches!(found, Found::Valid(now) if now.counter == self.checkpoint.counter))
    }

    /// Indexes the records. Returns the readable heads, and for each other record the reason.
    fn read_records(&mut self, records: ClosedRecords) -> io::Result<(BTreeMap<u64, Head>, Vec<Damage>)> {
        let mut heads = BTreeMap::new();
        let mut damaged = Vec::new();
        for lsn in records.held.iter(0..=u64::MAX) {
            match records.medium.head(Lsn::new(lsn)) {
                Ok((_, head)) => match Head::decode(head) {
                    Some(head) => drop(heads.insert(lsn, head)),
                    None => damaged.push(records.damage(lsn, "its head has an unknown format")),
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

    /// Notes damaged records if they are needed, or later than the last checkpoint: records are published whole, so
    /// these were acknowledged.
    fn note_damaged_records(&mut self, damaged: Vec<Damage>, heads: &BTreeMap<u64, Head>) {
        let through = self.checkpoint.through;
        let cancelled = self.cancelled(heads);
        let counts =
            |lsn: u64| if lsn > through { !cancelled.contains(&lsn) } else { self.state.is_any_needed(lsn..=lsn) };
        let noted: Vec<_> = damaged.into_iter().filter(|it| it.lsn.is_some_and(|lsn| counts(lsn.get()))).collect();
        self.damage.extend(noted);
    }

    /// Notes missing records that are needed.
    fn note_missing_records(&mut self) {
        let Some(records) = self.records.clone() else { return };
        let missing = self.state.all_needed().without(&records.held, 0..=u64::MAX);
        missing.iter(0..=u64::MAX).for_each(|lsn| self.note(Some(lsn), records.place(), RECORD_MISSING));
    }

    /// The body region with placeholders; see [`ClosedRecords::mended`].
    pub(super) fn mended_record(&self, lsn: u64) -> Option<Bytes> {
        let records = self.records.as_ref()?;
        let (_, head) = records.medium.head(Lsn::new(lsn)).ok()?;
        records.mended(lsn, &Head::decode(head)?)
    }
}

impl Spare {
    pub(super) fn told(&self) -> Damage {
        match self {
            Spare::Checkpoint(damage) => damage.clone(),
            Spare::Header(name) => {
                let what = "one of the two copies of its header is damaged".to_owned();
                Damage { lsn: None, place: name.clone(), what }
            }
        }
    }
}

fn no_spool() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no spool in this directory")
}

/// Locks an existing spool.
pub(super) fn lock(dir: &Path) -> Result<FileLock, OpenError> {
    let lock = File::open(dir.join(LOCK)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => no_spool(),
        _ => error,
    })?;
    FileLock::try_new(lock)?.ok_or(OpenError::Locked)
}

/// The copies of a segment's header.
pub(super) fn copies(path: &Path) -> io::Result<[Option<SegmentHeader>; 2]> {
    let mut blocks = Vec::new();
    File::open(path)?.take(FIRST_RECORD as u64).read_to_end(&mut blocks)?;
    Ok(SegmentHeader::decode_copies(&blocks))
}

/// True if a segment's file contains only zeros: it was made and never used.
pub(super) fn is_never_used(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut len = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(len >= FIRST_RECORD),
            n if piece[..n].iter().any(|byte| *byte != 0) => return Ok(false),
            n => len += n,
        }
    }
}

/// Maximum attempts at a glance without a checkpoint in between.
const GLANCES: usize = 4;
