//! Files of redb whose failed syncs are known to all who rely on the same disk.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use posthaste_fsops::{MarkedFile, look_for_marked, mark_made};
use redb::backends::FileBackend;
use redb::{BackendError, Database, DatabaseError, StorageBackend, StorageError};
use rustix::fs::{Mode, OFlags};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It was made once, and is gone.
    #[error("the file is missing, and {} says that there was one", mark.display())]
    Missing { mark: PathBuf },
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// True if the file is there; false if it was never made.
///
/// # Errors
/// [`FileError::Missing`], and errors of looking.
pub(crate) fn is_made(path: &Path) -> Result<bool, FileError> {
    match look_for_marked(path).map_err(DatabaseError::from)? {
        MarkedFile::Present => Ok(true),
        MarkedFile::NeverMade => Ok(false),
        MarkedFile::Lost { mark } => Err(FileError::Missing { mark }),
    }
}

/// Opens a file and verifies all of its checksums, or makes it. It has its name, durably, only once it is a whole database: an empty file is a damaged one. Blocks.
///
/// # Errors
/// [`FileError::Missing`]: it was made before.
pub(crate) fn open(path: &Path) -> Result<Database, FileError> {
    let database = if is_made(path)? { open_made(path)? } else { make(path)? };
    mark_made(path).map_err(DatabaseError::from)?;
    Ok(database)
}

fn open_made(path: &Path) -> Result<Database, DatabaseError> {
    let file = open_file(path, OFlags::empty())?;
    if file.metadata()?.len() == 0 {
        return Err(StorageError::Corrupted("the file is empty".to_owned()).into());
    }
    // redb panics at some damaged files.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut database = over(file)?;
        database.check_integrity()?;
        Ok(database)
    }));
    opened.unwrap_or_else(|_| Err(StorageError::Corrupted("its pages do not fit together".to_owned()).into()))
}

fn make(path: &Path) -> Result<Database, DatabaseError> {
    let unfinished = posthaste_fsops::unfinished(path);
    let file = open_file(&unfinished, OFlags::CREATE | OFlags::TRUNC)?;
    let database = over(file.try_clone()?)?;
    posthaste_fsops::put_in_place(&file, &unfinished, path).map_err(io::Error::from)?;
    Ok(database)
}

fn open_file(path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
    Ok(posthaste_fsops::open(path, flags, Mode::from_raw_mode(0o666))?.into())
}

fn over(file: File) -> Result<Database, DatabaseError> {
    let backend = Backend { inner: FileBackend::new(file.try_clone()?)?, file };
    Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)
}

/// Pages of the file that are kept in memory.
const CACHE_BYTES: usize = 8 << 20;

/// Like redb's `FileBackend`, but reports failed syncs through fsops.
#[derive(Debug)]
struct Backend {
    inner: FileBackend,
    file: File,
}

impl StorageBackend for Backend {
    fn sync_data(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fdatasync(&self.file)?)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use posthaste_fsops::{Faults, Machine};
    use redb::{ReadableDatabase, ReadableTable, TableDefinition};

    use super::*;

    #[test]
    fn a_file_that_is_cut_off_or_changed_does_not_open_as_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.redb");
        let table = TableDefinition::<u64, &[u8]>::new("t");
        let database = open(&path).unwrap();
        let writing = database.begin_write().unwrap();
        for key in 0..200 {
            writing.open_table(table).unwrap().insert(key, &[7; 100][..]).unwrap();
        }
        writing.commit().unwrap();
        drop(database);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the file and its mark");
        let whole = std::fs::read(&path).unwrap();
        let content = |database: &Database| {
            let table = database.begin_read().unwrap().open_table(table).unwrap();
            table
                .iter()
                .unwrap()
                .map(|row| row.unwrap())
                .map(|(key, value)| (key.value(), value.value().to_vec()))
                .collect::<Vec<_>>()
        };
        let expected: Vec<_> = (0..200).map(|key| (key, vec![7; 100])).collect();
        assert_eq!(content(&open(&path).unwrap()), expected);
        let check = |bytes: &[u8], what: &str| {
            std::fs::write(&path, bytes).unwrap();
            if let Ok(database) = open(&path) {
                assert_eq!(content(&database), expected, "{what}");
            }
        };
        for part in 0..8 {
            std::fs::write(&path, &whole[..whole.len() * part / 8]).unwrap();
            assert!(open(&path).is_err(), "the first {part} eighths");
        }
        for at in (0..whole.len()).step_by(whole.len() / 300) {
            let mut bytes = whole.clone();
            bytes[at] ^= 16;
            check(&bytes, &format!("byte {at}"));
        }
    }

    #[test]
    fn a_file_that_was_made_and_is_gone_is_not_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.redb");
        assert!(!is_made(&path).unwrap());
        drop(open(&path).unwrap());
        let mark = dir.path().join("a.redb.made");
        // A kill between the two leaves the file alone.
        std::fs::remove_file(&mark).unwrap();
        drop(open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("is missing") && error.contains("a.redb.made"), "{error}");
        assert!(matches!(is_made(&path), Err(FileError::Missing { .. })) && !path.exists());
        std::fs::remove_file(&mark).unwrap();
        drop(open(&path).unwrap());
        assert!(is_made(&path).unwrap() && mark.exists());
    }

    #[test]
    fn a_failed_sync_of_it_is_told_to_those_who_use_its_disk_and_nobody_else_opens_it() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.redb");
        let (tell, told) = channel();
        let _watch = posthaste_fsops::watch(File::open(machine.path()).unwrap(), move |what| {
            tell.send(what.to_owned()).unwrap();
        });
        let database = open(&path).unwrap();
        assert!(matches!(open(&path), Err(FileError::Database(DatabaseError::DatabaseAlreadyOpen))));
        let write = || {
            let writing = database.begin_write().unwrap();
            writing.open_table(TableDefinition::<u64, u64>::new("t")).unwrap().insert(1, 2).unwrap();
            writing.commit()
        };
        write().unwrap();
        let (_, syncs) = machine.counts();
        machine.set_faults(Faults { fail_syncs: (syncs..syncs + 100).collect(), ..Faults::default() });
        assert!(write().is_err());
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().contains("fdatasync"));
        machine.set_faults(Faults::default());
    }
}
