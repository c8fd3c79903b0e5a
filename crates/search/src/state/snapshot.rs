//! Reading the side store: an immutable view of one commit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::StateError;
use super::chunk::{self, CHUNK_MESSAGES, Column, Record};
use super::current::{Current, directory_bytes, read_current};
use super::directory::{FolderState, IndexDirectory};

/// An immutable view of one commit.
pub struct Snapshot {
    dir: PathBuf,
    file: File,
    pub(super) directory: IndexDirectory,
    pub(super) current: Current,
    /// Ends of file names, by chunk.
    name_ends: Vec<NameEnds>,
}

#[derive(Default)]
struct NameEnds {
    all: OnceLock<Vec<u32>>,
    asked: AtomicU32,
}

const NAMES_ONE_BY_ONE: u32 = 64;

impl Snapshot {
    /// Opens the newest commit. Never waits for a writer.
    ///
    /// # Errors
    /// All of [`StateError`] but `Locked`.
    pub fn open(dir: &Path) -> Result<Self, StateError> {
        let io = |error| StateError::Io { dir: dir.to_owned(), error };
        loop {
            let current = read_current(dir)?;
            let name = current.file.clone();
            let damaged = |what: &str| StateError::Damaged { dir: dir.to_owned(), what: format!("{name}: {what}") };
            let file = match File::open(dir.join(&current.file)) {
                // Written again between our two looks; `current` says by now where.
                Err(e) if e.kind() == io::ErrorKind::NotFound && read_current(dir)?.file != current.file => continue,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(damaged("it is missing")),
                opened => opened.map_err(io)?,
            };
            let bytes = directory_bytes(&file, &current).map_err(io)?;
            let bytes = bytes.ok_or_else(|| damaged("the directory's checksum is wrong"))?;
            let directory: IndexDirectory = serde_json::from_slice(&bytes).map_err(|e| damaged(&e.to_string()))?;
            let file_bytes = file.metadata().map_err(io)?.len();
            directory.check(file_bytes).map_err(damaged)?;
            let name_ends = directory.chunks.iter().map(|_| NameEnds::default()).collect();
            return Ok(Self { dir: dir.to_owned(), file, directory, current, name_ends });
        }
    }

    /// Data about all messages together.
    pub fn directory(&self) -> &IndexDirectory {
        &self.directory
    }

    /// Name of the file with the chunks and the directory.
    pub(crate) fn file_name(&self) -> &str {
        &self.current.file
    }

    /// Directory of the text index that belongs to this commit.
    pub fn text_dir(&self) -> PathBuf {
        self.dir.join(&self.current.text)
    }

    /// True if a newer commit uses another text index.
    pub fn is_superseded(&self) -> bool {
        read_current(&self.dir).is_ok_and(|current| current.text != self.current.text)
    }

    /// True if there is no newer commit.
    pub fn is_newest(&self) -> bool {
        read_current(&self.dir).is_ok_and(|current| current == self.current)
    }

