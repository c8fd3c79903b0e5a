//! A spool seen from outside: inspection, verification and export. Changes nothing except in [`repair`](ClosedFileSpool::repair).

mod export;
mod import;
mod rebuild;
mod records;
mod repair;
mod verify;

pub use export::{ExportedBatch, ExportedBody, ExportedEntry, ExportedSnapshot, ExportedStream, ExportedStreams};
pub use import::{ImportedBatch, SpoolImport};
pub use rebuild::Rebuilt;
use records::ClosedRecords;
pub(crate) use records::RECORD_MISSING;
pub use repair::Repaired;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::Lsn;
use bytes::Bytes;
use posthaste_ring::SegmentReader;
use posthaste_ring::layout::{FIRST_RECORD, RecordHeader, SegmentHeader};
use rustix::fs::FlockOperation;

use crate::batch::{BodyPlace, Head};
use crate::bodies::{self, Bodies};
use crate::checkpoint::{Checkpoint, CheckpointFiles, Found};
use crate::events::Damage;
use crate::live::{LiveFiles, lsns_of};
use crate::open::{LOCK, RING, ROSTER, has_been_imported};
use crate::pack::{self, PackCache};
use crate::scrub::ScrubReport;
use crate::snapshots::Snapshots;
use crate::state::{State, Stream};
use crate::store::groups::records_lost;
use crate::store::{self, damage_of};
use crate::{OpenError, StoreKind, StreamId, StreamStats, files};

/// Mail of a closed spool, or of one moment of an open one, for verification, repair and export. The same for all kinds
/// of spool.
pub trait ClosedSpool {
    /// Visits every entry that its stream needs, in order: the stream's name, the batch, the payload, and the length of
    /// the batch's body, which is not read.
    ///
    /// # Errors
    /// An error of reading. Skips entries of batches with a lost head.
    fn entries(&self, each: &mut dyn FnMut(&str, Lsn, &Bytes, u64)) -> io::Result<()>;

    /// The body of a batch, or the read error; `None` if there is none, or its batch is lost.
    ///
    /// # Errors
    /// An error of reading.
    fn body(&self, lsn: Lsn) -> io::Result<Option<Result<ExportedBody, String>>>;

    /// Visits every needed batch, in order, with the needed parts, until `each` returns false. Returns the needed
    /// batches with unreadable heads, which it left out.
    ///
    /// # Errors
    /// An error of reading; other damage is reported in the batch.
    fn export(&self, each: &mut dyn FnMut(ExportedBatch) -> ControlFlow<()>) -> io::Result<Vec<Lsn>>;

    /// Needed but unreadable bodies, in order, each with the reason.
    ///
    /// # Errors
    /// An error of reading, except for unreadable sectors.
    fn unreadable_bodies(&self) -> io::Result<Vec<(Lsn, String)>>;

    /// Batches with unreadable heads, needed only for their entries, in order: these are lost.
    ///
    /// # Errors
    /// An error of reading, except for unreadable sectors.
    fn lost_entries(&self) -> io::Result<Vec<Lsn>>;

    /// The streams that need any part of a batch.
    fn needed_by(&self, lsn: Lsn) -> Vec<&str>;

    /// Bytes that [`verify`](Self::verify) reads, about.
    fn bytes(&self) -> u64;

