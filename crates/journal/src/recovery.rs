//! Reading a journal back: which records are whole, which were finished, and what was damaged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::judge::judge;
use crate::layout::{BLOCK, Checkpoint, KIND_CHECKPOINT, KIND_USER, RecordHeader, SegmentHeader};
use crate::scan::{Located, Scan, scan};
use crate::segment::{Damage, Segment};
use crate::storage::{SegmentFile, Storage};

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
#[derive(Default)]
pub(crate) struct Contents {
    pub live: HashMap<u64, Live>,
    pub notes: Vec<Note>,
    /// By number, those with a record or the remains of one.
    pub segments: BTreeMap<u64, Segment>,
    pub damage: Vec<Damage>,
    pub max_seq: u64,
    checkpoint: Option<Checkpoint>,
}

/// Reads the segments after the last checkpoint, newest first, and decides what is live.
pub(crate) fn read_all(storage: &dyn Storage) -> io::Result<Contents> {
    let mut out = Contents::default();
    let segments = out.read_headers(storage)?;
    let scans = out.read_segments(&segments)?;
    let through = out.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.through);
    out.damage.extend(judge(&segments, &scans, through));
    out.place_records(segments, &scans);
    out.weigh_damage_by_the_checkpoint();
    Ok(out)
}

impl Contents {
    /// The files with a header, by number. Damaged ones are noted, and those that were never used left out.
    fn read_headers(&mut self, storage: &dyn Storage) -> io::Result<BTreeMap<u64, Segment>> {
        let mut by_number = BTreeMap::new();
        for name in storage.list()? {
            match read_header(storage, &name)? {
                Header::Whole(file, header) => drop(by_number.insert(header.number, Segment { name, file, header })),
                Header::NeverUsed => {}
                Header::Damaged(what) => {
                    self.damage.push(Damage { segment: name, offset: 0, seqs: None, promised: true, what });
                }
            }
        }
        Ok(by_number)
    }

    /// Reads segments, newest first, as far as the newest checkpoint needs them, and notes what that leaves.
    fn read_segments(&mut self, segments: &BTreeMap<u64, Segment>) -> io::Result<BTreeMap<u64, Scan>> {
        let mut scans: BTreeMap<u64, Scan> = BTreeMap::new();
        let mut notes: Vec<(RecordHeader, Vec<u8>)> = Vec::new();
        for (&number, segment) in segments.iter().rev() {
            if number < self.low_segment() {
                break;
            }
            let mut bytes = vec![0u8; segment.file.len()? as usize];
            let unreadable = read_what_can_be_read(&*segment.file, &mut bytes, 0)?;
            let mut scanned = scan(&segment.header, &bytes);
            scanned.add_unreadable(unreadable);
            for Located { header, payload_offset } in &scanned.records {
                let payload = || &bytes[*payload_offset as usize..][..header.len as usize];
                if header.kind == KIND_CHECKPOINT
                    && let Some(checkpoint) = Checkpoint::decode(payload())
                    && self.checkpoint.as_ref().is_none_or(|known| known.through <= checkpoint.through)
                {
                    self.checkpoint = Some(checkpoint);
                } else if header.is_note() && header.kind >= KIND_USER {
                    notes.push((*header, payload().to_vec()));
                }
            }
            scans.insert(number, scanned);
        }
        scans.retain(|&number, _| number >= self.low_segment());
        let finished = Finished::new(self.checkpoint.as_ref());
        notes.retain(|(header, _)| !finished.has(header));
        notes.sort_by_key(|(header, _)| header.seq);
        let note = |(header, payload): (RecordHeader, _)| Note { seq: header.seq, kind: header.kind, payload };
        self.notes = notes.into_iter().map(note).collect();
        Ok(scans)
    }

    fn low_segment(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.low_segment)
    }

    /// Enters the newest version of each record that is not finished, and the segments that are in use.
    fn place_records(&mut self, segments: BTreeMap<u64, Segment>, scans: &BTreeMap<u64, Scan>) {
        let finished = Finished::new(self.checkpoint.as_ref());
        self.max_seq = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.through);
        for (number, segment) in segments {
            let Some(scanned) = scans.get(&number).filter(|scanned| scanned.has_any()) else { continue };
            for &Located { header, payload_offset } in &scanned.records {
                self.max_seq = self.max_seq.max(header.seq).max(header.durable);
                if header.is_note() || header.kind < KIND_USER || finished.has(&header) {
                    continue;
                }
                let live = Live {
                    segment: number,
                    offset: payload_offset,
                    len: header.len,
                    kind: header.kind,
                    version: header.version,
                    payload_crc: header.payload_crc,
                    seq: header.seq,
                };
                let newest = self.live.entry(header.id).or_insert_with(|| live.clone());
                if (newest.version, newest.seq) < (live.version, live.seq) {
                    *newest = live;
                }
            }
            self.segments.insert(number, segment);
        }
    }

    /// Damage to what the checkpoint has finished costs nobody anything, and what it lists was durable.
    fn weigh_damage_by_the_checkpoint(&mut self) {
        let Some(Checkpoint { through, live, .. }) = &self.checkpoint else { return };
        let mut missing: Vec<u64> = live.iter().copied().filter(|id| !self.live.contains_key(id)).collect();
        if missing.is_empty() {
            return self.damage.retain(|damage| damage.seqs.is_none_or(|(_, last)| last > *through));
        }
        // Whatever holds one of those was damaged afterwards. Which does is not to be told: they may have been copied, under other numbers.
        let covered = |damage: &&mut Damage| damage.seqs.is_none_or(|(first, _)| first <= *through);
        self.damage.iter_mut().filter(covered).for_each(|damage| damage.promised = true);
        let told: Vec<_> = self.damage.iter().filter_map(|damage| damage.seqs).collect();
        missing.retain(|id| !told.iter().any(|(first, last)| (first..=last).contains(&id)));
        missing.sort_unstable();
        self.damage.extend(missing.chunk_by(|id, next| id + 1 == *next).map(|run| Damage {
            segment: String::new(),
            offset: 0,
            seqs: run.first().copied().zip(run.last().copied()),
            promised: true,
            what: "what a checkpoint lists is in no segment",
        }));
    }
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
    /// after the checkpoint, is as finished as the record.
    fn has(&self, header: &RecordHeader) -> bool {
        header.id <= self.through && !self.live.contains(&header.id)
    }
}

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
