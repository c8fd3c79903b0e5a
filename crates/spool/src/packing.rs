//! Moves needed batches from the oldest segments into packs, and merges packs that are small or mostly unneeded.
//!
//! A pack, its index and both names are durable before a checkpoint names it. Its sources are removed after that checkpoint.
//!
//! Damaged records are never rewritten: their segment is adopted whole as a pack, and such a pack is not merged. A
//! later read may succeed, and [`set_aside`](crate::Spool::set_aside) copies the rest.

use std::io;
use std::ops::ControlFlow;

use crate::Lsn;
use bytes::Bytes;
use posthaste_ring::{Located, Ring, SegmentInfo, SegmentReader};
use rustix::io::Errno;

use crate::CheckpointError;
use crate::batch::Head;
use crate::checkpoint::PackRow;
use crate::events::{Damage, SpoolEvent};
use crate::files;
use crate::pace::Pace;
use crate::pack::{IndexEntry, IndexWriter, PackError, PackReader, PackWriter, index_path, pack_path};
use crate::shared::{Shared, Work};
use crate::store::RecordError;

/// A record to copy.
struct Record {
    head: Bytes,
    body: Bytes,
}

/// Why records are not copied.
enum CopyError {
    Io(io::Error),
    /// A record is damaged.
    Damaged(Damage),
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        CopyError::Io(error)
    }
}

fn damage(lsn: u64, what: &str) -> Damage {
    Damage { lsn: Some(Lsn::new(lsn)), place: "found while packing".to_owned(), what: what.to_owned() }
}

/// Classifies a disk error: an unreadable sector is as damaged as one with wrong content, so a retry is pointless.
fn of_io(lsn: u64, error: io::Error) -> CopyError {
    match Errno::from_io_error(&error) {
        Some(Errno::IO) => CopyError::Damaged(damage(lsn, "it cannot be read from the disk")),
        _ => CopyError::Io(error),
    }
}

fn of_read(lsn: u64, error: RecordError) -> CopyError {
    match error {
        RecordError::Io(_, error) => of_io(lsn, error),
        error => CopyError::Damaged(damage(lsn, &error.to_string())),
    }
}

fn of_pack(lsn: u64, error: PackError) -> CopyError {
    match error {
        PackError::Io(error) => of_io(lsn, error),
        PackError::Damaged(what) => CopyError::Damaged(damage(lsn, what)),
    }
}

impl Shared {
    pub fn pack_oldest(&self, segments: usize) -> Result<usize, CheckpointError> {
        let Some(ring) = self.store.ring() else { return Ok(0) };
        let mut work = self.work.lock().expect("packing does not panic");
        self.not_poisoned()?;
        let oldest = self.sealed_segments(ring, segments);
        let mut done = 0;
        while let Some(first) = oldest.get(done) {
            // Shutdown waits for one pack, not for all of them.
            if done > 0 && self.core.bell.is_end_wanted() {
                break;
            }
            done += if self.is_worth_keeping(first) {
                self.adopt(ring, first, None, &mut work)?;
                1
            } else {
                let run = oldest[done..].iter().take_while(|segment| !self.is_worth_keeping(segment)).count();
                self.copy_segments(ring, &oldest[done..done + run], &mut work)?
            };
        }
        Ok(done)
    }

    /// The oldest unpacked segments, without those that still get writes or publications.
    fn sealed_segments(&self, ring: &Ring, count: usize) -> Vec<SegmentInfo> {
        let segments = ring.segments();
        let state = self.core.state();
        let is_done = |segment: &SegmentInfo| segment.is_sealed && segment.last.get() <= state.published;
        let is_packed = |segment: &SegmentInfo| segment.last.get() <= state.packed_through;
        segments.into_iter().take_while(is_done).filter(|segment| !is_packed(segment)).take(count).collect()
    }

