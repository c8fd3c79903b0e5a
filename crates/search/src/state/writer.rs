//! Writing the side store: changes are made in memory, and committed together.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::StateError;
use super::chunk::{self, CHUNK_MESSAGES, Record};
use super::current::{CURRENT, Current, read_current_of_any_format};
use super::directory::{ChunkPlace, IndexDirectory};
use super::error::FORMAT;
use super::snapshot::Snapshot;
use crate::disk;

/// The file is rewritten when this many bytes of it are dead, and more than are alive.
const DEAD_BYTES_MIN: u64 = 4 << 20;

/// The writer. All records are in memory: 128 bytes for each message, its file name, and 8 bytes for each of its
/// references.
pub struct StateWriter {
    dir: PathBuf,
    /// By message number. Change them through [`change`](Self::change), so that the commit knows.
    records: Vec<Record>,
    dirty: BTreeSet<usize>,
    /// Small, written with every commit.
    pub directory: IndexDirectory,
    current: Option<Current>,
    /// Name of the text index's directory.
    text: String,
}

impl StateWriter {
    /// Reads the newest commit, or begins an empty store. An older version's store is replaced as by
    /// [`begin_anew`](Self::begin_anew). The caller holds the [`Lock`](super::Lock).
    ///
    /// # Errors
    /// [`StateError`], without `Missing` and `Locked`.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        match Snapshot::open(dir) {
            Ok(snapshot) => Ok(Self {
                dir: dir.to_owned(),
                records: snapshot.records()?,
                dirty: BTreeSet::new(),
                directory: snapshot.directory,
                text: snapshot.current.text.clone(),
                current: Some(snapshot.current),
            }),
            Err(StateError::Missing(_)) => Ok(Self::begin_anew(dir)),
            // Files of an older version are useless now.
            Err(StateError::Format { found, .. }) if found < FORMAT => Ok(Self::begin_anew(dir)),
            Err(e) => Err(e),
        }
    }

    /// Begins an empty store and an empty text index beside the existing ones; the first commit replaces both. The
    /// caller holds the [`Lock`](super::Lock).
    pub fn begin_anew(dir: &Path) -> Self {
        let directory = IndexDirectory { tag_sets: vec![Vec::new()], ..IndexDirectory::default() };
        let current = read_current_of_any_format(dir).ok();
        let text = match &current {
            None => "text".to_owned(),
            Some(current) => format!("text.{}", generation(&current.text) + 1),
        };
        Self { dir: dir.to_owned(), records: Vec::new(), dirty: BTreeSet::new(), directory, current, text }
    }

    /// Directory of the text index.
    pub fn text_dir(&self) -> PathBuf {
        self.dir.join(&self.text)
    }

    /// True if the next commit replaces the index that readers see by a rebuilt one.
    pub fn is_beside(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.text != self.text)
    }

    /// True for a first or a rebuilt index without a commit so far.
    pub fn is_new(&self) -> bool {
        self.current.is_none() || self.is_beside()
    }

    /// Removes text indexes and state files of interrupted runs, which no commit names. A file that cannot be removed
    /// is left for the next time.
    pub fn remove_leftovers(&self) {
        let current = self.current.as_ref();
        let (file, text) = current.map_or(("", ""), |current| (current.file.as_str(), current.text.as_str()));
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_text = name == "text" || name.starts_with("text.");
            if is_text && name != self.text && name != text {
                let _ = disk::remove_dir_all(&entry.path());
            } else if name.starts_with("state.") && name != file {
                let _ = disk::remove_file(&entry.path());
            }
        }
    }

    /// By message number.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns a record for a change.
    pub fn change(&mut self, number: u32) -> &mut Record {
        self.dirty.insert(number as usize / CHUNK_MESSAGES);
        &mut self.records[number as usize]
    }

    /// Adds a record under the next number.
    pub fn push(&mut self, record: Record) -> u32 {
        // Four thousand million messages, gone ones included: a rebuild numbers them again.
        let number = u32::try_from(self.records.len()).expect("fewer than 2^32 message numbers");
        self.dirty.insert(self.records.len() / CHUNK_MESSAGES);
        self.records.push(record);
        number
    }

    /// Adds records under the next numbers.
    pub fn extend(&mut self, records: Vec<Record>) {
        let first = self.records.len();
        if records.is_empty() {
            return;
        }
        match first {
            0 => self.records = records,
            _ => self.records.extend(records),
        }
        u32::try_from(self.records.len()).expect("fewer than 2^32 message numbers");
        self.dirty.extend(first / CHUNK_MESSAGES..self.records.len().div_ceil(CHUNK_MESSAGES));
    }

    /// Index of a set of tags; a new set is added. `tags` is sorted.
    pub fn tag_set(&mut self, tags: Vec<String>) -> u32 {
        let sets = &mut self.directory.tag_sets;
        let index = sets.iter().position(|set| *set == tags).unwrap_or_else(|| {
            sets.push(tags);
            sets.len() - 1
        });
        u32::try_from(index).expect("fewer than 2^32 sets of tags")
    }

    /// True if there is anything to commit.
    pub fn is_changed(&self) -> bool {
        let is_same = |current: &Current| {
            let bytes = serde_json::to_vec(&self.directory).unwrap_or_default();
            (bytes.len() as u64, crc32c::crc32c(&bytes)) == (current.length, current.crc)
        };
        !self.dirty.is_empty() || self.is_beside() || !self.current.as_ref().is_some_and(is_same)
    }

    /// Makes all changes durable and visible at once. Costs the changed chunks, two fsyncs and a rename.
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
        let anew =
            self.is_beside() || self.current.as_ref().is_none_or(|current| length(current) > 2 * live + DEAD_BYTES_MIN);
        let chunks = self.records.len().div_ceil(CHUNK_MESSAGES);
        if anew {
            self.dirty = (0..chunks).collect();
        }
        let name = match (&self.current, anew) {
            (Some(current), false) => current.file.clone(),
            (current, _) => format!("state.{}", current.as_ref().map_or(1, |current| generation(&current.file) + 1)),
        };
        // A file left behind by a crash before its first commit is truncated, a kept one is appended to after the last commit.
        let path = self.dir.join(&name);
        let file = disk::open(&path, anew)?;
        let mut at = if anew { 0 } else { self.current.as_ref().map_or(0, length) };
        let unplaced = ChunkPlace { offset: 0, length: 0, crc: 0 };
        self.directory.chunks.resize(chunks, unplaced);
        for &index in &self.dirty {
            let end = self.records.len().min((index + 1) * CHUNK_MESSAGES);
            let bytes = chunk::encode(&self.records[index * CHUNK_MESSAGES..end]);
            disk::write_all_at(&file, &path, &bytes, at)?;
            let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
            self.directory.chunks[index] = ChunkPlace { offset: at, length, crc: crc32c::crc32c(&bytes) };
            at += u64::from(length);
        }
        self.directory.messages = u32::try_from(self.records.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let present = || self.records.iter().filter(|record| record.flags & chunk::bits::GONE == 0);
        self.directory.present = present().count() as u64;
        self.directory.undated = present().filter(|record| record.flags & chunk::bits::UNDATED != 0).count() as u64;
        let bytes = serde_json::to_vec(&self.directory)?;
        disk::write_all_at(&file, &path, &bytes, at)?;
        disk::sync(&file, &path)?;
        let crc = crc32c::crc32c(&bytes);
        let text = self.text.clone();
        let current = Current { format: FORMAT, file: name, offset: at, length: bytes.len() as u64, crc, text };
        self.publish(&current)?;
        self.current = Some(current);
        if anew {
            // Readers that have the old ones open keep them.
            self.remove_leftovers();
        }
        self.dirty.clear();
        Ok(())
    }

    fn publish(&self, current: &Current) -> io::Result<()> {
        let mut line = serde_json::to_vec(current)?;
        line.push(b'\n');
        disk::replace(&self.dir.join(CURRENT), &line)?;
        disk::sync_dir(&self.dir)
    }
}

fn generation(file: &str) -> u64 {
    file.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Column;

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
        // Enough commits to have the file rewritten several times.
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
        let Current { file, .. } = read_current_of_any_format(dir.path()).unwrap();
        let bytes = fs::read(dir.path().join(&file)).unwrap();
        // A crash in the middle of the next commit: bytes after the directory.
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
        let file = dir.path().join(read_current_of_any_format(dir.path()).unwrap().file);
        let mut bytes = fs::read(&file).unwrap();
        bytes[20] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(matches!(StateWriter::open(dir.path()), Err(StateError::Damaged { .. })));
    }
}
