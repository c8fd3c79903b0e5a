//! Writes the log in which earlier versions kept accepted mail: for tests of its reader, and of the takeover into a spool.
//!
//! One caller, one record a commit unless it says otherwise, every commit synced. What earlier versions did for speed is not here; the bytes are
//! theirs. Everything panics that a disk of a test does not do.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use posthaste_journal::layout::{
    BLOCK, Checkpoint, FLAG_NOTE, KIND_CHECKPOINT, RecordHeader, SegmentHeader, record_span,
};
use posthaste_journal::storage::{LOCK, SEGMENT};
use posthaste_random::Random;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// A journal that is being written. It is locked until this is dropped.
pub struct OldJournal {
    dir: PathBuf,
    segment_bytes: u64,
    random: Random,
    epoch: u64,
    /// Those with a header that counts, in the order of the log; the last is written to if `is_open`.
    segments: Vec<Segment>,
    free: Vec<PathBuf>,
    files: u64,
    numbers: u64,
    is_open: bool,
    last_seq: u64,
    durable: u64,
    /// The newest version of each record that is not settled, and its segment.
    live: BTreeMap<u64, (u16, u64)>,
    _lock: File,
}

struct Segment {
    path: PathBuf,
    file: File,
    header: SegmentHeader,
    end: u64,
}

/// A record before it has a place.
struct New<'a> {
    id: Option<u64>,
    version: u16,
    kind: u8,
    flags: u8,
    payload: &'a [u8],
}

impl OldJournal {
    /// An empty journal in `dir`, with segments of so many bytes, a multiple of 4096.
    pub fn create(dir: &Path, segment_bytes: u64) -> Self {
        posthaste_fsops::make_dir(dir).expect("a directory");
        let lock = posthaste_fsops::open(dir.join(LOCK), OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC, OWNER);
        let lock = File::from(lock.expect("a file to be locked"));
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        OldJournal {
            dir: dir.to_owned(),
            segment_bytes,
            random: Random::new(segment_bytes),
            epoch: 1,
            segments: Vec::new(),
            free: Vec::new(),
            files: 0,
            numbers: 0,
            is_open: false,
            last_seq: SEQ_GAP,
            durable: 0,
            live: BTreeMap::new(),
            _lock: lock,
        }
    }

    /// Appends a record; returns its id. It is durable then.
    pub fn append(&mut self, kind: u8, payload: &[u8]) -> u64 {
        self.append_together(kind, &[payload])[0]
    }

    /// Appends some records in one commit.
    pub fn append_together(&mut self, kind: u8, payloads: &[&[u8]]) -> Vec<u64> {
        self.commit(payloads.iter().map(|payload| New { id: None, version: 0, kind, flags: 0, payload }).collect())
    }

    /// Appends a new version of a live record, or a copy of it, under its id.
    pub fn replace(&mut self, id: u64, kind: u8, payload: &[u8]) {
        let version = self.live[&id].0 + 1;
        self.commit(vec![New { id: Some(id), version, kind, flags: 0, payload }]);
    }

    /// Appends a note, which the next checkpoint forgets.
    pub fn note(&mut self, kind: u8, payload: &[u8]) {
        self.commit(vec![New { id: None, version: 0, kind, flags: FLAG_NOTE, payload }]);
    }

    /// The record is not needed any more, which the next checkpoint says.
    pub fn settle(&mut self, id: u64) {
        self.live.remove(&id);
    }

    /// Writes a checkpoint. Segments without a live record are used again.
    pub fn checkpoint(&mut self) {
        let holding = |number: &u64| self.live.values().any(|(_, segment)| segment == number);
        let last = self.segments.last().map(|segment| segment.header.number);
        let is_kept = |segment: &Segment| Some(segment.header.number) == last || holding(&segment.header.number);
        let (kept, freed): (Vec<_>, Vec<_>) = std::mem::take(&mut self.segments).into_iter().partition(is_kept);
        self.segments = kept;
        let low_segment = self.segments.first().map_or(0, |segment| segment.header.number);
        let live = self.live.keys().copied().collect();
        let payload = Checkpoint { through: self.last_seq, low_segment, live }.encode();
        self.commit(vec![New { id: None, version: 0, kind: KIND_CHECKPOINT, flags: 0, payload: &payload }]);
        self.free.extend(freed.into_iter().map(|segment| segment.path));
    }