    /// True if three quarters of a segment, and the bodies of three quarters of its records, are needed: then copying
    /// would cost more than the wasted space. Otherwise entries are copied: a stuck stream without needed bodies must
    /// not keep the bodies of all mail.
    fn is_worth_keeping(&self, segment: &SegmentInfo) -> bool {
        let records = segment.last.get() - segment.first.get() + 1;
        let needed = self.core.state().needed_bodies(segment.first.get()..=segment.last.get());
        segment.bytes_used * 4 >= segment.segment_bytes * 3 && needed * 4 >= records * 3
    }

    /// Turns a segment into a pack: the file gets a second name, which it keeps when the ring removes its own. `found`:
    /// known damage of the segment.
    fn adopt(
        &self,
        ring: &Ring,
        segment: &SegmentInfo,
        found: Option<Damage>,
        work: &mut Work,
    ) -> Result<(), CheckpointError> {
        let first = segment.first.get();
        let last = segment.last.get();
        let (id, needed) = self.begin_pack(first, last);
        let mut lost = Vec::new();
        let adopted = (|| {
            ring.link(segment.number, &pack_path(self.packs.dir(), id))?;
            let mut index = IndexWriter::create(&index_path(self.packs.dir(), id), id)?;
            let mut needed = needed.iter().map(|(lsn, _)| *lsn).peekable();
            let mut written = Ok(());
            ring.reader(segment.number)?.scan(&mut |located| {
                let lsn = located.header.lsn.get();
                // The damage of a head hides its record.
                lost.extend(std::iter::from_fn(|| needed.next_if(|needed| *needed < lsn)));
                if needed.next_if_eq(&lsn).is_some() {
                    written = index.push(IndexEntry::of(located.offset.into(), &located.header), located.head);
                }
                if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            written?;
            lost.extend(needed);
            let records = index.entries().len() as u64;
            index.finish()?;
            // This sync also makes the second name durable.
            files::sync_dir(self.packs.dir())?;
            Ok(PackRow { id, first, last, records, bytes: segment.segment_bytes })
        })();
        let row = self.packed(id, adopted)?;
        self.enter_pack(Some(row), last);
        let found = found.filter(|found| !found.lsn.is_some_and(|lsn| lost.contains(&lsn.get())));
        let lost = lost.iter().map(|lsn| damage(*lsn, "its head is damaged"));
        for damage in lost.chain(found) {
            work.damaged_packs.entry(id).or_default().extend(damage.lsn);
            self.config.events.tell(SpoolEvent::Damage(damage));
        }
        Ok(())
    }

    /// Copies the needed parts of `segments` into one pack, until it is full. Returns the number of packed segments.
    fn copy_segments(&self, ring: &Ring, segments: &[SegmentInfo], work: &mut Work) -> Result<usize, CheckpointError> {
        let first = segments[0].first.get();
        let last = segments[segments.len() - 1].last.get();
        let (id, needed) = self.begin_pack(first, last);
        let mut done = 0;
        let copied = (|| -> Result<_, CopyError> {
            let mut copying = Copying::new(self, id);
            for segment in segments {
                let from = needed.partition_point(|(lsn, _)| *lsn < segment.first.get());
                let to = needed.partition_point(|(lsn, _)| *lsn <= segment.last.get());
                let wanted = &needed[from..to];
                let reader = ring.reader(segment.number)?;
                self.each_of_segment(&reader, wanted, &mut |lsn, record| Ok(copying.copy(lsn, record)?))?;
                done += 1;
                if copying.bytes() >= self.config.pack_bytes || self.core.bell.is_end_wanted() {
                    break;
                }
            }
            Ok(copying.finish()?)
        })();
        let copied = match copied {
            Ok(row) => Ok(row),
            Err(CopyError::Io(error)) => Err(error),
            // Repeats the segments before this one, without it: damage is rare. The next round finds the damage again,
            // and adopts the segment.
            Err(CopyError::Damaged(_)) if done > 0 => {
                self.packs.remove(id);
                return self.copy_segments(ring, &segments[..done], work);
            }
            Err(CopyError::Damaged(damage)) => {
                self.packs.remove(id);
                self.adopt(ring, &segments[0], Some(damage), work)?;
                return Ok(1);
            }
        };
        let row = self.packed(id, copied)?;
        let last = segments[done - 1].last.get();
        // The segments are packed completely, also after the last copied batch: none of them is packed again.
        self.enter_pack(row.map(|row| PackRow { first, last, ..row }), last);
        Ok(done)
    }

    /// A new id, and the needs of the batches for the pack.
    fn begin_pack(&self, first: u64, last: u64) -> (u64, Vec<(u64, bool)>) {
        let mut state = self.core.state();
        state.next_pack += 1;
        (state.next_pack - 1, state.needed(first..=last))
    }

    /// Enters a finished pack into the state. `None`: no record was needed.
    fn enter_pack(&self, row: Option<PackRow>, packed_through: u64) {
        let mut state = self.core.state();
        state.packs.extend(row);
        state.packed_through = packed_through;
        state.is_changed_otherwise = true;
    }

    /// Handles the end of packing. After a failure the pack's files are removed if possible.
    fn packed<T>(&self, id: u64, outcome: io::Result<T>) -> Result<T, CheckpointError> {
        if outcome.is_err() {
            self.packs.remove(id);
        }
        if let Err(error) = &outcome {
            self.config.events.tell(SpoolEvent::PackingFailed { error: error.to_string() });
        }
        outcome.map_err(CheckpointError::io("cannot write a pack"))
    }

    /// Visits `wanted` records of a segment in the ring, in order, by one scan. A record that the scan misses is looked
    /// up separately, which yields the reason.
    fn each_of_segment(
        &self,
        reader: &SegmentReader,
        wanted: &[(u64, bool)],
        each: &mut dyn FnMut(u64, Record) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let mut left = wanted.iter().copied().peekable();
        let mut outcome = Ok(());
        reader.scan(&mut |located| {
            let lsn = located.header.lsn.get();
            outcome = (|| {
                while let Some((lost, is_body_needed)) = left.next_if(|(wanted, _)| *wanted < lsn) {
                    each(lost, self.record_of_ring(lost, is_body_needed)?)?;
                }
                match left.next_if(|(wanted, _)| *wanted == lsn) {
                    Some((_, is_body_needed)) => each(lsn, record_of_segment(reader, &located, is_body_needed)?),
                    None => Ok(()),
                }
            })();
            if outcome.is_ok() && left.peek().is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        left.try_for_each(|(lost, is_body_needed)| each(lost, self.record_of_ring(lost, is_body_needed)?))
    }

    fn record_of_ring(&self, lsn: u64, is_body_needed: bool) -> Result<Record, CopyError> {
        let head = self.store.read_head(Lsn::new(lsn)).map_err(|error| of_read(lsn, error))?;
        if is_body_needed {
            let body = self.store.read_body(Lsn::new(lsn), 0..u32::MAX).map_err(|error| of_read(lsn, error))?;
            Ok(Record { head, body })
        } else {
            Ok(Record { head: without_body(head), body: Bytes::new() })
        }
    }

    pub fn clean_packs(&self) -> Result<usize, CheckpointError> {
        let mut work = self.work.lock().expect("packing does not panic");
        self.not_poisoned()?;
        let before = self.core.state().packs.len();
        let mut less = self.drop_empty_packs();
        // Merging continues while it is worth it; the bound guards against a bug in that decision.
        for _ in 0..=before {
            if self.core.bell.is_end_wanted() {
                break;
            }
            let packs: Vec<(PackRow, u64)> = {
                let state = self.core.state();
                state.packs.iter().map(|pack| (*pack, state.needed_count(pack.first..=pack.last))).collect()
            };
            work.damaged_packs.retain(|id, lsns| {
                let has_row = packs.iter().any(|(row, _)| row.id == *id);
                has_row && lsns.iter().any(|lsn| self.core.state().is_any_needed(lsn.get()..=lsn.get()))
            });
            let mut sound = packs.split(|(row, _)| work.damaged_packs.contains_key(&row.id));
            let run = sound.find_map(|packs| Some(&packs[worth_merging(packs, self.config.pack_bytes)?]));
            let Some(run) = run else { break };
            let rows: Vec<PackRow> = run.iter().map(|(row, _)| *row).collect();
            less += self.merge(&rows, &mut work)?;
        }
        Ok(less)
    }

    fn drop_empty_packs(&self) -> usize {
        let mut state = self.core.state();
        let is_needed: Vec<bool> = state.packs.iter().map(|pack| state.is_any_needed(pack.first..=pack.last)).collect();
        let mut each = is_needed.into_iter();
        let (kept, empty): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.packs).into_iter().partition(|_| each.next().expect("one for each"));
        state.packs = kept;
        state.is_changed_otherwise |= !empty.is_empty();
        state.doomed.packs.extend(empty.iter().map(|pack| pack.id));
        empty.len()
    }

    /// Merges neighbouring packs: rewrites their needed batches as one pack. Returns the reduction of their number.
    fn merge(&self, rows: &[PackRow], work: &mut Work) -> Result<usize, CheckpointError> {
        let first = rows[0].first;
        let last = rows[rows.len() - 1].last;
        let (id, needed) = self.begin_pack(first, last);
        let mut at = 0;
        let merged = (|| -> Result<_, CopyError> {
            let mut copying = Copying::new(self, id);
            for row in rows {
                let is_of_row = |(lsn, _): &&(u64, bool)| (row.first..=row.last).contains(lsn);
                let lsn = needed.iter().find(is_of_row).map_or(row.first, |(lsn, _)| *lsn);
                let reader = self.packs.get(row.id).map_err(|error| of_pack(lsn, error))?;
                for &(lsn, is_body_needed) in needed.iter().filter(is_of_row) {
                    copying.copy(lsn, record_of_pack(&reader, lsn, is_body_needed)?)?;
                }
                at += 1;
            }
            Ok(copying.finish()?)
        })();
        let merged = match merged {
            Ok(row) => Ok(row),
            Err(CopyError::Io(error)) => Err(error),
            Err(CopyError::Damaged(damage)) => {
                self.packs.remove(id);
                work.damaged_packs.entry(rows[at].id).or_default().extend(damage.lsn);
                self.config.events.tell(SpoolEvent::Damage(damage));
                return Ok(0);
            }
        };
        let row = self.packed(id, merged)?;
        let mut state = self.core.state();
        let at = state.packs.iter().position(|pack| pack.id == rows[0].id).expect("only this thread changes packs");
        let new = row.map(|row| PackRow { first, last, ..row });
        state.packs.splice(at..at + rows.len(), new);
        state.doomed.packs.extend(rows.iter().map(|row| row.id));
        state.is_changed_otherwise = true;
        Ok(rows.len() - usize::from(new.is_some()))
    }
}

/// A pack being filled with copied records, at its pace.
struct Copying<'a> {
    shared: &'a Shared,
    id: u64,
    /// `None` while nothing was copied: an empty pack gets no file.
    writer: Option<PackWriter>,
    pace: Pace<'a>,
}

impl<'a> Copying<'a> {
    fn new(shared: &'a Shared, id: u64) -> Self {
        Copying { shared, id, writer: None, pace: Pace::new(shared) }
    }

    fn copy(&mut self, lsn: u64, record: Record) -> io::Result<()> {
        let shared = self.shared;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            empty => empty.insert(PackWriter::create(shared.packs.dir(), self.id)?),
        };
        writer.append(lsn, &record.head, Some(&record.body))?;
        self.pace.step(writer.bytes());
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, PackWriter::bytes)
    }

