//! Recovery of a ring: finds its records and its damage.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::{OnRecord, Proof, ROSTER, SEEN_GAP};
use crate::damage::{Read, RingDamage};
use crate::file::{SegmentFile, Source, Staging};
use crate::judge::{Expected, epochs, judge};
use crate::layout::{BLOCK, FIRST_RECORD, Lsn, RECORD_HEADER, SegmentHeader};
use crate::pool::Segment;
use crate::roster::{Entered, Roster};
use crate::scan::{Gap, LSN_GAP, SEGMENT_RECORDS_MAX, Scan, scan};
use crate::storage::{MakeError, SET_ASIDE, Storage};
use crate::window::Window;

/// The findings of an opening.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recovery {
    /// Damaged places. Those without `promised` are remnants of an unfinished write after a power cut, or cost no
    /// record.
    pub damage: Vec<RingDamage>,
    /// Records in service.
    pub records: u64,
    /// The last record found; zero without any.
    pub last: Lsn,
    /// Acknowledged records up to this LSN may be lost; zero if none. All new records come after it.
    pub lost_through: Lsn,
    /// Bytes of segments that were read.
    pub bytes_read: u64,
    /// The number of this opening; grows with each.
    pub epoch: u64,
}

/// The content of the directory.
#[derive(Default)]
pub(crate) struct Contents {
    pub in_service: BTreeMap<u64, Read>,
    pub free: Vec<Segment>,
    /// Files of zeros, without a segment header.
    pub unused: Vec<String>,
    pub damage: Vec<RingDamage>,
    /// The last epoch, and its last record up to which everything was found, apart from damage reported as a broken
    /// promise.
    pub found: Proof,
    pub next_lsn: u64,
    /// Segments that are missing and were not given up.
    pub missing: Vec<u64>,
    unused_numbers: Vec<u64>,
    /// Files that may be some of the missing ones, with the error of each.
    pub unreadable: Vec<(String, &'static str)>,
    pub lost_through: Lsn,
    pub next_number: u64,
    pub max_epoch: u64,
    pub bytes_read: u64,
    pub names: Vec<String>,
    // By segment: the blocks whose records no later record calls durable.
    unproven: Vec<(u64, Range<u64>)>,
}

/// Reads the segments still in use. Changes nothing.
pub(crate) fn read_all(storage: &Storage, on_record: OnRecord, roster: Option<&Entered>) -> io::Result<Contents> {
    let low = on_record.low;
    let mut out = Contents { names: storage.list()?, next_number: low.max(1), ..Contents::default() };
    let segments = out.read_headers(storage)?;
    // The segments of the last one may be missing.
    let known = [on_record.proof.epoch, roster.map_or(0, |roster| roster.epoch)].into_iter();
    out.max_epoch = segments.iter().map(|(segment, _)| segment.header.epoch).chain(known).max().unwrap_or_default();
    let (free, segments): (Vec<_>, Vec<_>) = segments.into_iter().partition(|(segment, _)| segment.header.number < low);
    out.free.extend(free.into_iter().map(|(segment, _)| segment));
    let scans = scan_all(&segments)?;
    // Prepared, but never written to.
    let mut ready = BTreeSet::new();
    for ((segment, copies), scan) in segments.into_iter().zip(scans) {
        out.bytes_read += scan.bytes_read;
        if !scan.has_any() {
            // Earlier openings have left such numbers to be used again.
            if roster.is_none_or(|roster| roster.epoch == segment.header.epoch) {
                ready.insert(segment.header.number);
            }
            out.free.push(segment);
            continue;
        }
        if copies == 1 {
            // Both were durable before the first record was written.
            let segment = segment.name.clone();
            let what = "one copy of the segment header is damaged, the other serves";
            out.damage.push(RingDamage { segment, offset: 0, lsns: None, promised: false, what });
        }
        let is_cut = segment.file.len()? < segment.header.bytes;
        out.enter(Read { segment, scan, is_cut });
    }
    let gone = out.find_missing(low.max(1), &ready, roster);
    let mut epochs = epochs(&out.in_service, on_record.proof);
    for read in out.in_service.values_mut() {
        read.check_bodies_behind(epochs[&read.segment.header.epoch].mark)?;
    }
    out.find_next_lsn(on_record, gone.len());
    let expected = Expected { missing: &gone, on_record, end: Lsn::new(out.next_lsn - 1) };
    let (damage, found) = judge(&out.in_service, &mut epochs, &expected);
    let through = |damage: &RingDamage| damage.lsns.map_or(expected.end, |(_, last)| last);
    out.lost_through = damage.iter().filter(|damage| damage.promised).map(through).max().unwrap_or_default();
    out.damage.extend(damage);
    let epoch = epochs.keys().next_back().copied().unwrap_or_default();
    out.found = Proof { epoch, through: found };
    let mark = out.in_service.values().map(|read| read.scan.mark.max(read.scan.found)).max().unwrap_or_default();
    for (number, read) in &out.in_service {
        out.unproven.extend(read.blocks_behind(mark)?.map(|blocks| (*number, blocks)));
    }
    Ok(out)
}

/// The damage of a ring, found without opening it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Examined {
    /// Damaged places: see [`Recovery::damage`].
    pub damage: Vec<RingDamage>,
    /// Missing segments, for which an opening fails: see [`RingOpenError::Missing`](crate::RingOpenError::Missing).
    pub missing: Vec<u64>,
}

