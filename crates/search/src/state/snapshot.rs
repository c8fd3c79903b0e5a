//! Reading the side store: one commit, as it was when it was opened.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::StateError;
use super::chunk::{self, CHUNK_MESSAGES, Column, Record};

/// Names the newest commit.
pub(super) const CURRENT: &str = "current";
pub(super) const FORMAT: u32 = 1;
/// Where the text index is, unless a rebuild put another in its place.
const TEXT_DIR: &str = "text";

/// What is known of all messages together; small, read whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Message numbers given out so far, those of gone messages included.
    pub messages: u32,
    /// Messages that are there: numbers without those of gone messages.
    pub present: u64,
    pub(super) chunks: Vec<ChunkPlace>,
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
pub(super) struct ChunkPlace {
    pub offset: u64,
    pub length: u32,
    pub crc: u32,
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
pub(super) struct Current {
    pub format: u32,
    pub file: String,
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
    /// Name of the text index's directory: both halves change in one step.
    #[serde(default = "first_text_dir")]
    pub text: String,
}

fn first_text_dir() -> String {
    TEXT_DIR.to_owned()
}

/// One commit, as it was when it was opened.
pub struct Snapshot {
    dir: PathBuf,
    file: File,
    pub(super) directory: Directory,
    pub(super) current: Current,
    name_ends: Vec<OnceLock<Vec<u32>>>,
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
            let name_ends = directory.chunks.iter().map(|_| OnceLock::new()).collect();
            return Ok(Self { dir: dir.to_owned(), file, directory, current, name_ends });
        }
    }

    /// What is known of all messages together.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Where the text index is that belongs to this commit.
    pub fn text_dir(&self) -> PathBuf {
        self.dir.join(&self.current.text)
    }

    /// Whether a newer commit has put another text index in the place of this one's.
    pub fn is_superseded(&self) -> bool {
        read_current(&self.dir).is_ok_and(|current| current.text != self.current.text)
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

pub(super) fn read_current(dir: &Path) -> Result<Current, StateError> {
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