    /// Reads everything that is needed and compares the checksums. Calls `pace` after each batch with the bytes read so far. Sleep there to leave the disk to others,
    /// or end it.
    ///
    /// # Errors
    /// An error of reading, except for damage.
    fn verify_with(&self, pace: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport>;

    /// [`verify_with`](Self::verify_with) without pauses.
    ///
    /// # Errors
    /// As there.
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
    /// An error of reading; files that could not be written are in the result.
    fn repair(&self) -> io::Result<Repaired>;
}

/// A spool on the disk.
pub struct ClosedFileSpool {
    dir: PathBuf,
    checkpoint: Checkpoint,
    state: State,
    ring: Vec<Segment>,
    /// Place of each batch in the ring: index in `ring`, offset, header.
    places: BTreeMap<u64, (usize, u32, RecordHeader)>,
    /// The records of a kind that writes in groups.
    records: Option<ClosedRecords>,
    packs: PackCache,
    bodies: Bodies,
    snapshots: Snapshots,
    damage: Vec<Damage>,
    /// Damaged copies whose counterpart is intact.
    spare: Vec<Spare>,
    /// Windows of batches with an unreadable live file.
    lost_windows: Vec<u64>,
    /// Segments of the ring that are missing, and that an opening refuses to do without.
    missing: Vec<u64>,
    _lock: Option<File>,
}

/// A damaged copy whose counterpart is intact.
#[derive(Debug, Clone)]
enum Spare {
    Checkpoint(Damage),
    /// Damage of a segment's header.
    Header(String),
}

struct Segment {
    name: String,
    number: u64,
    reader: SegmentReader,
}

/// The content of a spool.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Inspection {
    /// Kind of the store.
    pub kind: StoreKind,
    /// Number of the last checkpoint.
    pub checkpoint: u64,
    /// The last batch that the checkpoint covers.
    pub through: Lsn,
    /// The last batch.
    pub last: Lsn,
    /// The streams and their needs.
    pub streams: Vec<StreamStats>,
    /// Segments of the ring that are in service, in order.
    pub segments: Vec<PlaceReport>,
    /// Packs, in order.
    pub packs: Vec<PlaceReport>,
    /// Large bodies: batch, file, bytes.
    pub large: Vec<(Lsn, String, u64)>,
    /// Body files that no batch names.
    pub unnamed_bodies: Vec<String>,
    /// Damage found so far; [`ClosedFileSpool::verify`] reads everything.
    pub damage: Vec<Damage>,
    /// Damage without loss, because a second copy is intact. A power cut may leave such damage.
    pub spare: Vec<Damage>,
}