/// Looks for damage in the ring in `dir`, which another process may have open. Changes nothing. `roster`: see [`Config::roster`](crate::Config::roster).
///
/// # Errors
/// An error of reading. A missing directory counts as empty.
pub fn examine(dir: &Path, roster: Option<&Path>, on_record: OnRecord) -> io::Result<Examined> {
    let roster = roster.map_or_else(|| dir.join(ROSTER), Path::to_owned);
    let contents = read_all(&Storage::to_read(dir), on_record, Entered::read(&roster)?.as_ref())?;
    Ok(Examined { damage: contents.damage, missing: contents.missing })
}

/// Scans segments, several at a time: a single reader keeps neither the device nor the processors busy.
fn scan_all(segments: &[(Segment, usize)]) -> io::Result<Vec<Scan>> {
    let next = AtomicUsize::new(0);
    let scan_some = || {
        let mut some = Vec::new();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some((segment, _)) = segments.get(nth) else { return some };
            let range = FIRST_RECORD as u64..u64::MAX;
            let from_disk = (&*segment.file, Source::Disk);
            some.push((nth, scan(from_disk, &segment.header, range, &mut |_| ControlFlow::Continue(()))));
        }
    };
    let mut scans = std::thread::scope(|scope| {
        let others = 1..segments.len().min(READERS);
        // If no more threads can be started, this one does all the work.
        let others: Vec<_> =
            others.filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, scan_some).ok()).collect();
        let mut scans = scan_some();
        others.into_iter().for_each(|other| scans.extend(other.join().expect("a scan does not panic")));
        scans
    });
    scans.sort_by_key(|(nth, _)| *nth);
    scans.into_iter().map(|(_, scan)| scan).collect()
}

impl Contents {
    /// The segments with a header, and the number of intact copies of each, sorted by number and epoch.
    fn read_headers(&mut self, storage: &Storage) -> io::Result<Vec<(Segment, usize)>> {
        let mut segments = Vec::new();
        for name in &self.names {
            match read_header(storage, name)? {
                Header::Whole(file, header, copies) => {
                    segments.push((Segment { name: name.clone(), file, header }, copies));
                }
                Header::NeverUsed => self.unused.push(name.clone()),
                Header::Damaged(what) => self.unreadable.push((name.clone(), what)),
            }
        }
        segments.sort_by_key(|(segment, _)| (segment.header.number, segment.header.epoch));
        Ok(segments)
    }

    /// Missing segments from `low` on, including those that were given up.
    fn find_missing(&mut self, low: u64, ready: &BTreeSet<u64>, roster: Option<&Entered>) -> Vec<u64> {
        // Without a roster the numbers alone tell, which have no gaps.
        let high = roster.map_or(self.next_number, |roster| roster.high).max(self.next_number);
        let is_gone = |number: &u64| !self.in_service.contains_key(number) && !ready.contains(number);
        let gone: Vec<u64> = (low..high).filter(is_gone).collect();
        let is_known = |number: &u64| roster.is_some_and(|roster| roster.is_given_up(*number));
        self.missing = gone.iter().copied().filter(|number| !is_known(number)).collect();
        // Each unreadable file may have been one of the missing segments, including one that nothing else refers to.
        let is_any_unknown = roster.is_none() || !self.missing.is_empty();
        for (name, what) in &self.unreadable {
            let segment = name.clone();
            self.damage.push(RingDamage { segment, offset: 0, lsns: None, promised: is_any_unknown, what });
        }
        if roster.is_none() {
            self.next_number += self.unreadable.len() as u64;
        }
        self.next_number = self.next_number.max(gone.last().map_or(0, |last| last + 1));
        // Prepared segments before a missing one are reused under other numbers.
        self.unused_numbers = ready.iter().copied().filter(|number| *number < self.next_number).collect();
        gone
    }

