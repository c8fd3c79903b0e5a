//! Reads the files of a log line by line, for followers and for searches.
//!
//! A [`Cursor`] counts bytes of lines, so it stays valid when its file is compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::bufread::MultiGzDecoder;

use crate::files::{Cursor, file_name, numbers, packed_name};

/// The next item of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A line.
    Line,
    /// The current end.
    End,
    /// Files that were not read completely are gone, from this number on.
    Gap {
        /// Number of the first missing file.
        from: u64,
        /// Number of the first existing file.
        to: u64,
    },
    /// The rest of a closed file is damaged. The next file follows.
    Damaged {
        /// The number of the file.
        file: u64,
    },
}

/// Reads a log from a cursor on, with or without a running server.
pub struct Reader {
    dir: PathBuf,
    cursor: Cursor,
    open: Option<Open>,
}

struct Open {
    lines: Lines,
    /// True if there were later files when this one was opened: it will not grow.
    is_closed: bool,
    is_packed: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("dir", &self.dir).field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl Reader {
    /// Starts at a position.
    pub fn new(dir: impl Into<PathBuf>, cursor: Cursor) -> Self {
        Reader { dir: dir.into(), cursor, open: None }
    }

    /// Begins with the oldest line.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn oldest(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        let file = numbers(&dir)?.first().copied().unwrap_or(1);
        Ok(Reader::new(dir, Cursor { file, offset: 0 }))
    }

    /// Begins with the first file that has lines of this time or later.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn since(dir: impl Into<PathBuf>, time: SystemTime) -> io::Result<Self> {
        let dir = dir.into();
        let all = numbers(&dir)?;
        // A file was changed last by its last line, also once it is compressed.
        let modified = |number: u64| {
            let plain = std::fs::metadata(dir.join(file_name(number)));
            plain.or_else(|_| std::fs::metadata(dir.join(packed_name(number))))?.modified()
        };
        let is_late = |number: &&u64| modified(**number).is_ok_and(|modified| modified >= time);
        let file = all.iter().find(is_late).or(all.last()).copied().unwrap_or(1);
        Ok(Reader::new(dir, Cursor { file, offset: 0 }))
    }

    /// Starts about `bytes` before the end of the newest file, or in the previous file if that one is shorter. The
    /// first line may be incomplete.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn tail(dir: impl Into<PathBuf>, bytes: u64) -> io::Result<Self> {
        let dir = dir.into();
        let all = numbers(&dir)?;
        let newest = all.last().copied().unwrap_or(1);
        let len = std::fs::metadata(dir.join(file_name(newest))).map_or(0, |found| found.len());
        let file = if len < bytes / 16 { all.iter().rev().nth(1).copied().unwrap_or(newest) } else { newest };
        let offset = if file == newest { len.saturating_sub(bytes) } else { 0 };
        Ok(Reader::new(dir, Cursor { file, offset }))
    }

    /// Position of the next line.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Reads the next line, with its line feed, into `line`.
    ///
    /// # Errors
    /// An error of the files; a retry may succeed.
    pub fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Next> {
        loop {
            let Some(open) = &mut self.open else {
                match self.reopen() {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) if is_damage(&error) => return Ok(self.skip_damaged()),
                    Err(error) => return Err(error),
                }
                let to = self.later()?;
                let Some(to) = to else { return Ok(Next::End) };
                let from = std::mem::replace(&mut self.cursor, Cursor { file: to, offset: 0 }).file;
                return Ok(Next::Gap { from, to });
            };
            line.clear();
            let read = (&mut open.lines).take(LINE_BYTES_MAX).read_until(b'\n', line);
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    let was_packed = self.open.take().is_some_and(|open| open.is_packed);
                    return if was_packed && is_damage(&error) { Ok(self.skip_damaged()) } else { Err(error) };
                }
            };
            if line.ends_with(b"\n") {
                self.cursor.offset += read as u64;
                return Ok(Next::Line);
            }
            // What is not a whole line is read again when there is more of it.
            let is_closed = self.open.take().is_some_and(|open| open.is_closed);
            if read as u64 == LINE_BYTES_MAX {
                if is_closed {
                    return Ok(self.skip_damaged());
                }
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line of the event log is incomplete"));
            }
            if is_closed {
                self.cursor = Cursor { file: self.cursor.file + 1, offset: 0 };
            } else if self.later()?.is_none() {
                return Ok(Next::End);
            }
        }
    }

    /// Skips a file whose damage is permanent.
    fn skip_damaged(&mut self) -> Next {
        let file = self.cursor.file;
        self.cursor = Cursor { file: file + 1, offset: 0 };
        Next::Damaged { file }
    }

    /// Number of the next existing file after the cursor's.
    fn later(&self) -> io::Result<Option<u64>> {
        Ok(numbers(&self.dir)?.into_iter().find(|number| *number > self.cursor.file))
    }

    /// Opens the file of the cursor; false if it is missing.
    fn reopen(&mut self) -> io::Result<bool> {
        let is_closed = self.later()?.is_some();
        let Some((lines, is_packed)) = open_at(&self.dir, self.cursor)? else { return Ok(false) };
        self.open = Some(Open { lines, is_closed, is_packed });
        Ok(true)
    }
}

/// The lines of a file.
pub(crate) type Lines = BufReader<Box<dyn Read + Send>>;

