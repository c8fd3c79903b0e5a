//! A look at a journal from outside, without opening it: what `posthaste journal inspect|verify` shows.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::Recovered;
use crate::layout::{BLOCK, KIND_USER, SegmentHeader};
use crate::recovery::{Contents, Damage, Live, Note, read_all, read_what_can_be_read};
use crate::scan::scan;
use crate::storage::{DiskSegment, LOCK, SEGMENT, SET_ASIDE, SegmentFile, Storage, list_files};

/// What one segment file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// File name.
    pub name: String,
    /// File size.
    pub bytes: u64,
    /// Its place in the log and its epoch; `None` when it was never used or its header is damaged.
    pub number: Option<u64>,
    /// The opening that put it into service.
    pub epoch: Option<u64>,
    /// Whole records, the journal's own included.
    pub records: usize,
    /// Records that are live, and their payload bytes.
    pub live_records: usize,
    /// Payload bytes of the live records.
    pub live_bytes: u64,
    /// Offset behind the last whole record.
    pub used: u64,
    /// False when the last checkpoint has freed it.
    pub in_service: bool,
}

/// What a whole journal holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The segments in the order of the log, then those without a place in it.
    pub segments: Vec<SegmentReport>,
    /// Live records: id, kind, payload bytes.
    pub live: Vec<(u64, u8, u32)>,
    /// Notes appended since the last checkpoint, in order.
    pub notes: Vec<Note>,
    /// Damaged places behind the last checkpoint.
    pub damage: Vec<Damage>,
    /// Everything up to this sequence number is settled by the last checkpoint, but for what it lists as live.
    pub checkpoint: Option<u64>,
    /// Files with what earlier openings found damaged, in the order of their names.
    pub set_aside: Vec<String>,
}

impl Report {
    /// The first damaged place whose bytes had been promised to be durable.
    pub fn first_broken_promise(&self) -> Option<&Damage> {
        self.damage.iter().find(|damage| damage.promised)
    }
}

/// Reads the journal in `dir` and says what is in it. Changes nothing; may run beside a server, and then shows some
/// moment of a log that goes on growing.
///
/// # Errors
/// `NotFound` if there is no journal in `dir`; else what the file system said.
pub fn inspect(dir: &Path) -> io::Result<Report> {
    inspect_with(dir, |_, _, _| ())
}

/// As [`inspect`], and calls `each` with id, kind and payload of each live record that can be read, in no order.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_with(dir: &Path, mut each: impl FnMut(u64, u8, Vec<u8>)) -> io::Result<Report> {
    let contents = read_all(&ReadOnly(dir.to_owned()))?;
    // Nothing is wrong with an empty directory, but whoever asks about a wrong one must not hear that all is well.
    if contents.names.is_empty() && !dir.join(LOCK).exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no journal in this directory"));
    }
    let mut live_by_segment: HashMap<u64, (usize, u64)> = HashMap::new();
    for live in contents.live.values() {
        let (records, bytes) = live_by_segment.entry(live.segment).or_default();
        *records += 1;
        *bytes += u64::from(live.len);
    }
    for (&id, live) in &contents.live {
        let segment = contents.segments.get(&live.segment);
        // One that cannot be read, or that a server beside us has overwritten meanwhile, is damage or past.
        if let Some(Ok(payload)) = segment.map(|entry| live.read(&*entry.segment.file)) {
            each(id, live.kind, payload);
        }
    }
    let mut segments = Vec::new();
    for name in &contents.names {
        let file = DiskSegment::to_read(File::open(dir.join(name))?);
        let mut bytes = vec![0; file.len()? as usize];
        read_what_can_be_read(&file, &mut bytes, 0)?;
        let header = bytes.get(..BLOCK).and_then(SegmentHeader::decode_block);
        let scanned = header.map(|header| scan(&header, &bytes)).unwrap_or_default();
        let number = header.map(|header| header.number);
        let (live_records, live_bytes) = number.and_then(|n| live_by_segment.get(&n).copied()).unwrap_or_default();
        segments.push(SegmentReport {
            name: name.clone(),
            bytes: bytes.len() as u64,
            number,
            epoch: header.map(|header| header.epoch),
            records: scanned.records.len(),
            live_records,
            live_bytes,
            used: scanned.end,
            in_service: number.is_some_and(|n| contents.segments.contains_key(&n)),
        });
    }
    segments.sort_by_key(|segment| (segment.number.is_none(), segment.number, segment.name.clone()));
    let mut live: Vec<_> = contents.live.iter().map(|(&id, live)| (id, live.kind, live.len)).collect();
    live.sort_unstable();
    assert!(live.iter().all(|&(_, kind, _)| kind >= KIND_USER), "the journal's own records are never live");
    let checkpoint = contents.checkpoint.map(|checkpoint| checkpoint.through);
    let set_aside = list_files(dir, SET_ASIDE)?;
    Ok(Report { segments, live, notes: contents.notes, damage: contents.damage, checkpoint, set_aside })
}

/// A journal that nobody writes to any more, read record by record. Nobody can open it meanwhile.
pub struct Reader {
    contents: Contents,
    _lock: File,
}

impl Reader {
    /// Reads what is where. Changes nothing.
    ///
    /// # Errors
    /// `WouldBlock` while another process has it open, `NotFound` if there is no journal in `dir`; else what the file system said.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let lock = File::open(dir.join(LOCK))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        Ok(Reader { contents: read_all(&ReadOnly(dir.to_owned()))?, _lock: lock })
    }

    /// Live records, in the order in which they were first appended.
    pub fn records(&self) -> Vec<Recovered> {
        let record = |(&id, live): (&u64, &Live)| Recovered { id, kind: live.kind, len: live.len };
        let mut records: Vec<Recovered> = self.contents.live.iter().map(record).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// The payload of a live record.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub fn read(&self, id: u64) -> io::Result<Vec<u8>> {
        let live = self.contents.live.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let entry = self.contents.segments.get(&live.segment).ok_or(io::ErrorKind::NotFound)?;
        live.read(&*entry.segment.file)
    }

    /// Notes appended since the last checkpoint, in order.
    pub fn notes(&self) -> &[Note] {
        &self.contents.notes
    }

    /// Damaged places behind the last checkpoint.
    pub fn damage(&self) -> &[Damage] {
        &self.contents.damage
    }

    /// No sequence number that was found is higher.
    pub fn last(&self) -> u64 {
        self.contents.max_seq
    }
}

/// The names of the segments in `dir`, in order.
///
/// # Errors
/// What the file system said.
pub fn segments(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = list_files(dir, SEGMENT)?;
    // A directory of such a name is a sign for programs that must not open the journal any more.
    names.retain(|name| !dir.join(name).is_dir());
    Ok(names)
}

/// A journal directory that nobody may write to.
struct ReadOnly(std::path::PathBuf);

impl Storage for ReadOnly {
    fn list(&self) -> io::Result<Vec<String>> {
        segments(&self.0)
    }

    fn create(&self, _: &str, _: u64, _: &mut dyn FnMut()) -> io::Result<std::sync::Arc<dyn SegmentFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn open(&self, name: &str) -> io::Result<std::sync::Arc<dyn SegmentFile>> {
        Ok(std::sync::Arc::new(DiskSegment::to_read(File::open(self.0.join(name))?)))
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_aside(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}
