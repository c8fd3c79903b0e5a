//! The files of the log: numbered, rotated by size, written at a position that is kept in the spool.
//!
//! Lines after the cursor may not be durable. They are written again, the same bytes in the same place. So a
//! concurrent reader sees no difference, and bytes that a failed sync has dropped reach the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use posthaste_fsops::FileLock;
use posthaste_spool::{Lsn, SnapshotName};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Events for which there was no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The file's number.
    pub file: u64,
    /// Bytes in front of it.
    pub offset: u64,
}

impl Cursor {
    /// The cursor as text, stored with the stream's position: both become durable together, without a separate file.
    pub(crate) fn name(self) -> SnapshotName {
        SnapshotName::cursor(&format!("{}-{}", self.file, self.offset)).expect("digits and a hyphen")
    }

    pub(crate) fn parse(name: &SnapshotName) -> Option<Self> {
        let (file, offset) = name.as_str().split_once('-')?;
        Some(Cursor { file: file.parse().ok()?, offset: offset.parse().ok()? })
    }
}

/// The name of a file of the log.
pub fn file_name(number: u64) -> String {
    format!("events-{number:08}.jsonl")
}

/// Name of a file after it was closed and compressed.
pub fn packed_name(number: u64) -> String {
    file_name(number) + PACKED
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("events-")?.trim_end_matches(PACKED).strip_suffix(".jsonl")?.parse().ok()
}

pub(crate) struct Files {
    dir: PathBuf,
    file_bytes: u64,
    number: u64,
    file: File,
    /// Bytes of the file that were written in this life.
    offset: u64,
    /// Lines after the written ones.
    buffer: Vec<u8>,
    // Held for its lock.
    _lock: FileLock,
}

impl Files {
    /// Continues at the cursor. Begins a new file if there is none, or if the file before the cursor was modified: its
    /// last line must be of `position` or earlier.
    pub fn open(dir: &Path, file_bytes: u64, cursor: Option<Cursor>, position: Lsn) -> io::Result<Self> {
        posthaste_fsops::make_dir(dir)?;
        let lock = FileLock::try_new(open_file(&dir.join("lock"))?)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, "another process writes to this directory"))?;
        // Readers keep cursors: a number that was in use must not come back when its file is removed.
        let last = numbers(dir)?.last().copied().max(cursor.map(|cursor| cursor.file));
        let found = match cursor {
            Some(cursor) if has_written(&dir.join(file_name(cursor.file)), cursor.offset, position)? => Some(cursor),
            _ => None,
        };
        let cursor = found.unwrap_or(Cursor { file: last.map_or(1, |last| last + 1), offset: 0 });
        let file = open_file(&dir.join(file_name(cursor.file)))?;
        sync_dir(dir)?;
        let number = cursor.file;
        let offset = cursor.offset;
        Ok(Files { dir: dir.to_owned(), file_bytes, number, file, offset, buffer: Vec::new(), _lock: lock })
    }

    /// Adds the lines of one entry, all to one file. True if a new file was begun.
    pub fn cursor(&self) -> Cursor {
        Cursor { file: self.number, offset: self.offset + self.buffer.len() as u64 }
    }

    /// Adds the lines of one entry, all to one file. True if a new file was begun.
    pub fn add(&mut self, lines: &[u8]) -> io::Result<bool> {
        let len = self.cursor().offset;
        let is_full = len > 0 && len + lines.len() as u64 > self.file_bytes;
        if is_full {
            self.begin_next()?;
        }
        self.buffer.extend_from_slice(lines);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write()?;
        }
        Ok(is_full)
    }

    /// Writes the buffered lines, without a sync.
    pub fn write(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            let mut parts = [io::IoSlice::new(&self.buffer)];
            posthaste_fsops::write_all_parts(&self.file, &mut parts, Some(self.offset))?;
            self.offset += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Makes all written lines durable.
    ///
    /// # Errors
    /// Sync errors, and a file that another program removed or truncated.
    pub fn sync(&mut self) -> io::Result<()> {
        self.write()?;
        let found = self.file.metadata()?;
        if found.nlink() == 0 || found.len() < self.offset {
            return Err(io::Error::other(format!("another program has changed {}", file_name(self.number))));
        }
        Ok(posthaste_fsops::fdatasync(&self.file)?)
    }

    /// Truncates remains of an earlier run after the cursor.
    pub fn cut_off_rest(&mut self) -> io::Result<()> {
        self.cut_off()?;
        let later: Vec<u64> = numbers(&self.dir)?.into_iter().filter(|number| *number > self.number).collect();
        self.remove(&later)
    }

    /// Removes the oldest files.
    pub fn keep(&self, files: u64) -> io::Result<()> {
        let old: Vec<u64> = numbers(&self.dir)?.into_iter().filter(|number| number + files <= self.number).collect();
        self.remove(&old)
    }

    fn remove(&self, numbers: &[u64]) -> io::Result<()> {
        for number in numbers {
            unlink_if_there(&self.dir.join(file_name(*number)))?;
            unlink_if_there(&self.dir.join(packed_name(*number)))?;
            // One by one: a power cut must not leave the older of two.
            sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn cut_off(&mut self) -> io::Result<()> {
        self.write()?;
        if self.file.metadata()?.len() > self.offset {
            posthaste_fsops::ftruncate(&self.file, self.offset)?;
        }
        Ok(())
    }

    fn begin_next(&mut self) -> io::Result<()> {
        self.cut_off()?;
        self.sync()?;
        let next = open_file(&self.dir.join(file_name(self.number + 1)))?;
        sync_dir(&self.dir)?;
        (self.file, self.number, self.offset) = (next, self.number + 1, 0);
        Ok(())
    }
}

/// True if a file has this many bytes and its last line is of `position` or earlier: then it is ours.
fn has_written(path: &Path, offset: u64, position: Lsn) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    if file.metadata()?.len() < offset {
        return Ok(false);
    }
    let mut tail = vec![0; offset.min(TAIL_BYTES) as usize];
    let from = offset - tail.len() as u64;
    file.read_exact_at(&mut tail, from)?;
    let Some((b'\n', lines)) = tail.split_last() else { return Ok(offset == 0) };
    let line = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let number = line.strip_prefix(b"{\"lsn\":\"").unwrap_or_default();
    let digits = &number[..number.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    let lsn = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<Lsn>().ok());
    Ok(lsn.is_some_and(|lsn| lsn <= position))
}

/// Numbers of the existing files, in order.
pub(crate) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        numbers.extend(entry?.file_name().to_str().and_then(number_of));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Opens a file for reading and writing; creates it if missing.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    Ok(posthaste_fsops::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP)?.into())
}