/// The lines after a cursor in its file, and true if it is compressed; `None` if it is missing.
pub(crate) fn open_at(dir: &Path, Cursor { file, offset }: Cursor) -> io::Result<Option<(Lines, bool)>> {
    let (found, is_packed): (Box<dyn Read + Send>, _) = match open(&dir.join(file_name(file)))? {
        Some(mut plain) => {
            plain.seek(SeekFrom::Start(offset))?;
            (Box::new(plain), false)
        }
        None => match open(&dir.join(packed_name(file)))? {
            Some(packed) => {
                let mut lines = MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, packed));
                io::copy(&mut (&mut lines).take(offset), &mut io::sink())?;
                (Box::new(lines), true)
            }
            None => return Ok(None),
        },
    };
    Ok(Some((BufReader::with_capacity(BUFFER_BYTES, found), is_packed)))
}

/// The end of a log, where new lines will be.
///
/// # Errors
/// The files cannot be read.
pub fn end(dir: &Path) -> io::Result<Cursor> {
    let file = numbers(dir)?.last().copied().unwrap_or(1);
    let mut reader = Reader::new(dir, Cursor { file, offset: 0 });
    let mut line = Vec::new();
    while reader.next(&mut line)? != Next::End {}
    Ok(reader.cursor())
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// True if the compressed data is invalid. Other errors come from the disk and may pass.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

const BUFFER_BYTES: usize = 64 << 10;
/// More than a line has.
pub(crate) const LINE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::pack::pack;

    fn read(reader: &mut Reader) -> (Vec<String>, Vec<(u64, u64)>) {
        let (mut lines, mut gaps, mut line) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match reader.next(&mut line).unwrap() {
                Next::Line => lines.push(String::from_utf8(line.clone()).unwrap().trim_end().to_owned()),
                Next::Gap { from, to } => gaps.push((from, to)),
                Next::Damaged { file } => panic!("file {file} is damaged"),
                Next::End => return (lines, gaps),
            }
        }
    }

    #[test]
    fn lines_come_in_order_from_all_files_and_a_cursor_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = |number| dir.path().join(file_name(number));
        std::fs::write(path(1), "a\nb\n").unwrap();
        std::fs::write(path(2), "c\nd\n").unwrap();
        std::fs::write(path(3), "e\nhal").unwrap();
        let mut reader = Reader::oldest(dir.path()).unwrap();
        let mut line = Vec::new();
        for _ in 0..3 {
            assert_eq!(reader.next(&mut line).unwrap(), Next::Line);
        }
        let behind_c = reader.cursor();
        assert_eq!(behind_c, Cursor { file: 2, offset: 2 });
        assert_eq!(read(&mut reader), (vec!["d".into(), "e".into()], vec![]), "half a line is none");
        std::fs::write(path(3), "e\nhalf\n").unwrap();
        assert_eq!(read(&mut reader).0, ["half"]);
        assert_eq!(end(dir.path()).unwrap(), reader.cursor());
        let stop = AtomicBool::new(false);
        for number in 1..=2 {
            pack(dir.path(), number, &stop).unwrap();
            assert!(!path(number).exists());
        }
        assert_eq!(read(&mut Reader::oldest(dir.path()).unwrap()).0, ["a", "b", "c", "d", "e", "half"]);
        assert_eq!(read(&mut Reader::new(dir.path(), behind_c)).0, ["d", "e", "half"]);
        std::fs::write(path(4), "f\n").unwrap();
        assert_eq!(read(&mut reader).0, ["f"], "a new file");
        for number in 1..=2 {
            std::fs::remove_file(dir.path().join(packed_name(number))).unwrap();
        }
        let (lines, gaps) = read(&mut Reader::new(dir.path(), Cursor { file: 1, offset: 2 }));
        assert_eq!((lines, gaps), (vec!["e".to_owned(), "half".into(), "f".into()], vec![(1, 3)]));
    }

    #[test]
    fn behind_a_damaged_compressed_file_the_next_one_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..100_000).map(|number| format!("{number}\n")).collect();
        std::fs::write(dir.path().join(file_name(1)), &text).unwrap();
        pack(dir.path(), 1, &AtomicBool::new(false)).unwrap();
        std::fs::write(dir.path().join(file_name(2)), "a\n").unwrap();
        let path = dir.path().join(packed_name(1));
        let sound = std::fs::read(&path).unwrap();
        let altered = |at: usize| {
            let mut bytes = sound.clone();
            bytes[at] ^= 0xff;
            bytes
        };
        for damaged in [Vec::new(), b"no gzip".to_vec(), sound[..sound.len() / 2].to_vec(), altered(sound.len() - 6)] {
            std::fs::write(&path, &damaged).unwrap();
            for offset in [0, 5] {
                let mut reader = Reader::new(dir.path(), Cursor { file: 1, offset });
                let (mut line, mut found) = (Vec::new(), 0);
                let damage = loop {
                    match reader.next(&mut line).unwrap() {
                        Next::Line => found += 1,
                        other => break other,
                    }
                };
                assert_eq!(damage, Next::Damaged { file: 1 }, "{} bytes, {found} lines", damaged.len());
                assert_eq!(read(&mut reader).0, ["a"]);
            }
        }
    }
}