    /// A torn record may have had a higher number than any found one, and so may records of missing segments.
    fn find_next_lsn(&mut self, on_record: OnRecord, gone: usize) {
        let lsns = |read: &Read| read.scan.last.max(read.scan.mark).max(read.scan.found);
        let found = self.in_service.values().map(lsns).max().unwrap_or_default();
        let known = found.max(on_record.known).max(on_record.proof.through);
        let above = LSN_GAP + SEGMENT_RECORDS_MAX * gone as u64;
        let next = known.get() + 1 + above;
        let seen = on_record.seen.get();
        self.next_lsn = if next > seen { next } else { seen + SEEN_GAP };
    }

    /// Writes the segments in service and the newly given-up ones into the roster, before any other file is removed.
    pub fn bring_up_to_date(&self, roster: &mut Roster, low: u64, is_there: bool) -> io::Result<()> {
        let mut entered = Entered { high: self.next_number, ..roster.entered.clone() };
        entered.give_up(&[&self.missing[..], &self.unused_numbers].concat(), low);
        // The first one is written with the first segment: opening takes no space.
        if entered == roster.entered || !is_there && self.missing.is_empty() {
            roster.entered = entered;
            return Ok(());
        }
        roster.write(entered).map_err(|(MakeError::Sync(error) | MakeError::Other(error))| error)
    }

    /// Takes a segment with records into service.
    fn enter(&mut self, read: Read) {
        let number = read.segment.header.number;
        self.next_number = self.next_number.max(number + 1);
        // A segment that holds nothing gives its number to the next one: so of two one was damaged. They come in the order of their epochs.
        if let Some(older) = self.in_service.insert(number, read) {
            let what = "a later segment has the same number";
            let lsns = older.scan.lsns();
            self.damage.push(RingDamage { segment: older.segment.name, offset: 0, lsns, promised: true, what });
        }
    }

    /// Saves the bytes of damaged promised records, for examination.
    pub fn set_aside(&self, storage: &Storage) {
        for read in self.in_service.values() {
            for gap in &read.scan.gaps {
                let is_promised = |damage: &&RingDamage| {
                    damage.promised && damage.segment == read.segment.name && damage.offset == gap.range.start
                };
                if self.damage.iter().find(is_promised).is_none() {
                    continue;
                }
                let mut bytes = vec![0; (gap.range.end - gap.range.start) as usize];
                let name = format!("{}-{:x}{SET_ASIDE}", read.segment.name, gap.range.start);
                // A failure to keep them must not prevent the recovery of the rest.
                let _ = Window::new(&read.segment.file, Source::Disk, 0)
                    .and_then(|mut window| Ok(window.get(gap.range.start, bytes.len())?.to_vec()))
                    .and_then(|read| {
                        bytes.truncate(read.len());
                        storage.set_aside(&name, &read)
                    });
            }
        }
    }

    /// Makes the found records durable before they are acted on.
    ///
    /// After a kill they may be in the page cache only; after a failed sync they may look clean there, and then no sync
    /// writes them. So records that may not be durable are written once more, the same bytes in the same place.
    pub fn make_durable(&self) -> io::Result<()> {
        for (number, range) in &self.unproven {
            let file = &self.in_service[number].segment.file;
            let mut buffer = Staging::default();
            let bytes = buffer.aligned((range.end - range.start) as usize);
            let (len, unreadable) = file.read_blocks(Source::Disk, bytes, range.start)?;
            let end = range.start + len as u64;
            // No whole record has a part in what cannot be read, so that is left alone.
            let mut at = range.start;
            for skipped in unreadable.into_iter().chain(std::iter::once(end..end)) {
                if at < skipped.start {
                    let whole = &bytes[(at - range.start) as usize..(skipped.start - range.start) as usize];
                    file.write_all_at(&mut [IoSlice::new(whole)], at)?;
                }
                at = skipped.end;
            }
        }
        self.in_service.values().try_for_each(|read| read.segment.file.sync())
    }
}

