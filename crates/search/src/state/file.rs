//! The files of the side store: reading a snapshot, and the one writer.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::chunk::{self, CHUNK_MESSAGES, Column, Record};

const CURRENT: &str = "current";
const FORMAT: u32 = 1;
/// The file is written anew when this much of it is dead, and more than is alive.
const DEAD_BYTES_MIN: u64 = 4 << 20;

/// Why the side store could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// There is no index here: make one.
    #[error("{}: no index here", .0.display())]
    Missing(PathBuf),
    /// Written by another version: rebuild.
    #[error("{}: written in format {found}, this program reads format {FORMAT}", dir.display())]
    Format {
        /// The index's directory.
        dir: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The bytes are not what was written: rebuild. Tags are kept elsewhere and are not concerned.
    #[error("{}: damaged: {what}", dir.display())]
    Damaged {
        /// The index's directory.
        dir: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// Another process is writing: wait or try later.
    #[error("{}: another process is writing to this index", .0.display())]
    Locked(PathBuf),
    /// The file system said no.
    #[error("{}: {error}", dir.display())]
    Io {
        /// The index's directory.
        dir: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

/// What is known of all messages together; small, read whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Message numbers given out so far, those of gone messages included.
    pub messages: u32,
    /// Messages that are there: numbers without those of gone messages.
    pub present: u64,
    chunks: Vec<ChunkPlace>,
    /// Maildir trees, absolute.
    pub roots: Vec<PathBuf>,
    /// Folders ever seen; their indexes do not change.
    pub folders: Vec<FolderState>,
    /// The distinct sets of tags, sorted; the first is empty.
    pub tag_sets: Vec<Vec<String>>,
    /// Messages that could not be read whole, by number, and why.
    pub problems: BTreeMap<u32, String>,
    /// Seconds since 1970 of the last completed update.
    pub updated: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ChunkPlace {
    offset: u64,
    length: u32,
    crc: u32,
}

/// A folder, and its directories as they were when they were last listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderState {
    /// Index into [`Directory::roots`].
    pub root: u32,
    /// Relative to the root; empty for the root itself.
    pub path: String,
    /// Whether the folder was there at the last update.
    pub present: bool,
    /// `None` if it must be listed again.
    pub new: Option<Seen>,
    /// As `new`.
    pub cur: Option<Seen>,
}

/// A directory's inode and mtime in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen(pub u64, pub i64);

#[derive(Debug, Serialize, Deserialize)]
struct Current {
    format: u32,
    file: String,
    offset: u64,
    length: u64,
    crc: u32,
}

/// One commit, as it was when it was opened.
pub struct Snapshot {
    dir: PathBuf,
    file: File,
    directory: Directory,
    name_ends: Vec<OnceCell<Vec<u32>>>,
}

impl Snapshot {
    /// Opens the newest commit. Never waits for a writer.
    ///
    /// # Errors
    /// All of [`StateError`] but `Locked`.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let io = |error| StateError::Io { dir: dir.to_owned(), error };
        loop {
            let current = read_current(dir)?;
            let file = match File::open(dir.join(&current.file)) {
                // Written anew between our two looks; `current` says by now where.
                Err(e) if e.kind() == io::ErrorKind::NotFound && read_current(dir)?.file != current.file => continue,
                opened => opened.map_err(io)?,
            };
            let mut bytes = vec![0; usize::try_from(current.length).unwrap_or(0)];
            file.read_exact_at(&mut bytes, current.offset).map_err(io)?;
            let damaged = |what: String| StateError::Damaged { dir: dir.to_owned(), what };
            if crc32c::crc32c(&bytes) != current.crc {
                return Err(damaged("the directory's checksum is wrong".to_owned()));
            }
            let directory: Directory = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
            let name_ends = directory.chunks.iter().map(|_| OnceCell::new()).collect();
            return Ok(Self { dir: dir.to_owned(), file, directory, name_ends });
        }
    }

    /// What is known of all messages together.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// A column of 8-byte values, one for each message number.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn wide(&self, column: Column) -> Result<Vec<u64>, StateError> {
        Ok(self.column(column)?.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }

    /// A column of 4-byte values.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn narrow(&self, column: Column) -> Result<Vec<u32>, StateError> {
        Ok(self.column(column)?.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    fn column(&self, column: Column) -> Result<Vec<u8>, StateError> {
        let mut all = vec![0; self.directory.messages as usize * chunk::place(column, 0).1];
        let mut at = 0;
        for (index, place) in self.directory.chunks.iter().enumerate() {
            let (offset, width) = chunk::place(column, self.count(index));
            let bytes = self.count(index) * width;
            self.read(&mut all[at..at + bytes], place.offset + offset as u64)?;
            at += bytes;
        }
        Ok(all)
    }

    /// A message's file name, without directory.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`].
    ///
    /// # Panics
    /// If there is no such number.
    pub fn name(&self, number: u32) -> Result<String, StateError> {
        let (index, row) = (number as usize / CHUNK_MESSAGES, number as usize % CHUNK_MESSAGES);
        let (place, count) = (self.directory.chunks[index], self.count(index));
        let ends = match self.name_ends[index].get() {
            Some(ends) => ends,
            None => {
                let mut bytes = vec![0; count * 4];
                self.read(&mut bytes, place.offset + chunk::place(Column::NameEnd, count).0 as u64)?;
                let ends = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
                self.name_ends[index].get_or_init(|| ends)
            }
        };
        let start = if row == 0 { 0 } else { ends[row - 1] };
        let damaged = || StateError::Damaged { dir: self.dir.clone(), what: format!("the name of message {number}") };
        let mut name = vec![0; ends[row].checked_sub(start).ok_or_else(damaged)? as usize];
        self.read(&mut name, place.offset + chunk::names_offset(count) as u64 + u64::from(start))?;
        String::from_utf8(name).map_err(|_| damaged())
    }

    /// Bytes of a message's path: its root, folder, `new` or `cur`, and name.
    ///
    /// # Errors
    /// As [`name`](Self::name).
    pub fn path(&self, number: u32, folder: u32, is_new: bool) -> Result<PathBuf, StateError> {
        let folder = &self.directory.folders[folder as usize];
        let mut path = self.directory.roots[folder.root as usize].join(&folder.path);
        path.push(if is_new { "new" } else { "cur" });
        path.push(self.name(number)?);
        Ok(path)
    }

    /// Reads everything and checks the checksums.
    ///
    /// # Errors
    /// [`StateError::Damaged`], [`StateError::Io`].
    pub fn records(&self) -> Result<Vec<Record>, StateError> {
        let mut all = Vec::with_capacity(self.directory.messages as usize);
        for (index, place) in self.directory.chunks.iter().enumerate() {
            let mut bytes = vec![0; place.length as usize];
            self.read(&mut bytes, place.offset)?;
            let sound = crc32c::crc32c(&bytes) == place.crc;
            let records = sound.then(|| chunk::decode(&bytes)).flatten();
            let what = || format!("chunk {index} of {}", self.directory.chunks.len());
            all.extend(records.ok_or_else(|| StateError::Damaged { dir: self.dir.clone(), what: what() })?);
        }
        Ok(all)
    }

    fn count(&self, index: usize) -> usize {
        (self.directory.messages as usize - index * CHUNK_MESSAGES).min(CHUNK_MESSAGES)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), StateError> {
        self.file.read_exact_at(bytes, offset).map_err(|error| StateError::Io { dir: self.dir.clone(), error })
    }
}

fn read_current(dir: &Path) -> Result<Current, StateError> {
    let bytes = match fs::read(dir.join(CURRENT)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StateError::Missing(dir.to_owned())),
        read => read.map_err(|error| StateError::Io { dir: dir.to_owned(), error })?,
    };
    let damaged = |what: String| StateError::Damaged { dir: dir.to_owned(), what };
    let current: Current = serde_json::from_slice(&bytes).map_err(|e| damaged(format!("{CURRENT}: {e}")))?;
    match current.format {
        FORMAT => Ok(current),
        found => Err(StateError::Format { dir: dir.to_owned(), found }),
    }
}

/// Held by whoever writes; given back when dropped, also by the kernel when the process dies.
#[derive(Debug)]
pub struct Lock {
    // The descriptor is the lock.
    _file: File,
}

impl Lock {
    /// Makes the directory if need be and takes the lock. `waiting` is called once before waiting for another writer;
    /// without it, [`StateError::Locked`] is the answer.
    ///
    /// # Errors
    /// [`StateError::Locked`], [`StateError::Io`].
    pub fn acquire(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, StateError> {
        let io = |error| StateError::Io { dir: dir.to_owned(), error };
        fs::create_dir_all(dir).map_err(io)?;
        let file = File::options().create(true).append(true).open(dir.join("lock")).map_err(io)?;
        match (rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive), waiting) {
            (Ok(()), _) => {}
            (Err(rustix::io::Errno::WOULDBLOCK), None) => return Err(StateError::Locked(dir.to_owned())),
            (Err(rustix::io::Errno::WOULDBLOCK), Some(waiting)) => {
                waiting();
                rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
                    .map_err(|e| io(e.into()))?;
            }
            (Err(e), _) => return Err(io(e.into())),
        }
        Ok(Self { _file: file })
    }
}

/// The one writer. All records are in memory: about 250 bytes a message.
pub struct StateWriter {
    dir: PathBuf,
    /// By message number. Change them through [`change`](Self::change), so that the commit knows.
    records: Vec<Record>,
    dirty: BTreeSet<usize>,
    /// Small, written with every commit.
    pub directory: Directory,
    current: Option<Current>,
}

impl StateWriter {
    /// Reads the newest commit, or begins an empty store. The caller holds the [`Lock`].
    ///
    /// # Errors
    /// [`StateError`], without `Missing` and `Locked`.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        match Snapshot::open(dir) {
            Ok(snapshot) => {
                let records = snapshot.records()?;
                let current = Some(read_current(dir)?);
                Ok(Self {
                    dir: dir.to_owned(),
                    records,
                    dirty: BTreeSet::new(),
                    directory: snapshot.directory,
                    current,
                })
            }
            Err(StateError::Missing(_)) => Ok(Self::begin_anew(dir)),
            Err(e) => Err(e),
        }
    }

    /// An empty store to take the place of whatever is in `dir`, with its first commit. The caller holds the [`Lock`].
    pub fn begin_anew(dir: &Path) -> Self {
        let directory = Directory { tag_sets: vec![Vec::new()], ..Directory::default() };
        Self {
            dir: dir.to_owned(),
            records: Vec::new(),
            dirty: BTreeSet::new(),
            directory,
            current: read_current(dir).ok(),
        }
    }

    /// By message number.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// A record to change.
    pub fn change(&mut self, number: u32) -> &mut Record {
        self.dirty.insert(number as usize / CHUNK_MESSAGES);
        &mut self.records[number as usize]
    }

    /// Adds a record under the next number.
    pub fn push(&mut self, record: Record) -> u32 {
        // Four thousand million messages, gone ones included: a rebuild numbers them anew.
        let number = u32::try_from(self.records.len()).expect("fewer than 2^32 message numbers");
        self.dirty.insert(self.records.len() / CHUNK_MESSAGES);
        self.records.push(record);
        number
    }

    /// The index of a set of tags, which is added if it is new. `tags` is sorted.
    pub fn tag_set(&mut self, tags: Vec<String>) -> u32 {
        let sets = &mut self.directory.tag_sets;
        let index = sets.iter().position(|set| *set == tags).unwrap_or_else(|| {
            sets.push(tags);
            sets.len() - 1
        });
        u32::try_from(index).expect("fewer than 2^32 sets of tags")
    }

    /// Makes all changes durable and visible at once. Costs the chunks that changed, two fsyncs and a rename.
    ///
    /// # Errors
    /// [`StateError::Io`]: the last commit still stands. Open the store again before writing more: a failed sync is not retried.
    pub fn commit(&mut self) -> Result<(), StateError> {
        let dir = self.dir.clone();
        self.try_commit().map_err(|error| StateError::Io { dir, error })
    }

    fn try_commit(&mut self) -> io::Result<()> {
        let live: u64 = self.directory.chunks.iter().map(|place| u64::from(place.length)).sum();
        let length = |current: &Current| current.offset + current.length;
        let anew = self.current.as_ref().is_none_or(|current| length(current) > 2 * live + DEAD_BYTES_MIN);
        let chunks = self.records.len().div_ceil(CHUNK_MESSAGES);
        if anew {
            self.dirty = (0..chunks).collect();
        }
        let name = match (&self.current, anew) {
            (Some(current), false) => current.file.clone(),
            (current, _) => format!("state.{}", current.as_ref().map_or(1, |current| generation(&current.file) + 1)),
        };
        // A file left behind by a crash before its first commit is truncated, a kept one is appended to behind the last commit.
        let file = File::options().create(true).write(true).truncate(anew).open(self.dir.join(&name))?;
        let mut at = if anew { 0 } else { self.current.as_ref().map_or(0, length) };
        let unplaced = ChunkPlace { offset: 0, length: 0, crc: 0 };
        self.directory.chunks.resize(chunks, unplaced);
        for &index in &self.dirty {
            let end = self.records.len().min((index + 1) * CHUNK_MESSAGES);
            let bytes = chunk::encode(&self.records[index * CHUNK_MESSAGES..end]);
            file.write_all_at(&bytes, at)?;
            let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
            self.directory.chunks[index] = ChunkPlace { offset: at, length, crc: crc32c::crc32c(&bytes) };
            at += u64::from(length);
        }
        self.directory.messages = u32::try_from(self.records.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.directory.present =
            self.records.iter().filter(|record| record.flags & chunk::bits::GONE == 0).count() as u64;
        let bytes = serde_json::to_vec(&self.directory)?;
        file.write_all_at(&bytes, at)?;
        file.sync_data()?;
        let crc = crc32c::crc32c(&bytes);
        let current = Current { format: FORMAT, file: name, offset: at, length: bytes.len() as u64, crc };
        self.publish(&current)?;
        if let Some(old) = self.current.replace(current).filter(|_| anew) {
            // Readers that have it open keep it; a leftover is removed by the next rewrite of the same name or by a rebuild.
            let _ = fs::remove_file(self.dir.join(old.file));
        }
        self.dirty.clear();
        Ok(())
    }

    fn publish(&self, current: &Current) -> io::Result<()> {
        let temporary = self.dir.join("current.tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(current)?)?;
        file.write_all(b"\n")?;
        file.sync_data()?;
        fs::rename(&temporary, self.dir.join(CURRENT))?;
        File::open(&self.dir)?.sync_all()
    }
}

fn generation(file: &str) -> u64 {
    file.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u32) -> Record {
        Record { digest: u128::from(n), name: format!("{n}.name"), references: vec![u64::from(n)], ..Record::default() }
    }

    #[test]
    fn a_snapshot_stays_as_it_was_while_the_writer_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Snapshot::open(dir.path()), Err(StateError::Missing(_))));
        let mut writer = StateWriter::open(dir.path()).unwrap();
        (0..10_000).for_each(|n| assert_eq!(writer.push(record(n)), n));
        writer.commit().unwrap();
        let old = Snapshot::open(dir.path()).unwrap();
        // Enough commits to have the file written anew several times.
        for round in 1..40u64 {
            (0..10_000).step_by(5000).for_each(|n| writer.change(n).size = round);
            writer.commit().unwrap();
        }
        assert_eq!(old.wide(Column::Size).unwrap(), vec![0; 10_000]);
        assert_eq!(old.name(9_999).unwrap(), "9999.name");
        let new = Snapshot::open(dir.path()).unwrap();
        assert_eq!(new.wide(Column::Size).unwrap()[5000], 39);
        assert_eq!(new.records().unwrap(), writer.records());
        let left = fs::read_dir(dir.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("state."));
        assert_eq!(left.count(), 1, "superseded files are removed");
    }

    #[test]
    fn what_was_not_committed_is_not_there_and_does_not_hurt() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = StateWriter::open(dir.path()).unwrap();
        writer.push(record(1));
        writer.commit().unwrap();
        let Current { file, .. } = read_current(dir.path()).unwrap();
        let bytes = fs::read(dir.path().join(&file)).unwrap();
        // A crash in the middle of the next commit: bytes behind the directory.
        fs::write(dir.path().join(&file), [&bytes[..], b"torn"].concat()).unwrap();
        let mut writer = StateWriter::open(dir.path()).unwrap();
        assert_eq!(writer.records(), [record(1)]);
        writer.push(record(2));
        writer.commit().unwrap();
        assert_eq!(StateWriter::open(dir.path()).unwrap().records(), [record(1), record(2)]);
    }

    #[test]
    fn damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = StateWriter::open(dir.path()).unwrap();
        writer.push(record(1));
        writer.commit().unwrap();
        let file = dir.path().join(read_current(dir.path()).unwrap().file);
        let mut bytes = fs::read(&file).unwrap();
        bytes[20] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(matches!(StateWriter::open(dir.path()), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn there_is_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let held = Lock::acquire(dir.path(), None).unwrap();
        assert!(matches!(Lock::acquire(dir.path(), None), Err(StateError::Locked(_))));
        drop(held);
        Lock::acquire(dir.path(), None).unwrap();
    }
}
