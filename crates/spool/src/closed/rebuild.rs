//! Makes a new spool from the remains of a spool that has lost both checkpoint files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use crate::Lsn;
use bytes::Bytes;
use posthaste_ring::layout::RecordHeader;
use posthaste_ring::{Gap, SegmentReader};

use super::export::mended;
use super::file_spool::{ClosedFileSpool, is_never_used, lock};
use super::records::ClosedRecords;
use crate::batch::{BodyPlace, Head, OWN};
use crate::bodies::{self, Bodies, BodyError};
use crate::checkpoint::{Checkpoint, CheckpointFiles, Found, PackRow};
use crate::events::Damage;
use crate::live::{LiveFiles, window_of};
use crate::names::Names;
use crate::pack::{self, PackWriter};
use crate::place::{LOCK, has_been_imported};
use crate::reading::LOST_FRONT;
use crate::state::{State, Stream};
use crate::store::groups::RecordImport;
use crate::store::{self, RING, RecordError};
use crate::{OpenError, StoreKind, files};

/// Result of a rebuild.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebuilt {
    /// Number of batches found.
    pub batches: u64,
    /// Names of the streams. Each sees all of its batches again, and learns that some may be missing.
    pub streams: Vec<String>,
    /// Number of large bodies copied.
    pub large: u64,
    /// Batches left out because the file of their large body is missing: they were released, or are lost.
    pub left_out: Vec<Lsn>,
    /// Damage found while reading.
    pub damage: Vec<Damage>,
}

/// Locations of a batch: in the ring, in a pack, or in both.
struct RecordPlaces(Vec<(usize, u32, RecordHeader)>);

/// The remains of the old spool.
#[derive(Default)]
struct Left {
    /// The records, for a kind that writes in groups; then there are no places, and all records are intact.
    records: Option<ClosedRecords>,
    readers: Vec<(String, SegmentReader)>,
    places: BTreeMap<u64, RecordPlaces>,
    heads: BTreeMap<u64, Head>,
    mark: u64,
    damage: Vec<Damage>,
}

impl ClosedFileSpool {
    /// Makes a new spool in `to`, which must not exist, from everything found in `dir`, whose checkpoint files are both
    /// damaged or missing. `dir` is not changed. The streams' positions and releases are unknown. So every stream sees
    /// everything again, from the beginning and without its snapshot, marked as
    /// [`Replayed::Uncertain`](crate::Replayed::Uncertain). LSNs stay the same. An interrupted run leaves a directory
    /// that cannot be opened as a spool.
    ///
    /// # Errors
    /// [`OpenError::Locked`] while another process has it open; [`OpenError::Importing`]; `AlreadyExists` if a
    /// checkpoint is readable, or `to` exists; errors of reading and writing.
    pub fn rebuild(dir: &Path, to: &Path) -> Result<Rebuilt, OpenError> {
        let _lock = lock(dir)?;
        has_been_imported(dir)?;
        let exists = |what: &str| OpenError::Io(io::Error::new(io::ErrorKind::AlreadyExists, what));
        if let (_, Found::Valid(_), _) = CheckpointFiles::open(dir)? {
            return Err(exists("a checkpoint can be read, so nothing needs to be rebuilt"));
        }
        if to.symlink_metadata().is_ok() {
            return Err(exists("the directory for the new spool exists already"));
        }
        let mut left = Left::default();
        let kind = StoreKind::of(dir).unwrap_or_default();
        match store::look(kind, dir)? {
            Some((medium, held)) => left.read_records(ClosedRecords { kind, medium, held })?,
            None => {
                left.read(&pack::dir_of(dir), ".pack")?;
                left.read(&dir.join(RING), RING_ENDING)?;
            }
        }
        left.leave_out_what_is_torn_or_cancelled();
        let left_out = left.leave_out_what_has_lost_its_body(dir)?;
        posthaste_fsops::make_dir(to)?;
        posthaste_fsops::make_dir(&to.join(kind.dir()))?;
        files::write_new(&to.join(LOCK), b"")?;
        let mut state = left.state(dir)?;
        let mut rebuilt = Rebuilt {
            left_out,
            streams: state.streams.values().map(|stream| stream.name.clone()).collect(),
            ..Rebuilt::default()
        };
        for lsn in left.places.keys().copied().collect::<Vec<_>>() {
            state.find_again(lsn, &left.heads[&lsn]);
            if !state.is_any_needed(lsn..=lsn) {
                left.places.remove(&lsn);
            }
        }
        state.published = left.heads.keys().next_back().copied().unwrap_or(0);
        rebuilt.large = left.copy_large(dir, to, &state)?;
        rebuilt.batches = left.places.len() as u64;
        match left.records.clone().zip(store::import(kind, to)?) {
            Some((from, import)) => left.copy_records(&from, import)?,
            None => left.write_packs(to, &mut state)?,
        }
        let live = LiveFiles::open(to)?;
        let windows: BTreeSet<u64> = left.places.keys().map(|lsn| window_of(*lsn)).collect();
        for window in &windows {
            live.write(*window, 1, &state.window(*window))?;
        }
        live.sync()?;
        Names { next: state.next_stream, streams: state.names() }.write(to)?;
        let windows = windows.into_iter().map(|window| (window, 1)).collect();
        let last = state.published;
        state.streams.values_mut().for_each(|stream| stream.uncertain = last);
        let checkpoint = Checkpoint { counter: 1, kind: Some(kind), freed: last, windows, ..state.rows() };
        // Last of all: without it the directory cannot be opened.
        CheckpointFiles::open(to)?.0.write(&checkpoint)?;
        rebuilt.damage = left.damage;
        Ok(rebuilt)
    }
}