impl Read {
    /// Shows the records with a whole head after `mark`.
    fn behind(
        &self,
        mark: Lsn,
        visit: &mut dyn FnMut(u32, &crate::layout::RecordHeader) -> ControlFlow<()>,
    ) -> io::Result<()> {
        if self.scan.last <= mark || self.scan.first == Lsn::ZERO {
            return Ok(());
        }
        let from = self.scan.anchor(mark.max(self.scan.first)).expect("the first record is an anchor");
        let range = u64::from(from)..self.scan.end;
        let visit = &mut |located: crate::scan::Located<'_>| {
            if located.header.lsn > mark { visit(located.offset, &located.header) } else { ControlFlow::Continue(()) }
        };
        scan((&self.segment.file, Source::Disk), &self.segment.header, range, visit).map(drop)
    }

    /// Reads the bodies of records without proof of durability: a cut may have torn them, and then they do not count.
    fn check_bodies_behind(&mut self, mark: Lsn) -> io::Result<()> {
        let mut torn = Vec::new();
        let mut whole = self.scan.whole.min(mark);
        let mut window = Window::new(&self.segment.file, Source::Disk, READ_AT_ONCE)?;
        let mut failed = None;
        self.behind(mark, &mut |offset, header| {
            let start = u64::from(offset) + RECORD_HEADER as u64 + u64::from(header.head_len);
            let body = window.get(start, header.body_len as usize);
            match body.map(|body| crc32c::crc32c(body) == header.body_crc) {
                Ok(true) if window.could_read(start..start + u64::from(header.body_len)) => whole = header.lsn,
                Ok(_) => torn.push((offset, *header)),
                Err(error) => failed = Some(error),
            }
            if failed.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        failed.map_or(Ok(()), Err)?;
        self.scan.whole = whole;
        self.scan.records -= torn.len() as u64;
        for (offset, header) in torn {
            let start = u64::from(offset);
            let lsns = Some((header.lsn, header.lsn));
            let what = "body checksum does not match";
            self.scan.gaps.push(Gap { range: start..start + header.span(), lsns, what });
            self.scan.torn.push(header.lsn);
        }
        // Segments without LSNs come first, in the order of the scan.
        self.scan.gaps.sort_by_key(|gap| (gap.lsns.is_some(), gap.range.start));
        Ok(())
    }

    /// Blocks from the first record after `mark` on.
    fn blocks_behind(&self, mark: Lsn) -> io::Result<Option<Range<u64>>> {
        let mut first = None;
        self.behind(mark, &mut |offset, _| {
            first = Some(u64::from(offset));
            ControlFlow::Break(())
        })?;
        let block = BLOCK as u64;
        Ok(first.map(|start| start / block * block..self.scan.end.next_multiple_of(block)))
    }
}

enum Header {
    /// A readable segment, with the number of good copies of its header.
    Whole(Arc<SegmentFile>, SegmentHeader, usize),
    NeverUsed,
    Damaged(&'static str),
}

/// A segment gets its name when it is full of durable zeros, and each copy of its header is written as a whole. So a
/// shorter file, or one with other content and no header, was damaged later.
fn read_header(storage: &Storage, name: &str) -> io::Result<Header> {
    let file = storage.segment(name)?;
    let mut window = Window::new(&file, Source::Disk, FIRST_RECORD)?;
    // If a segment is cut off within its first record, nothing shows that it had one.
    if window.file_len() < (FIRST_RECORD + BLOCK) as u64 {
        return Ok(Header::Damaged("the file was cut off at its header"));
    }
    let blocks = window.get(0, FIRST_RECORD)?;
    if let Some(header) = SegmentHeader::decode_blocks(blocks) {
        let copies = SegmentHeader::decode_copies(blocks).iter().flatten().count();
        return Ok(Header::Whole(file.clone(), header, copies));
    }
    window.set_ahead(READ_AT_ONCE);
    let mut at = 0;
    while at < window.file_len() {
        let len = window.get(at, READ_AT_ONCE)?.len();
        if window.get(at, len)?.iter().any(|&byte| byte != 0) || !window.unreadable.is_empty() {
            return Ok(Header::Damaged("both copies of the segment header are damaged"));
        }
        at += len as u64;
    }
    Ok(Header::NeverUsed)
}

const READ_AT_ONCE: usize = 1 << 20;
/// Segments read at a time.
const READERS: usize = 4;
