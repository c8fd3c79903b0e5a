//! Reading a journal back: which records are whole, which were finished, and what was damaged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use crate::judge::judge;
use crate::layout::{
    ALIGN, BLOCK, Checkpoint, KIND_CHECKPOINT, KIND_USER, RECORD_HEADER, RecordHeader, SegmentHeader, record_span,
};
use crate::pool::Segment;
use crate::storage::{SegmentFile, Storage};

/// A place in the log where records should be and are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Name of the segment file; empty if a whole one must be missing.
    pub segment: String,
    /// Byte offset in the file where the first damaged byte may lie: everything before it is whole.
    pub offset: u64,
    /// Sequence numbers of the records that are lost, first and last; `None` when the damage does not say.
    pub seqs: Option<(u64, u64)>,
    /// True when a later record proves that these had been made durable: promised bytes were damaged afterwards.
    /// False for a torn tail, which nobody was told about.
    pub promised: bool,
    /// What is wrong there.
    pub what: &'static str,
}

/// One record that [`scan`] found whole.
#[derive(Debug, Clone, Copy)]
pub struct Located {
    /// The record's header.
    pub header: RecordHeader,
    /// Byte offset of the payload in the segment file.
    pub payload_offset: u64,
}

/// What one segment holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Whole records in the order of the log.
    pub records: Vec<Located>,
    /// Byte ranges that should hold a record and do not, each with the sequence numbers missing there if known.
    pub gaps: Vec<Gap>,
    /// Offset behind the last whole record.
    pub end: u64,
}

impl Scan {
    /// Whether it holds a record, or the remains of one.
    pub(crate) fn has_any(&self) -> bool {
        !self.records.is_empty() || !self.gaps.is_empty()
    }

    /// Adds what the disk cannot read, and the scan took for free space.
    fn add_unreadable(&mut self, blocks: Vec<Range<u64>>) {
        let next = self.records.last().map(|record| record.header.seq + 1);
        for range in blocks.into_iter().filter(|range| range.end > self.end) {
            if self.gaps.iter().all(|gap| gap.range.1 <= range.start || range.end <= gap.range.0) {
                let seqs = next.map(|seq| (seq, seq));
                self.gaps.push(Gap { range: (range.start, range.end), seqs, what: "cannot be read" });
            }
        }
    }

    /// The blocks from the first record behind `mark` on.
    fn behind(&self, mark: u64) -> Option<Range<u64>> {
        let first = self.records.iter().find(|record| record.header.seq > mark)?;
        let start = first.payload_offset - RECORD_HEADER as u64;
        let block = BLOCK as u64;
        Some(start / block * block..self.end.next_multiple_of(block))
    }
}

/// Bytes in the midst of a segment that hold no whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First and one past the last byte.
    pub range: (u64, u64),
    /// Sequence numbers missing, first and last; `None` when the records around do not tell.
    pub seqs: Option<(u64, u64)>,
    /// What is wrong there.
    pub what: &'static str,
}

/// Finds every whole record in a segment's bytes, however damaged the rest may be.
///
/// A damaged header hides the length of its record, so the next record is sought at every aligned offset; the random
/// tag of the segment's use makes a false find as good as impossible, even if a message was written to look like one.
pub fn scan(segment: &SegmentHeader, bytes: &[u8]) -> Scan {
    let mut found = Scan { end: BLOCK as u64, ..Scan::default() };
    let mut at = BLOCK;
    let mut previous: Option<u64> = None;
    while let Some(next) = next_header(segment, bytes, at) {
        let header = RecordHeader::decode(&bytes[next..], segment).expect("next_header decoded it");
        let gap = |seqs, what| Gap { range: (found.end, next as u64), seqs, what };
        match previous {
            Some(p) if header.seq > p + 1 => {
                found.gaps.push(gap(Some((p + 1, header.seq - 1)), "record header damaged or missing"));
            }
            // The first record of a segment starts its first commit. If it does not, what stood before it is lost.
            None if next != BLOCK => found.gaps.push(gap(None, "first record header damaged")),
            _ => {}
        }
        previous = Some(header.seq);
        let start = next + RECORD_HEADER;
        let end = start + header.len as usize;
        match bytes.get(start..end) {
            Some(payload) if crc32c::crc32c(payload) == header.payload_crc => {
                found.records.push(Located { header, payload_offset: start as u64 });
            }
            _ => found.gaps.push(Gap {
                range: (next as u64, end.min(bytes.len()) as u64),
                seqs: Some((header.seq, header.seq)),
                what: "payload checksum does not match",
            }),
        }
        at = (next + record_span(header.len as usize)).min(bytes.len());
        found.end = at as u64;
    }
    found.gaps.extend(unfinished(segment, bytes, at, previous));
    found
}