    /// Makes the pack durable. `None`: nothing was copied.
    fn finish(self) -> io::Result<Option<PackRow>> {
        let Some(writer) = self.writer else { return Ok(None) };
        let records = writer.records();
        let bytes = writer.bytes();
        let first = writer.first();
        let last = writer.last();
        writer.finish()?;
        Ok(Some(PackRow { id: self.id, first, last, records, bytes }))
    }
}

fn record_of_segment(reader: &SegmentReader, located: &Located<'_>, is_body_needed: bool) -> Result<Record, CopyError> {
    let head = Bytes::copy_from_slice(located.head);
    if !is_body_needed {
        return Ok(Record { head: without_body(head), body: Bytes::new() });
    }
    let body = reader.body(located.offset, &located.header, 0..u32::MAX);
    Ok(Record { head, body: body.map_err(|error| of_read(located.header.lsn.get(), error.into()))? })
}

fn record_of_pack(reader: &PackReader, lsn: u64, is_body_needed: bool) -> Result<Record, CopyError> {
    let why = |error| of_pack(lsn, error);
    let entry = reader.find(lsn).map_err(why)?.ok_or(PackError::Damaged("its pack does not have it")).map_err(why)?;
    let head = reader.head(&entry).map_err(why)?;
    if is_body_needed {
        Ok(Record { head, body: reader.body(&entry).map_err(why)? })
    } else {
        Ok(Record { head: without_body(head), body: Bytes::new() })
    }
}