impl Left {
    fn note(&mut self, lsn: Option<u64>, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() });
    }

    fn read(&mut self, dir: &Path, ending: &str) -> io::Result<()> {
        let names = match files::list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            names => names?,
        };
        for name in names.into_iter().filter(|name| name.ends_with(ending)) {
            let path = dir.join(&name);
            let reader = match SegmentReader::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    if !is_never_used(&path)? {
                        self.note(None, name, "neither copy of its header is whole: its batches are lost");
                    }
                    continue;
                }
                reader => reader?,
            };
            let at = self.readers.len();
            let mut unknown = Vec::new();
            let gaps = reader.scan(&mut |located| {
                let lsn = located.header.lsn.get();
                self.mark = self.mark.max(located.header.durable.get());
                match Head::decode(Bytes::copy_from_slice(located.head)) {
                    Some(head) => {
                        self.heads.insert(lsn, head);
                        let places = self.places.entry(lsn).or_insert(RecordPlaces(Vec::new()));
                        places.0.push((at, located.offset, located.header));
                    }
                    None => unknown.push(lsn),
                }
                ControlFlow::Continue(())
            })?;
            unknown.into_iter().for_each(|lsn| self.note(Some(lsn), &name, "its head has an unknown format"));
            // A pack leaves out unneeded batches: LSNs are missing, but no bytes.
            let is_damage = |gap: &Gap| ending == RING_ENDING || !gap.range.is_empty();
            for (first, last) in gaps.into_iter().filter(is_damage).filter_map(|gap| gap.lsns) {
                self.note(Some(first.get()), &name, format!("batches {first} to {last} are damaged"));
            }
            self.readers.push((name, reader));
        }
        Ok(())
    }

    /// Like [`read`](Self::read), for a kind that writes in groups.
    fn read_records(&mut self, records: ClosedRecords) -> io::Result<()> {
        for lsn in records.held.iter(0..=u64::MAX) {
            match records.medium.head(Lsn::new(lsn)) {
                Ok((_, head)) => match Head::decode(head) {
                    Some(head) => {
                        self.heads.insert(lsn, head);
                        self.places.insert(lsn, RecordPlaces(Vec::new()));
                    }
                    None => self.note(Some(lsn), records.place(), "its head has an unknown format"),
                },
                Err(RecordError::Io(_, error)) => return Err(error),
                Err(error) => self.note(Some(lsn), records.place(), error.to_string()),
            }
        }
        // An existing record was complete.
        self.mark = u64::MAX - 1;
        self.records = Some(records);
        Ok(())
    }

    /// The body of a batch, from any location where it is intact.
    fn body(&self, lsn: u64) -> Result<Bytes, RecordError> {
        if let Some(records) = &self.records {
            return records.medium.body(Lsn::new(lsn), 0..u32::MAX);
        }
        let mut last = Err(RecordError::NotFound(Lsn::new(lsn)));
        for (at, offset, header) in &self.places[&lsn].0 {
            last = self.readers[*at].1.body(*offset, header, 0..u32::MAX).map_err(RecordError::from);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// The body of a batch that has lost only its front fields, with placeholders; updates its head accordingly.
    fn mend(&mut self, lsn: u64) -> Option<Bytes> {
        let head = self.heads.get(&lsn)?.clone();
        let body = match &self.records {
            Some(records) => records.mended(lsn, &head)?,
            None => {
                let places = &self.places.get(&lsn)?.0;
                places.iter().find_map(|(at, offset, header)| mended(&self.readers[*at].1, *offset, header, &head))?
            }
        };
        let front = head.front().replaced();
        self.heads.insert(lsn, head.with_front(front));
        Some(body)
    }

    fn leave_out_what_is_torn_or_cancelled(&mut self) {
        let behind: Vec<u64> = self.places.range(self.mark + 1..).map(|(lsn, _)| *lsn).collect();
        let torn = behind.into_iter().filter(|lsn| self.body(*lsn).is_err()).collect::<Vec<_>>();
        torn.iter().for_each(|lsn| drop((self.heads.remove(lsn), self.places.remove(lsn))));
        let cancelled: Vec<u64> = self.heads.values().flat_map(Head::cancels).collect();
        cancelled.iter().for_each(|lsn| drop(self.places.remove(lsn)));
    }

    fn leave_out_what_has_lost_its_body(&mut self, dir: &Path) -> io::Result<Vec<Lsn>> {
        let there: BTreeSet<u64> = match Bodies::at(bodies::dir_of(dir)).list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            listed => listed?.into_iter().collect(),
        };
        let is_gone = |lsn: &u64| match &self.heads[lsn] {
            Head { body: BodyPlace::File(body), entries } => {
                !there.contains(&body.upload) && entries.iter().any(|entry| entry.needs_body)
            }
            _ => false,
        };
        let gone: Vec<u64> = self.places.keys().copied().filter(is_gone).collect();
        gone.iter().for_each(|lsn| drop(self.places.remove(lsn)));
        Ok(gone.into_iter().map(Lsn::new).collect())
    }

    /// The streams at position zero. Names of permanently removed streams are gone.
    fn state(&mut self, dir: &Path) -> io::Result<State> {
        let ids: BTreeSet<u16> =
            self.heads.values().flat_map(|head| head.entries.iter().map(|entry| entry.stream)).collect();
        let names = Names::read(dir)?.unwrap_or_else(|| {
            self.note(None, "streams", "the names of the streams cannot be read: they are called unnamed-1 and so on");
            let streams = ids.iter().filter(|id| **id != OWN).map(|id| (*id, format!("unnamed-{id}"))).collect();
            Names { next: 0, streams }
        });
        let next = ids.last().map_or(1, |last| last.saturating_add(1)).max(names.next);
        let streams = names.streams.iter().map(|(id, name)| (*id, Stream::new(name, 0))).collect();
        Ok(State { streams, next_stream: next, ..State::default() })
    }

    fn copy_large(&mut self, dir: &Path, to: &Path, state: &State) -> io::Result<u64> {
        let from = bodies::dir_of(dir);
        let into = bodies::dir_of(to);
        posthaste_fsops::make_dir(&into)?;
        let old = Bodies::at(from.clone());
        let mut count = 0;
        for (lsn, body) in &state.large {
            let name = old.name(body.upload);
            if let Err(BodyError::Damaged(what)) = old.verify(*body) {
                self.note(Some(*lsn), &name, what);
            }
            if copy(&from.join(&name), &into.join(&name))? {
                count += 1;
            }
        }
        files::sync_dir(&into)?;
        Ok(count)
    }

    /// Copies each record. A damaged one stays damaged, except that lost front fields are replaced; an unreadable one
    /// is left out.
    fn copy_records(&mut self, from: &ClosedRecords, mut import: RecordImport) -> io::Result<()> {
        for lsn in self.places.keys().copied().collect::<Vec<_>>() {
            let error = match self.body(lsn) {
                Ok(body) => {
                    import.put(lsn, self.heads[&lsn].encode().into(), body)?;
                    continue;
                }
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                Err(error) => error,
            };
            let is_unreadable = matches!(error, RecordError::Io(..));
            let mended = self.mend(lsn);
            self.note(Some(lsn), from.place(), if mended.is_some() { LOST_FRONT.into() } else { error.to_string() });
            if let Some(body) = mended {
                import.put(lsn, self.heads[&lsn].encode().into(), body)?;
            } else if let (false, Ok((header, head)), Ok((raw, _))) =
                (is_unreadable, from.medium.head(Lsn::new(lsn)), from.medium.body_again(Lsn::new(lsn)))
            {
                import.put_as(header, lsn, head, raw)?;
            }
        }
        import.flush()
    }

    fn write_packs(&mut self, to: &Path, state: &mut State) -> io::Result<()> {
        let packs = pack::dir_of(to);
        posthaste_fsops::make_dir(&packs)?;
        let mut writer: Option<PackWriter> = None;
        for lsn in self.places.keys().copied().collect::<Vec<_>>() {
            let body = match self.body(lsn) {
                Ok(body) => Some(body),
                Err(RecordError::Io(_, error)) => return Err(error),
                Err(error) => {
                    let mended = self.mend(lsn);
                    self.note(Some(lsn), "body", if mended.is_some() { LOST_FRONT.into() } else { error.to_string() });
                    mended
                }
            };
            if writer.as_ref().is_some_and(|writer| writer.bytes() >= PACK_BYTES) {
                finish(writer.take().expect("there is one"), state)?;
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(PackWriter::create(&packs, state.next_pack)?),
            };
            writer.append(lsn, &self.heads[&lsn].encode(), body.as_deref())?;
        }
        writer.map_or(Ok(()), |writer| finish(writer, state))
    }
}

fn finish(writer: PackWriter, state: &mut State) -> io::Result<()> {
    let id = state.next_pack;
    let first = writer.first();
    let last = writer.last();
    let records = writer.records();
    let bytes = writer.bytes();
    writer.finish()?;
    state.packs.push(PackRow { id, first, last, records, bytes });
    state.next_pack += 1;
    Ok(())
}

/// Copies a file if it exists; true if it does.
fn copy(from: &Path, to: &Path) -> io::Result<bool> {
    let mut source = match File::open(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        source => source?,
    };
    let mut copy = files::create(to)?;
    io::copy(&mut source, &mut copy)?;
    posthaste_fsops::fsync(&copy)?;
    Ok(true)
}

/// Suffix of the ring's files.
const RING_ENDING: &str = ".seg";
const PACK_BYTES: u64 = 256 << 20;