pub(crate) fn unlink_if_there(path: &Path) -> io::Result<()> {
    match posthaste_fsops::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(File::open(dir)?)?)
}

const PACKED: &str = ".gz";
const BUFFER_BYTES: usize = 1 << 20;
/// More than a line has at most.
const TAIL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(lsn: u64) -> String {
        format!("{{\"lsn\":\"{lsn}\",\"event\":\"x\"}}\n")
    }

    fn open(dir: &Path, cursor: Option<Cursor>, position: u64) -> Files {
        Files::open(dir, 60, cursor, Lsn::new(position)).expect("opens")
    }

    fn content(dir: &Path) -> Vec<(u64, String)> {
        let read = |number| std::fs::read_to_string(dir.join(file_name(number))).expect("a file");
        numbers(dir).expect("a directory").into_iter().map(|number| (number, read(number))).collect()
    }

    #[test]
    fn files_follow_each_other_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = open(dir.path(), None, 0);
        for lsn in 1..=5 {
            assert_eq!(files.add(line(lsn).as_bytes()).unwrap(), lsn % 2 == 1 && lsn > 1);
        }
        files.sync().unwrap();
        files.keep(2).unwrap();
        assert_eq!(content(dir.path()), [(2, line(3) + &line(4)), (3, line(5))]);
        assert!(Files::open(dir.path(), 60, None, Lsn::ZERO).is_err(), "one process at a time");
    }

    #[test]
    fn lines_after_the_cursor_are_rewritten_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = open(dir.path(), None, 0);
        files.add(line(1).as_bytes()).unwrap();
        files.sync().unwrap();
        let cursor = files.cursor();
        for lsn in 2..=7 {
            files.add(line(lsn).as_bytes()).unwrap();
        }
        files.sync().unwrap();
        let before = content(dir.path());
        drop(files);
        let mut files = open(dir.path(), Some(cursor), 1);
        for lsn in 2..=7 {
            files.add(line(lsn).as_bytes()).unwrap();
            files.write().unwrap();
            assert_eq!(content(dir.path()), before, "nobody sees a difference");
        }
        files.cut_off_rest().unwrap();
        assert_eq!(content(dir.path()), before);
        drop(files);
        let mut files = open(dir.path(), Some(cursor), 1);
        files.add(line(9).as_bytes()).unwrap();
        files.cut_off_rest().unwrap();
        assert_eq!(content(dir.path()), [(1, line(1) + &line(9))], "nor is anything else left");
    }

    #[test]
    fn altered_files_stay_and_a_new_one_begins() {
        let check = |change: &dyn Fn(&Path), expected: u64| {
            let dir = tempfile::tempdir().unwrap();
            let mut files = open(dir.path(), None, 0);
            files.add(line(5).as_bytes()).unwrap();
            files.sync().unwrap();
            let cursor = files.cursor();
            drop(files);
            change(&dir.path().join(file_name(1)));
            assert_eq!(open(dir.path(), Some(cursor), 5).cursor().file, expected);
        };
        check(&|_| (), 1);
        check(&|path| std::fs::write(path, "").unwrap(), 2);
        check(&|path| std::fs::write(path, line(6)).unwrap(), 2);
        check(&|path| std::fs::write(path, line(5).replace("\"x\"", "\"y\"")).unwrap(), 1);
        check(&|path| std::fs::write(path, "x".repeat(99)).unwrap(), 2);
        check(&|path| std::fs::rename(path, path.with_file_name(file_name(7))).unwrap(), 8);
        check(&|path| std::fs::remove_file(path).unwrap(), 2);
    }

    #[test]
    fn a_file_that_another_program_removes_or_empties_is_noticed() {
        for change in [|path: PathBuf| std::fs::remove_file(path), |path: PathBuf| std::fs::write(path, "")] {
            let dir = tempfile::tempdir().unwrap();
            let mut files = open(dir.path(), None, 0);
            files.add(line(1).as_bytes()).unwrap();
            files.sync().unwrap();
            change(dir.path().join(file_name(1))).unwrap();
            assert!(files.sync().is_err());
        }
    }

    #[test]
    fn a_cursor_is_a_name_of_the_spool() {
        let cursor = Cursor { file: 17, offset: 1 << 40 };
        assert_eq!(Cursor::parse(&cursor.name()), Some(cursor));
        assert_eq!(Cursor::parse(&SnapshotName::new("mail").unwrap()), None);
    }
}