/// The head of a batch without its body.
fn without_body(head: Bytes) -> Bytes {
    match Head::decode(head.clone()) {
        Some(decoded) => decoded.without_body().encode().into(),
        None => head,
    }
}

/// Neighbouring packs worth merging: packs with less than 30 % needed, together with small ones; or many small ones.
fn worth_merging(packs: &[(PackRow, u64)], pack_bytes: u64) -> Option<std::ops::Range<usize>> {
    let bytes = |&(row, needed): &(PackRow, u64)| row.bytes * needed / row.records.max(1);
    let is_poor = |&(row, needed): &(PackRow, u64)| needed * 10 < row.records * 3;
    let is_small = |pack: &(PackRow, u64)| bytes(pack) < pack_bytes / SMALL_PACKS as u64;
    let mut start = 0;
    while start < packs.len() {
        let mut end = start;
        let mut sum = 0;
        while let Some(pack) = packs.get(end).filter(|pack| is_poor(pack) || is_small(pack)) {
            sum += bytes(pack);
            if end > start && sum > pack_bytes {
                break;
            }
            end += 1;
        }
        let run = &packs[start..end];
        if run.iter().any(is_poor) || run.len() >= SMALL_PACKS {
            return Some(start..end);
        }
        start = end.max(start + 1);
    }
    None
}

