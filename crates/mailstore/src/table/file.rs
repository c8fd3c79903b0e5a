//! The table's file as used by the database: through `fsops`, so that simulated power cuts see each write.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use redb::{Builder, Database, StorageBackend};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::MetaError;

/// The table's file, in its directory.
pub const FILE: &str = "meta.redb";
const CACHE_BYTES: usize = 16 << 20;

/// The first disk error of a file, which decides the next step.
#[derive(Debug, Clone, Default)]
pub(super) struct FileError(Arc<Mutex<Option<(FileErrorKind, String)>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileErrorKind {
    /// The disk is full. Synced data are unchanged.
    NoRoom,
    /// The disk failed: writes since the last sync may be lost, even if they read well.
    Disk,
}

impl FileError {
    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| {
            let kind = match error.kind() {
                // The file is shorter than the database says: that is damage.
                io::ErrorKind::UnexpectedEof => return,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    FileErrorKind::NoRoom
                }
                _ => FileErrorKind::Disk,
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((kind, error.to_string()));
        })
    }

    pub fn get(&self) -> Option<(FileErrorKind, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Written by one process only, as the spool's lock ensures.
#[derive(Debug)]
pub(super) struct TableFile {
    file: File,
    error: FileError,
}

impl TableFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(path, flags, Mode::empty())?;
        Ok(Self { file: file.into(), error: FileError::default() })
    }

    pub fn open_read_only(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(path, flags, Mode::empty())?;
        Ok(Self { file: file.into(), error: FileError::default() })
    }

    /// An empty file, replacing an existing one.
    pub fn create(path: &Path) -> io::Result<Self> {
        match posthaste_fsops::unlink(path) {
            Err(Errno::NOENT) => {}
            removed => removed?,
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { file: file.into(), error: FileError::default() })
    }

    pub fn error(&self) -> FileError {
        self.error.clone()
    }

    pub fn try_clone(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl StorageBackend for TableFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.error.note(read_exact_at(&self.file, offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.error.note(posthaste_fsops::ftruncate(&self.file, len).map_err(io::Error::from))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.error.note(posthaste_fsops::fdatasync(&self.file).map_err(io::Error::from))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.error.note(posthaste_fsops::write_all_parts(&self.file, &mut [IoSlice::new(data)], Some(offset)))
    }
}

fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        let read = rustix::io::retry_on_intr(|| posthaste_fsops::pread(file, &mut *out, offset))?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += read as u64;
        out = &mut out[read..];
    }
    Ok(())
}

/// A read-only file: repairs of the database stay in memory.
#[derive(Debug)]
pub(super) struct OverlayFile {
    file: File,
    changes: Mutex<Overlay>,
}

#[derive(Debug)]
struct Overlay {
    len: u64,
    /// Blocks that differ from the file, by number.
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

const BLOCK: usize = 4096;

impl OverlayFile {
    pub fn new(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, changes: Mutex::new(Overlay { len, blocks: BTreeMap::new() }) })
    }

    /// Calls `each` with the number of each block of a range, the part of it in the range, and its place in the buffer.
    fn blocks(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == len {
                return None;
            }
            let from = ((offset + at as u64) % BLOCK as u64) as usize;
            let taken = (BLOCK - from).min(len - at);
            let next = ((offset + at as u64) / BLOCK as u64, from..from + taken, at..at + taken);
            at += taken;
            Some(next)
        })
    }

    fn block(&self, number: u64) -> io::Result<Box<[u8; BLOCK]>> {
        let mut block = Box::new([0; BLOCK]);
        let mut filled = 0;
        while filled < BLOCK {
            let at = number * BLOCK as u64 + filled as u64;
            match rustix::io::retry_on_intr(|| posthaste_fsops::pread(&self.file, &mut block[filled..], at))? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(block)
    }
}

impl StorageBackend for OverlayFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.lock().unwrap_or_else(PoisonError::into_inner).len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > changes.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (number, of_block, of_buffer) in Self::blocks(offset, out.len()) {
            match changes.blocks.get(&number) {
                Some(block) => out[of_buffer].copy_from_slice(&block[of_block]),
                None => out[of_buffer].copy_from_slice(&self.block(number)?[of_block]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, of_block, of_data) in Self::blocks(offset, data.len()) {
            let block = match changes.blocks.entry(number) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.block(number)?),
            };
            block[of_block].copy_from_slice(&data[of_data]);
        }
        changes.len = changes.len.max(offset + data.len() as u64);
        Ok(())
    }
}

pub(super) fn open_file(dir: &Path) -> Result<File, MetaError> {
    let path = dir.join(FILE);
    let file = TableFile::open_read_only(&path).and_then(|file| file.try_clone());
    file.map_err(|error| MetaError::Open(format!("{}: {error}", path.display())))
}

pub(super) fn open_database(backend: impl StorageBackend) -> Result<Database, redb::Error> {
    Ok(Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
}

/// Calls the database. A panic in it counts as damage; otherwise the file's first error is the cause.
pub(super) fn guarded<T>(file: &FileError, call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, MetaError> {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
            return Err(MetaError::Damaged(format!("the database panicked: {said}")));
        }
    };
    Err(match file.get() {
        Some((FileErrorKind::NoRoom, error)) => MetaError::NoRoom(error),
        Some((FileErrorKind::Disk, error)) => MetaError::Disk(error),
        None => MetaError::Damaged(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_reads_its_changes_and_leaves_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1; 10_000]).unwrap();
        let overlay = OverlayFile::new(File::open(&path).unwrap()).unwrap();
        overlay.write(4090, &[2; 10]).unwrap();
        overlay.write(12_000, &[3; 5]).unwrap();
        assert_eq!(overlay.len().unwrap(), 12_005);
        let mut read = vec![9; 12_005];
        overlay.read(0, &mut read).unwrap();
        let expected = [vec![1; 4090], vec![2; 10], vec![1; 5900], vec![0; 2000], vec![3; 5]].concat();
        assert!(read == expected);
        assert!(overlay.read(12_000, &mut [0; 6]).is_err());
        assert!(std::fs::read(&path).unwrap() == [1; 10_000]);
    }
}