/// A segment or a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaceReport {
    /// File name.
    pub name: String,
    /// First and last batch; zero without any.
    pub first: Lsn,
    /// See `first`.
    pub last: Lsn,
    /// Batches in it.
    pub records: u64,
    /// Needed batches.
    pub needed: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl ClosedFileSpool {
    /// Indexes all batches. Holds the spool's lock.
    ///
    /// # Errors
    /// [`OpenError::Locked`] while another process has it open; `NotFound` if there is no spool; see [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let lock = lock(dir)?;
        Self::read(dir, Some(lock))
    }

    /// Like [`open`](Self::open), but also while a server has the spool open: shows one moment of it. Data may be moved
    /// or removed during the reading: a result is valid only if [`is_current`](Self::is_current) is true afterwards.
    ///
    /// # Errors
    /// Like [`open`](Self::open), except that it may be in use.
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
            // Files are removed and segments used again after a checkpoint alone.
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
    /// `NotFound` if there is no spool; those of opening its lock.
    pub fn is_in_use(dir: &Path) -> Result<bool, OpenError> {
        match lock(dir) {
            Err(OpenError::Locked) => Ok(true),
            free => free.map(|_| false),
        }
    }

    fn read(dir: &Path, lock: Option<File>) -> Result<Self, OpenError> {
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

    fn note(&mut self, lsn: Option<u64>, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() });
    }

    /// Notes losses of the ring that a stream needs; up to the checkpoint, the live files list them.
    fn note_lost(&mut self, found: &[posthaste_ring::RingDamage]) {
        let through = self.checkpoint.through;
        let is_needed = |(first, last): (posthaste_ring::Lsn, posthaste_ring::Lsn)| {
            last.get() > through || self.state.is_any_needed(first.get()..=last.get())
        };
        let lost = found.iter().filter(|damage| damage.promised && damage.lsns.is_none_or(is_needed));
        self.damage.extend(lost.map(damage_of).collect::<Vec<_>>());
    }

    /// Segments of the ring that are missing, and that an opening refuses to do without: see [`OpenError::Missing`].
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
                // Never used, or told as damage.
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
                self.note(Some(lsn), &name, "its head has a format that is not known");
            }
            self.ring.push(Segment { name, number, reader });
        }
        // What follows the mark may be torn, and then it does not exist.
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

    fn cancelled(&self, heads: &BTreeMap<u64, Head>) -> BTreeSet<u64> {
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

    /// Lists the content.
    ///
    /// # Errors
    /// An error of reading.
    pub fn inspect(&self) -> io::Result<Inspection> {
        let state = &self.state;
        let stats = |(id, stream): (&u16, &crate::state::Stream)| stream.stats(StreamId(*id));
        let named: BTreeSet<u64> = state.large.values().map(|body| body.upload).collect();
        let mut segments: Vec<&Segment> = self.ring.iter().collect();
        segments.sort_by_key(|segment| segment.number);
        let segment = |segment: &Segment| -> io::Result<PlaceReport> {
            let of_it = self.places.iter().filter(|(_, (at, ..))| self.ring[*at].number == segment.number);
            let lsns: Vec<u64> = of_it.map(|(lsn, _)| *lsn).collect();
            let ends = lsns.first().zip(lsns.last()).map_or((0, 0), |(first, last)| (*first, *last));
            Ok(PlaceReport {
                name: segment.name.clone(),
                first: Lsn::new(ends.0),
                last: Lsn::new(ends.1),
                records: lsns.len() as u64,
                needed: lsns.iter().filter(|lsn| state.is_any_needed(**lsn..=**lsn)).count() as u64,
                bytes: std::fs::metadata(self.dir.join(RING).join(&segment.name))?.len(),
            })
        };
        let pack = |row: &crate::checkpoint::PackRow| PlaceReport {
            name: format!("{:016x}.pack", row.id),
            first: Lsn::new(row.first),
            last: Lsn::new(row.last),
            records: row.records,
            needed: state.needed_count(row.first..=row.last),
            bytes: row.bytes,
        };
        let unnamed = self.bodies.list()?.into_iter().filter(|upload| !named.contains(upload));
        Ok(Inspection {
            kind: StoreKind::of(&self.dir).unwrap_or_default(),
            checkpoint: self.checkpoint.counter,
            through: Lsn::new(self.checkpoint.through),
            last: Lsn::new(state.published),
            streams: state.streams.iter().map(stats).collect(),
            segments: segments.into_iter().map(segment).collect::<io::Result<_>>()?,
            packs: state.packs.iter().map(pack).collect(),
            large: state.large.iter().map(|(lsn, b)| (Lsn::new(*lsn), self.bodies.name(b.upload), b.len)).collect(),
            unnamed_bodies: unnamed.map(|upload| self.bodies.name(upload)).collect(),
            damage: self.damage.clone(),
            spare: self.spare.iter().map(Spare::told).collect(),
        })
    }

    /// True if no checkpoint was made since: then everything found is still in its place.
    pub fn is_current(&self) -> bool {
        let now = CheckpointFiles::open(&self.dir);
        now.is_ok_and(|(_, found, _)| matches!(found, Found::Valid(now) if now.counter == self.checkpoint.counter))
    }
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

impl Spare {
    fn told(&self) -> Damage {
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
fn lock(dir: &Path) -> Result<File, OpenError> {
    let lock = File::open(dir.join(LOCK)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => no_spool(),
        _ => error,
    })?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked),
        locked => Ok(locked.map(|()| lock).map_err(io::Error::from)?),
    }
}

/// The copies of a segment's header.
fn copies(path: &Path) -> io::Result<[Option<SegmentHeader>; 2]> {
    let mut blocks = Vec::new();
    File::open(path)?.take(FIRST_RECORD as u64).read_to_end(&mut blocks)?;
    Ok(SegmentHeader::decode_copies(&blocks))
}

/// True if a segment's file contains only zeros: it was made and never used.
fn is_never_used(path: &Path) -> io::Result<bool> {
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

/// Attempts at a glance that no checkpoint disturbs.
const GLANCES: usize = 4;