/// Number of adjacent small packs that are merged at once. Each record is rewritten once whenever the size of its pack
/// grows by this factor.
const SMALL_PACKS: usize = 8;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use posthaste_ring::Config as RingConfig;
    use tempfile::TempDir;

    use super::*;
    use crate::core::Wanted;
    use crate::{Batch, Body, Config, Entry, FileSpool, Released, Spool, StreamId};

    fn packs(of: &[(u64, u64, u64)]) -> Vec<(PackRow, u64)> {
        let row = |(n, &(bytes, records, needed)): (usize, &(u64, u64, u64))| {
            let first = n as u64 * 100;
            (PackRow { id: n as u64, first, last: first + 99, records, bytes }, needed)
        };
        of.iter().enumerate().map(row).collect()
    }

    #[test]
    fn sparse_packs_are_merged_with_neighbours_and_small_ones() {
        let check = |of: &[(u64, u64, u64)], expected| assert_eq!(worth_merging(&packs(of), 800), expected);
        check(&[], None);
        check(&[(800, 100, 30)], None);
        check(&[(800, 100, 29)], Some(0..1));
        check(&[(800, 100, 90), (90, 9, 9), (800, 100, 20), (800, 100, 50)], Some(1..3));
        check(&[(800, 100, 29); 5], Some(0..3));
        check(&[(90, 9, 9); SMALL_PACKS - 1], None);
        check(&[(90, 9, 9); SMALL_PACKS], Some(0..SMALL_PACKS));
        check(&[(2000, 100, 29)], Some(0..1));
    }

    #[test]
    fn merging_comes_to_an_end() {
        let mut all = packs(&[(800, 100, 7); 100]);
        for _ in 0..100 {
            let Some(run) = worth_merging(&all, 800) else { return };
            let needed = all[run.clone()].iter().map(|(_, needed)| needed).sum();
            let bytes = all[run.clone()].iter().map(|(row, needed)| row.bytes * needed / row.records).sum();
            let first = all[run.start].0;
            all.splice(run, [(PackRow { records: needed, bytes, ..first }, needed)]);
        }
        panic!("{all:?}");
    }

    /// A pause that is wrong would be this long.
    const LONG: Duration = Duration::from_secs(60);

    /// A spool with a ring of `segments`, one stream, and no automatic packing.
    fn spool_of(segments: usize) -> (TempDir, FileSpool, StreamId) {
        let dir = tempfile::tempdir().unwrap();
        let ring = RingConfig { segment_bytes: 64 << 10, max_segments: segments, ..RingConfig::default() };
        let config = Config { ring, keeper: false, scrub_bytes_per_sec: 0, ..Config::default() };
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        let stream = spool.stream("one").unwrap();
        (dir, spool, stream)
    }

    fn commit(spool: &FileSpool, stream: StreamId) -> Lsn {
        let (tell, told) = std::sync::mpsc::channel();
        let entry = Entry { stream, needs_body: true, payload: Bytes::new() };
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![vec![7; 4000].into()]) };
        spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap()
    }

    #[test]
    fn copying_pauses_during_commits_unless_room_is_short() {
        let (_dir, spool, stream) = spool_of(8);
        // How long it takes to copy so many bytes when the piece took that much longer and the pause may be so long.
        let copy = |bytes: usize, has_commit: bool, took: Duration, pause_max: Duration| {
            let mut copying = Copying::new(&spool.shared, 1);
            copying.pace.behind(took, pause_max);
            if has_commit {
                commit(&spool, stream);
            }
            // Room that is wanted would end a pause, too.
            spool.shared.core.bell.wait(Duration::ZERO);
            let begun = std::time::Instant::now();
            copying.copy(1, Record { head: Bytes::new(), body: vec![7; bytes].into() }).unwrap();
            let took = begun.elapsed();
            copying.finish().unwrap();
            spool.shared.packs.remove(1);
            took
        };
        const PIECE: usize = 1 << 20;
        let pause = Duration::from_millis(200);
        assert!(copy(PIECE, true, pause, LONG) >= pause, "as long as the piece took");
        assert!(copy(PIECE, true, Duration::ZERO, LONG) < LONG, "no longer than the piece took");
        assert!(copy(PIECE, true, LONG, pause) < LONG, "no longer than it may be");
        assert!(copy(PIECE / 2, true, LONG, LONG) < LONG, "the piece is not full yet");
        assert!(copy(PIECE, false, LONG, LONG) < LONG, "nobody commits");
        while spool.file_stats().ring.segments_in_service < 7 {
            commit(&spool, stream);
        }
        assert!(copy(PIECE, true, LONG, LONG) < LONG, "seven eighths of the ring are in use");
    }

    #[test]
    fn room_or_the_end_that_is_wanted_ends_a_pause() {
        for wanted in [Wanted::Room, Wanted::Stop] {
            let (_dir, spool, stream) = spool_of(8);
            let mut copying = Copying::new(&spool.shared, 1);
            copying.pace.behind(LONG, LONG);
            commit(&spool, stream);
            spool.shared.core.bell.ring(wanted);
            let begun = std::time::Instant::now();
            copying.copy(1, Record { head: Bytes::new(), body: vec![7; 1 << 20].into() }).unwrap();
            assert!(begun.elapsed() < LONG, "{wanted:?}");
        }
    }

    #[test]
    fn packing_begins_at_five_eighths_and_frees_every_four_segments() {
        let (_dir, spool, stream) = spool_of(32);
        let fill = |segments: usize| {
            while spool.file_stats().ring.segments_in_service < segments {
                commit(&spool, stream);
            }
        };
        // Checkpoints that the keeper makes now.
        let keep = || {
            let before = spool.stats().checkpoints;
            spool.shared.keep(false, false).unwrap();
            spool.stats().checkpoints - before
        };
        fill(19);
        assert_eq!((keep(), spool.file_stats().packs), (0, 0));
        fill(20);
        assert_eq!((keep(), spool.file_stats().packs), (1, 4));
        assert_eq!(spool.file_stats().ring.segments_in_service, 16);
        fill(25);
        // One more, since so many small packs are merged.
        assert_eq!(keep(), 3 + 1);
        assert_eq!(spool.file_stats().ring.segments_in_service, 16);
    }

    #[test]
    fn a_segment_is_packed_once_also_when_its_last_batch_is_not() {
        let (dir, spool, stream) = spool_of(8);
        let mut lsns = Vec::new();
        while spool.file_stats().ring.segments_in_service < 3 {
            lsns.push(commit(&spool, stream));
        }
        let last = Lsn::from(spool.shared.store.ring().unwrap().segments()[0].last);
        // So few that they are copied, and not the last one.
        let is_released = |lsn: &Lsn| lsn.get().is_multiple_of(2) || *lsn == last;
        let also = lsns.iter().copied().filter(is_released).collect();
        spool.checkpoint().unwrap();
        spool.advance(stream, lsns[lsns.len() - 1], None, Released { below: Lsn::ZERO, also });
        let config = spool.shared.config.clone();
        assert_eq!((spool.pack_oldest(1).unwrap(), spool.file_stats().packs), (1, 1));
        spool.checkpoint().unwrap();
        spool.abandon();
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        while spool.file_stats().ring.segments_in_service < 4 {
            commit(&spool, stream);
        }
        assert!(spool.pack_oldest(2).unwrap() > 0);
        let packs = spool.shared.core.state().packs.clone();
        assert!(packs.windows(2).all(|two| two[0].last < two[1].first), "{packs:?}");
        spool.checkpoint().unwrap();
        spool.clean_packs().unwrap();
        assert!(lsns.iter().filter(|lsn| !is_released(lsn)).all(|lsn| spool.read(*lsn, 0..4000).is_ok()));
    }

    #[test]
    fn the_end_waits_for_one_segment_and_not_for_all() {
        // Adopted as they are, or copied, by how many bodies are needed.
        for released in [0, 1] {
            let (_dir, spool, stream) = spool_of(8);
            let mut lsns = Vec::new();
            while spool.file_stats().ring.segments_in_service < 5 {
                lsns.push(commit(&spool, stream));
            }
            let also = lsns.iter().copied().filter(|lsn| lsn.get() % 2 < released).collect();
            spool.advance(stream, lsns[lsns.len() - 1], None, Released { below: Lsn::ZERO, also });
            let pack = || spool.shared.pack_oldest(3).unwrap();
            spool.shared.core.bell.ring(Wanted::Stop);
            assert_eq!(pack(), 1, "{released}");
            assert_eq!(spool.shared.core.bell.wait(Duration::ZERO), Some(Wanted::Stop));
            assert_eq!(spool.file_stats().packs, 1);
            let needed = lsns.iter().filter(|lsn| spool.read(**lsn, 0..4000).is_ok()).count();
            assert_eq!(needed as u64, spool.streams()[0].bodies);
        }
    }
}