/// The remains of a record behind the last whole one, if there are any: a header where one should be that has the
/// segment's tag or the next number, but not both or not the right checksum.
fn unfinished(segment: &SegmentHeader, bytes: &[u8], end: usize, previous: Option<u64>) -> Option<Gap> {
    let next = previous.map(|seq| seq + 1);
    let looks_like_one = |at: &usize| {
        let word =
            |at: usize| bytes.get(at..at + 8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        word(*at) == Some(segment.salt) || (next.is_some() && word(*at + 8) == next)
    };
    let at = [end, end.next_multiple_of(BLOCK)].into_iter().find(looks_like_one)?;
    let to = bytes.iter().rposition(|&byte| byte != 0).map_or(at, |last| last + 1).max(at);
    Some(Gap { range: (at as u64, to as u64), seqs: next.map(|seq| (seq, seq)), what: "record header damaged" })
}

fn next_header(segment: &SegmentHeader, bytes: &[u8], from: usize) -> Option<usize> {
    let tag = segment.salt.to_le_bytes();
    (from..bytes.len().saturating_sub(RECORD_HEADER - 1))
        .step_by(ALIGN)
        .find(|&at| bytes[at..at + 8] == tag && RecordHeader::decode(&bytes[at..], segment).is_some())
}

/// A live record's place.
#[derive(Clone)]
pub(crate) struct Live {
    pub segment: u64,
    pub offset: u64,
    pub len: u32,
    pub kind: u8,
    pub version: u16,
    pub payload_crc: u32,
    pub seq: u64,
}

impl Live {
    pub fn read(&self, file: &dyn SegmentFile) -> io::Result<Vec<u8>> {
        let mut payload = vec![0u8; self.len as usize];
        file.read_exact_at(&mut payload, self.offset)?;
        if crc32c::crc32c(&payload) != self.payload_crc {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "payload checksum does not match"));
        }
        Ok(payload)
    }
}

/// A segment with records in it.
pub(crate) struct InService {
    pub segment: Segment,
    pub max_seq: u64,
}

/// A note that was appended after the last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The note's own sequence number.
    pub seq: u64,
    /// Its kind, as given to `append_note`.
    pub kind: u8,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Everything that a directory of segments says.
pub(crate) struct Contents {
    pub live: HashMap<u64, Live>,
    pub notes: Vec<Note>,
    pub segments: BTreeMap<u64, InService>,
    pub free: Vec<String>,
    pub damage: Vec<Damage>,
    pub max_seq: u64,
    /// Everything up to this sequence number was found, but for damage that was reported as a broken promise.
    pub found: u64,
    pub max_number: u64,
    pub max_epoch: u64,
    pub bytes_read: u64,
    pub names: Vec<String>,
    pub checkpoint: Option<Checkpoint>,
    // By segment: the blocks whose records no later record calls durable.
    unproven: Vec<(u64, Range<u64>)>,
}