    /// A column of 8-byte values, one for each message number.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn wide(&self, column: Column) -> Result<Vec<u64>, StateError> {
        let mut all = Vec::with_capacity(self.directory.messages as usize);
        self.for_each_wide(column, |_, values| all.extend(values.iter().map(|b| u64::from_le_bytes(*b))))?;
        Ok(all)
    }

    /// Calls `each` with the parts of a column of 8-byte values, each with the number of its first message.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub(crate) fn for_each_wide(
        &self,
        column: Column,
        mut each: impl FnMut(u32, &[[u8; 8]]),
    ) -> Result<(), StateError> {
        let mut first = 0;
        self.for_each_part(column, |part| {
            let values = part.as_chunks::<8>().0;
            each(first, values);
            first += values.len() as u32;
        })
    }

    /// A column of 4-byte values.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn narrow(&self, column: Column) -> Result<Vec<u32>, StateError> {
        let mut all = Vec::with_capacity(self.directory.messages as usize);
        self.for_each_part(column, |part| all.extend(part.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b))))?;
        Ok(all)
    }

    /// Reads a column through one small buffer: touching fresh memory costs more than the read.
    fn for_each_part(&self, column: Column, mut each: impl FnMut(&[u8])) -> Result<(), StateError> {
        let mut buffer = vec![0; CHUNK_MESSAGES * chunk::place(column, 0).1];
        for (index, place) in self.directory.chunks.iter().enumerate() {
            let (offset, width) = chunk::place(column, self.directory.count(index));
            let part = &mut buffer[..self.directory.count(index) * width];
            self.read(part, place.offset + offset as u64)?;
            each(part);
        }
        Ok(())
    }

    /// Reads one value of a column, 4 or 8 bytes wide. For a few messages that is less work than the whole column.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`] if there is no such number.
    pub fn value(&self, column: Column, number: u32) -> Result<u64, StateError> {
        let index = number as usize / CHUNK_MESSAGES;
        let row = number as usize % CHUNK_MESSAGES;
        let count = self.directory.count(index);
        let place = self.directory.chunks.get(index).filter(|_| row < count);
        let place = place.ok_or_else(|| self.damaged(format!("there is no message {number}")))?;
        let (offset, width) = chunk::place(column, count);
        let mut bytes = [0; 8];
        let width = width.min(bytes.len());
        self.read(&mut bytes[..width], place.offset + (offset + row * width) as u64)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The digest of a message's content.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`] if there is no such number.
    pub(crate) fn digest(&self, number: u32) -> Result<u128, StateError> {
        let index = number as usize / CHUNK_MESSAGES;
        let row = number as usize % CHUNK_MESSAGES;
        let count = self.directory.count(index);
        let place = self.directory.chunks.get(index).filter(|_| row < count);
        let place = place.ok_or_else(|| self.damaged(format!("there is no message {number}")))?;
        let mut bytes = [0; 16];
        self.read(&mut bytes, place.offset + (chunk::place(Column::Digest, count).0 + row * 16) as u64)?;
        Ok(u128::from_le_bytes(bytes))
    }

    /// The numbers of all messages with this content.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub(crate) fn with_digest(&self, digest: u128) -> Result<Vec<u32>, StateError> {
        let mut number = 0;
        let mut found = Vec::new();
        self.for_each_part(Column::Digest, |part| {
            for value in part.as_chunks::<16>().0 {
                if u128::from_le_bytes(*value) == digest {
                    found.push(number);
                }
                number += 1;
            }
        })?;
        Ok(found)
    }

    /// A message's file name, without directory.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`], also if there is no such number.
    pub fn name(&self, number: u32) -> Result<String, StateError> {
        let damaged = || self.damaged(format!("the name of message {number}"));
        let index = number as usize / CHUNK_MESSAGES;
        let place = *self.directory.chunks.get(index).ok_or_else(damaged)?;
        let end = self.name_end(number)?;
        let is_first = (number as usize).is_multiple_of(CHUNK_MESSAGES);
        let start = if is_first { 0 } else { self.name_end(number - 1)? };
        let length = end.checked_sub(start).filter(|_| end <= u64::from(place.length)).ok_or_else(damaged)?;
        let mut name = vec![0; usize::try_from(length).map_err(|_| damaged())?];
        self.read(&mut name, place.offset + chunk::names_offset(self.directory.count(index)) as u64 + start)?;
        String::from_utf8(name).map_err(|_| damaged())
    }

    /// End of a name. Read singly at first; a chunk's ends are all loaded once many are needed.
    fn name_end(&self, number: u32) -> Result<u64, StateError> {
        let index = number as usize / CHUNK_MESSAGES;
        let row = number as usize % CHUNK_MESSAGES;
        let NameEnds { all, asked } = &self.name_ends[index];
        if let Some(ends) = all.get() {
            let end = ends.get(row).ok_or_else(|| self.damaged(format!("the name of message {number}")))?;
            return Ok(u64::from(*end));
        }
        if asked.fetch_add(1, Ordering::Relaxed) >= NAMES_ONE_BY_ONE {
            let place = self.directory.chunks[index];
            let count = self.directory.count(index);
            let mut bytes = vec![0; count * 4];
            self.read(&mut bytes, place.offset + chunk::place(Column::NameEnd, count).0 as u64)?;
            all.get_or_init(|| bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect());
        }
        self.value(Column::NameEnd, number)
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.directory.chunks.len()
    }

    /// Calls `each` with folder, flags and file name of every message of a chunk. Allocates nothing for each, and
    /// checks no checksum.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`].
    pub(crate) fn for_each_name(&self, index: usize, mut each: impl FnMut(u32, u64, &[u8])) -> Result<(), StateError> {
        let place = self.directory.chunks[index];
        let count = self.directory.count(index);
        let column = |column: Column| {
            let (offset, width) = chunk::place(column, count);
            let mut bytes = vec![0; count * width];
            self.read(&mut bytes, place.offset + offset as u64).map(|()| bytes)
        };
        let flags = column(Column::Flags)?;
        let folders = column(Column::Folder)?;
        let ends = column(Column::NameEnd)?;
        let ends = ends.as_chunks::<4>().0;
        let last = ends.last().map_or(0, |end| u32::from_le_bytes(*end)).min(place.length);
        let mut names = vec![0; last as usize];
        self.read(&mut names, place.offset + chunk::names_offset(count) as u64)?;
        let mut start = 0;
        for ((flags, folder), end) in flags.as_chunks::<8>().0.iter().zip(folders.as_chunks::<4>().0).zip(ends) {
            let end = u32::from_le_bytes(*end) as usize;
            let name = names.get(start..end).ok_or_else(|| self.damaged(format!("the names of chunk {index}")))?;
            each(u32::from_le_bytes(*folder), u64::from_le_bytes(*flags), name);
            start = end;
        }
        Ok(())
    }

    /// Calls `each` with number, flags and file name of every message of a folder. A chunk without any costs one
    /// column.
    ///
    /// # Errors
    /// [`StateError::Io`], [`StateError::Damaged`].
    pub(crate) fn for_each_name_in(
        &self,
        folder: u32,
        mut each: impl FnMut(u32, u64, &[u8]),
    ) -> Result<(), StateError> {
        for index in 0..self.chunks() {
            let count = self.directory.count(index);
            let (offset, width) = chunk::place(Column::Folder, count);
            let mut folders = vec![0; count * width];
            self.read(&mut folders, self.directory.chunks[index].offset + offset as u64)?;
            if !folders.as_chunks::<4>().0.iter().any(|found| u32::from_le_bytes(*found) == folder) {
                continue;
            }
            let mut number = (index * CHUNK_MESSAGES) as u32;
            self.for_each_name(index, |of, flags, name| {
                if of == folder {
                    each(number, flags, name);
                }
                number += 1;
            })?;
        }
        Ok(())
    }

    /// Calls `each` with the number of every message of a chunk and each hash that it refers to. Checks no checksum.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub(crate) fn for_each_reference(&self, index: usize, mut each: impl FnMut(u32, u64)) -> Result<(), StateError> {
        let place = self.directory.chunks[index];
        let count = self.directory.count(index);
        let mut bytes = vec![0; place.length as usize];
        self.read(&mut bytes, place.offset)?;
        chunk::for_each_reference(&bytes, count, |row, hash| {
            // A chunk's messages have numbers below 2^32.
            each((index * CHUNK_MESSAGES + row) as u32, hash);
        });
        Ok(())
    }

    /// Bytes of a message's path: its root, folder, `new` or `cur`, and name.
    ///
    /// # Errors
    /// Like [`name`](Self::name).
    pub fn path(&self, number: u32, folder: u32, is_new: bool) -> Result<PathBuf, StateError> {
        let folder = self.folder(folder)?;
        let mut path = self.directory.roots[folder.root as usize].join(&folder.path);
        path.push(if is_new { "new" } else { "cur" });
        path.push(self.name(number)?);
        Ok(path)
    }

    /// # Errors
    /// [`StateError::Damaged`] if there is no such folder.
    pub(crate) fn folder(&self, index: u32) -> Result<&FolderState, StateError> {
        let folder = self.directory.folders.get(index as usize);
        folder.ok_or_else(|| self.damaged(format!("folder {index} of {}", self.directory.folders.len())))
    }

    fn damaged(&self, what: String) -> StateError {
        StateError::Damaged { dir: self.dir.clone(), what }
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
            let fits = |record: &Record| {
                (record.folder as usize) < self.directory.folders.len().max(1)
                    && (record.tags as usize) < self.directory.tag_sets.len()
            };
            let records =
                records.filter(|records| records.len() == self.directory.count(index) && records.iter().all(fits));
            let what = || format!("chunk {index} of {}", self.directory.chunks.len());
            all.extend(records.ok_or_else(|| self.damaged(what()))?);
        }
        Ok(all)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), StateError> {
        self.file.read_exact_at(bytes, offset).map_err(|error| StateError::Io { dir: self.dir.clone(), error })
    }
}