    /// The program ends and is started again: what comes next belongs to another epoch, and says what this one has found.
    pub fn start_again(&mut self) {
        self.epoch += 1;
        self.last_seq += SEQ_GAP;
        self.is_open = false;
    }

    /// Writes records behind one another from a fresh block on, and syncs them. Returns their ids.
    fn commit(&mut self, records: Vec<New<'_>>) -> Vec<u64> {
        let bytes: usize = records.iter().map(|record| record_span(record.payload.len())).sum();
        let is_room = |segment: &Segment| segment.end + bytes as u64 <= self.segment_bytes;
        if !self.is_open || !self.segments.last().is_some_and(is_room) {
            self.next_segment();
        }
        let segment = self.segments.last_mut().expect("one was just made");
        assert!(segment.end + bytes as u64 <= self.segment_bytes, "{bytes} bytes fit into no segment");
        let (mut ids, mut block) = (Vec::new(), Vec::new());
        for New { id, version, kind, flags, payload } in records {
            self.last_seq += 1;
            let (seq, id) = (self.last_seq, id.unwrap_or(self.last_seq));
            let (len, payload_crc) = (payload.len() as u32, crc32c::crc32c(payload));
            let header = RecordHeader { seq, id, durable: self.durable, len, kind, flags, version, payload_crc };
            let end = block.len() + record_span(payload.len());
            block.extend_from_slice(&header.encode(&segment.header));
            block.extend_from_slice(payload);
            block.resize(end, 0);
            if flags & FLAG_NOTE == 0 && kind != KIND_CHECKPOINT {
                self.live.insert(id, (version, segment.header.number));
            }
            ids.push(id);
        }
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        write(&segment.file, &block, segment.end);
        segment.end += block.len() as u64;
        self.durable = self.last_seq;
        ids
    }

    fn next_segment(&mut self) {
        let path = self.free.pop().unwrap_or_else(|| self.new_file());
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("a segment");
        self.numbers += 1;
        let header = SegmentHeader { number: self.numbers, epoch: self.epoch, salt: self.random.next() };
        write(&file, &header.encode_block(), 0);
        self.segments.push(Segment { path, file, header, end: BLOCK as u64 });
        self.is_open = true;
    }

    /// A segment full of zeros.
    fn new_file(&mut self) -> PathBuf {
        let path = self.dir.join(format!("{:016x}{SEGMENT}", self.files));
        self.files += 1;
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(posthaste_fsops::open(&path, how, OWNER).expect("a new file"));
        write(&file, &vec![0; self.segment_bytes as usize], 0);
        posthaste_fsops::fsync(File::open(&self.dir).expect("its directory")).expect("synced");
        path
    }
}

/// What an earlier version does first when it is started: it locks the directory and opens all that is called a segment for reading and writing. Says how many
/// live records it has then.
///
/// # Errors
/// Those that keep it from starting.
pub fn start_of_earlier_version(dir: &Path) -> io::Result<usize> {
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(SEGMENT) {
            OpenOptions::new().read(true).write(true).open(path)?;
        }
    }
    drop(lock);
    Ok(posthaste_journal::Reader::open(dir)?.records().len())
}

fn write(file: &File, bytes: &[u8], at: u64) {
    posthaste_fsops::write_all_parts(file, &mut [IoSlice::new(bytes)], Some(at)).expect("written");
    posthaste_fsops::fdatasync(file).expect("synced");
}

/// Sequence numbers skipped at each start.
const SEQ_GAP: u64 = 1 << 20;

const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);