impl Contents {
    /// Makes sure that what was found is not lost afterwards: it will be acted on.
    ///
    /// After a kill it may lie in the page cache alone; after a sync that failed it may lie there as if it had been written, and then no
    /// sync writes it. So what is not known to be durable is written once more, the same bytes in the same place.
    pub fn make_durable(&self) -> io::Result<()> {
        for (number, range) in &self.unproven {
            let Some(entry) = self.segments.get(number) else { continue };
            let file = &entry.segment.file;
            let end = range.end.min(file.len()?);
            let mut bytes = vec![0; (end - range.start) as usize];
            let unreadable = read_what_can_be_read(&**file, &mut bytes, range.start)?;
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
        self.segments.values().try_for_each(|entry| entry.segment.file.sync())
    }

    /// What the checkpoint has freed beside the lowest segments still looks as if it were in service.
    fn free_what_is_finished(&mut self, scans: &BTreeMap<u64, Scan>) {
        let Some(through) = self.checkpoint.as_ref().map(|checkpoint| checkpoint.through) else { return };
        let holding: HashSet<u64> = self.live.values().map(|live| live.segment).collect();
        let finished = self.segments.extract_if(.., |number, entry| {
            entry.max_seq <= through && !holding.contains(number) && scans[number].gaps.is_empty()
        });
        self.free.extend(finished.map(|(_, entry)| entry.segment.name));
    }
}

/// Reads the segments behind the last checkpoint, newest first, and decides what is live.
pub(crate) fn read_all(storage: &dyn Storage) -> io::Result<Contents> {
    let mut out = Contents {
        live: HashMap::new(),
        notes: Vec::new(),
        segments: BTreeMap::new(),
        free: Vec::new(),
        damage: Vec::new(),
        max_seq: 0,
        found: 0,
        max_number: 0,
        max_epoch: 0,
        bytes_read: 0,
        names: storage.list()?,
        checkpoint: None,
        unproven: Vec::new(),
    };
    let mut by_number: BTreeMap<u64, Segment> = BTreeMap::new();
    for name in &out.names {
        match read_header(storage, name)? {
            Header::Whole(file, header) => {
                out.max_epoch = out.max_epoch.max(header.epoch);
                out.max_number = out.max_number.max(header.number);
                by_number.insert(header.number, Segment { name: name.clone(), file, header });
            }
            Header::NeverUsed => out.free.push(name.clone()),
            Header::Damaged(what) => {
                out.damage.push(Damage { segment: name.clone(), offset: 0, seqs: None, promised: true, what });
            }
        }
    }

    let mut scans: BTreeMap<u64, Scan> = BTreeMap::new();
    let mut notes: Vec<(Located, Vec<u8>)> = Vec::new();
    for (&number, segment) in by_number.iter().rev() {
        if out.checkpoint.as_ref().is_some_and(|checkpoint| number < checkpoint.low_segment) {
            break;
        }
        let mut bytes = vec![0u8; segment.file.len()? as usize];
        let unreadable = read_what_can_be_read(&*segment.file, &mut bytes, 0)?;
        out.bytes_read += bytes.len() as u64;
        let mut scanned = scan(&segment.header, &bytes);
        scanned.add_unreadable(unreadable);
        for record in &scanned.records {
            let payload = || {
                let start = record.payload_offset as usize;
                &bytes[start..start + record.header.len as usize]
            };
            if record.header.kind == KIND_CHECKPOINT
                && let Some(checkpoint) = Checkpoint::decode(payload())
                && out.checkpoint.as_ref().is_none_or(|known| known.through <= checkpoint.through)
            {
                out.checkpoint = Some(checkpoint);
            } else if record.header.is_note() && record.header.kind >= KIND_USER {
                notes.push((*record, payload().to_vec()));
            }
        }
        for gap in &scanned.gaps {
            let range = gap.range.0 as usize..(gap.range.1 as usize).max(gap.range.0 as usize);
            // Only for a person to look at; that it cannot be kept must not keep the rest from being recovered.
            let _ = storage.set_aside(&format!("{}-{:x}.damaged", segment.name, gap.range.0), &bytes[range]);
        }
        scans.insert(number, scanned);
    }

    let low = out.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.low_segment);
    scans.retain(|&number, _| number >= low);
    let durable = |scanned: &Scan| scanned.records.iter().map(|record| record.header.durable).max();
    let mark = scans.values().filter_map(durable).max().unwrap_or(0);
    out.unproven = scans.iter().filter_map(|(&number, scanned)| Some((number, scanned.behind(mark)?))).collect();
    let (damage, found) = judge(&by_number, &scans);
    out.damage.extend(damage);
    out.found = found;
    let finished = Finished::new(out.checkpoint.as_ref());
    for (number, segment) in by_number {
        // One in which something was damaged stays until a checkpoint, even if nothing in it could be read.
        let Some(scanned) = scans.get(&number).filter(|scanned| scanned.has_any()) else {
            out.free.push(segment.name);
            continue;
        };
        for record in &scanned.records {
            let header = record.header;
            out.max_seq = out.max_seq.max(header.seq).max(header.durable);
            if header.is_note() || header.kind < KIND_USER || finished.has(&header) {
                continue;
            }
            let live = Live {
                segment: number,
                offset: record.payload_offset,
                len: header.len,
                kind: header.kind,
                version: header.version,
                payload_crc: header.payload_crc,
                seq: header.seq,
            };
            let newest = out.live.entry(header.id).or_insert_with(|| live.clone());
            if (newest.version, newest.seq) < (live.version, live.seq) {
                *newest = live;
            }
        }
        let max_seq = scanned.records.iter().map(|record| record.header.seq).max().unwrap_or(0);
        out.segments.insert(number, InService { segment, max_seq });
    }
    out.free_what_is_finished(&scans);
    if let Some(checkpoint) = &out.checkpoint {
        out.max_seq = out.max_seq.max(checkpoint.through);
        let through = checkpoint.through;
        let missing = checkpoint.live.iter().find(|id| !out.live.contains_key(id));
        match missing {
            // Damage to records that a checkpoint had finished costs nobody anything.
            None => out.damage.retain(|damage| damage.seqs.is_none_or(|(_, last)| last > through)),
            // What a checkpoint lists was durable: whatever holds it was damaged afterwards.
            Some(&id) => {
                let covered = |damage: &&mut Damage| damage.seqs.is_none_or(|(first, _)| first <= through);
                out.damage.iter_mut().filter(covered).for_each(|damage| damage.promised = true);
                if !out.damage.iter().any(|damage| damage.promised) {
                    let (segment, what) = (String::new(), "a record that a checkpoint lists is in no segment");
                    out.damage.push(Damage { segment, offset: 0, seqs: Some((id, id)), promised: true, what });
                }
            }
        }
    }
    notes.retain(|(record, _)| !finished.has(&record.header));
    notes.sort_by_key(|(record, _)| record.header.seq);
    out.notes = notes
        .into_iter()
        .map(|(record, payload)| Note { seq: record.header.seq, kind: record.header.kind, payload })
        .collect();
    Ok(out)
}

/// What the last checkpoint has settled.
struct Finished {
    through: u64,
    live: HashSet<u64>,
}

impl Finished {
    fn new(checkpoint: Option<&Checkpoint>) -> Self {
        Finished {
            through: checkpoint.map_or(0, |checkpoint| checkpoint.through),
            live: checkpoint.map(|checkpoint| checkpoint.live.iter().copied().collect()).unwrap_or_default(),
        }
    }

    /// By the id and not by the sequence number: a later version of a record that was settled already, queued before and written
    /// behind the checkpoint, is as finished as the record.
    fn has(&self, header: &RecordHeader) -> bool {
        header.id <= self.through && !self.live.contains(&header.id)
    }
}

/// Sequence numbers skipped at each opening: more than a crash can have torn away, so that none is ever used twice.
pub(crate) const SEQ_GAP: u64 = 1 << 20;

enum Header {
    Whole(Arc<dyn SegmentFile>, SegmentHeader),
    NeverUsed,
    Damaged(&'static str),
}

/// A segment gets its name when it is full of durable zeros, and its header is written as a whole: so one that is shorter, or has
/// something else in it and no header, was damaged afterwards.
fn read_header(storage: &dyn Storage, name: &str) -> io::Result<Header> {
    let file = storage.open(name)?;
    let len = file.len()?;
    if len < BLOCK as u64 {
        return Ok(Header::Damaged("the segment is shorter than its header"));
    }
    let mut block = vec![0u8; BLOCK];
    if !read_what_can_be_read(&*file, &mut block, 0)?.is_empty() {
        return Ok(Header::Damaged("the segment header cannot be read"));
    }
    if let Some(header) = SegmentHeader::decode_block(&block) {
        return Ok(Header::Whole(file, header));
    }
    let mut at = 0;
    let mut bytes = vec![0u8; READ_AT_ONCE];
    while at < len {
        let part = &mut bytes[..(READ_AT_ONCE as u64).min(len - at) as usize];
        let unreadable = read_what_can_be_read(&*file, part, at)?;
        if !unreadable.is_empty() || part.iter().any(|&byte| byte != 0) {
            return Ok(Header::Damaged("both copies of the segment header are damaged"));
        }
        at += part.len() as u64;
    }
    Ok(Header::NeverUsed)
}

/// Fills `bytes` from `offset`, which a block begins at. Returns the blocks that the disk cannot read: they are zeros.
pub(crate) fn read_what_can_be_read(
    file: &dyn SegmentFile,
    bytes: &mut [u8],
    offset: u64,
) -> io::Result<Vec<Range<u64>>> {
    let is_bad_sector = |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    match file.read_exact_at(bytes, offset) {
        Err(error) if is_bad_sector(&error) => {}
        read => return read.map(|()| Vec::new()),
    }
    let mut unreadable: Vec<Range<u64>> = Vec::new();
    for (at, block) in (offset..).step_by(BLOCK).zip(bytes.chunks_mut(BLOCK)) {
        match file.read_exact_at(block, at) {
            Err(error) if is_bad_sector(&error) => {
                block.fill(0);
                let end = at + block.len() as u64;
                match unreadable.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end = end,
                    None => unreadable.push(at..end),
                }
            }
            read => read?,
        }
    }
    Ok(unreadable)
}

const READ_AT_ONCE: usize = 1 << 20;
