//! redb files, with failed syncs reported to everything that relies on the same disk.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use posthaste_fsops::{MarkedFile, look_for_marked, mark_made};
use redb::backends::FileBackend;
use redb::{BackendError, Database, DatabaseError, StorageBackend, StorageError};
use rustix::fs::{Mode, OFlags};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The file was made once and is gone.
    #[error("the file is missing, but {} records that it existed", mark.display())]
    Missing { mark: PathBuf },
    #[error(transparent)]
    Database(#[from] redb::Error),
}

impl From<DatabaseError> for FileError {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error.into())
    }
}

/// A database file, or the path for one.
///
/// After its first disk error redb writes nothing more and reads only what is in memory. If the disk was full, the file
/// is reopened, so no restart is needed. After other errors it is not: pages lost in a failed sync would still look
/// valid in the page cache.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    path: PathBuf,
    opened: RwLock<Option<Database>>,
    /// A write found the disk full.
    was_full: AtomicBool,
}

impl DatabaseFile {
    /// Opens the file, if it was ever made, and verifies all checksums. Writes nothing unless repair is needed, so it
    /// also opens on a full disk. Blocks.
    ///
    /// # Errors
    /// [`FileError::Missing`], and read errors.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let opened = if is_made(path)? { Some(open_made(path, true)?) } else { None };
        Ok(DatabaseFile { path: path.to_owned(), opened: RwLock::new(opened), was_full: AtomicBool::new(false) })
    }

    /// Runs `read` on the database; `None` if there is no file. Blocks.
    ///
    /// # Errors
    /// Read errors; [`FileError::Missing`].
    pub fn read<T>(&self, read: impl Fn(&Database) -> Result<T, redb::Error>) -> Result<Option<T>, FileError> {
        match self.opened().as_ref().map(&read) {
            None if !is_made(&self.path)? => return Ok(None),
            None => {}
            Some(Err(redb::Error::PreviousIo)) if self.was_full() => {}
            Some(done) => return Ok(Some(done?)),
        }
        self.open_again()?;
        Ok(self.opened().as_ref().map(read).transpose()?)
    }

    /// Runs `write` on the database. The first write makes the file; from then on its loss is detected. Blocks.
    ///
    /// # Errors
    /// Write errors: after a full disk the next write reopens the file. [`FileError::Missing`].
    pub fn write<T>(&self, write: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, FileError> {
        if self.was_full() || self.opened().is_none() {
            self.open_again()?;
        }
        // Before anything in the file is acknowledged.
        mark_made(&self.path).map_err(DatabaseError::from)?;
        let opened = self.opened();
        let written = write(opened.as_ref().ok_or(redb::Error::DatabaseClosed)?);
        if written.as_ref().is_err_and(is_full) {
            self.was_full.store(true, Ordering::Release);
        }
        Ok(written?)
    }

    fn opened(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Acquire)
    }

    /// Reopens a file that was verified at its first opening, or makes a new one.
    fn open_again(&self) -> Result<(), FileError> {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        // Dropped first: it holds the lock of the file.
        *opened = None;
        *opened = Some(if is_made(&self.path)? { open_made(&self.path, false)? } else { make(&self.path)? });
        self.was_full.store(false, Ordering::Release);
        Ok(())
    }
}

fn is_full(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else { return false };
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// True if the file is there; false if it was never made.
fn is_made(path: &Path) -> Result<bool, FileError> {
    match look_for_marked(path).map_err(DatabaseError::from)? {
        MarkedFile::Present => Ok(true),
        MarkedFile::NeverMade => Ok(false),
        MarkedFile::Lost { mark } => Err(FileError::Missing { mark }),
    }
}

fn open_made(path: &Path, verifies: bool) -> Result<Database, DatabaseError> {
    let file = open_file(path, OFlags::empty())?;
    if file.metadata()?.len() == 0 {
        return Err(StorageError::Corrupted("the file is empty".to_owned()).into());
    }
    // redb panics at some damaged files.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut database = over(file)?;
        if verifies {
            database.check_integrity()?;
        }
        Ok(database)
    }));
    opened.unwrap_or_else(|_| Err(StorageError::Corrupted("its pages contradict each other".to_owned()).into()))
}

/// Makes the database under a temporary name: the final name appears, durably, only with a whole database. An empty
/// file counts as damaged.
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

/// Size of redb's page cache.
const CACHE_BYTES: usize = 8 << 20;

/// redb's `FileBackend`, with changes made through fsops.
#[derive(Debug)]
struct Backend {
    inner: FileBackend,
    file: File,
}

impl StorageBackend for Backend {
    fn sync_data(&self) -> io::Result<()> {
        // An error of a sync never counts as a full disk.
        posthaste_fsops::fdatasync(&self.file).map_err(io::Error::other)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(posthaste_fsops::ftruncate(&self.file, len)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        posthaste_fsops::write_all_parts(&self.file, &mut [IoSlice::new(data)], Some(offset))
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

    const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");

    fn put(file: &DatabaseFile, keys: std::ops::Range<u64>) -> Result<(), FileError> {
        file.write(|database| {
            let writing = database.begin_write()?;
            for key in keys {
                writing.open_table(TABLE)?.insert(key, &[7; 100][..])?;
            }
            Ok(writing.commit()?)
        })
    }

    type Rows = Vec<(u64, Vec<u8>)>;

    fn content(file: &DatabaseFile) -> Result<Option<Rows>, FileError> {
        file.read(|database| {
            let table = database.begin_read()?.open_table(TABLE)?;
            let mut rows = Vec::new();
            for row in table.iter()? {
                let (key, value) = row?;
                rows.push((key.value(), value.value().to_vec()));
            }
            Ok(rows)
        })
    }

    fn expected(keys: std::ops::Range<u64>) -> Rows {
        keys.map(|key| (key, vec![7; 100])).collect()
    }

    #[test]
    fn a_file_that_is_cut_off_or_changed_does_not_open_as_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.redb");
        let file = DatabaseFile::open(&path).unwrap();
        put(&file, 0..200).unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the file and its mark");
        let whole = std::fs::read(&path).unwrap();
        let expected = expected(0..200);
        assert_eq!(content(&DatabaseFile::open(&path).unwrap()).unwrap().unwrap(), expected);
        let check = |bytes: &[u8], what: &str| {
            std::fs::write(&path, bytes).unwrap();
            if let Ok(file) = DatabaseFile::open(&path) {
                assert_eq!(content(&file).unwrap().unwrap(), expected, "{what}");
            }
        };
        for part in 0..8 {
            std::fs::write(&path, &whole[..whole.len() * part / 8]).unwrap();
            assert!(DatabaseFile::open(&path).is_err(), "the first {part} eighths");
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
        let file = DatabaseFile::open(&path).unwrap();
        assert_eq!(content(&file).unwrap(), None);
        put(&file, 0..1).unwrap();
        drop(file);
        let mark = dir.path().join("a.redb.made");
        // A kill between the two steps leaves the file alone.
        std::fs::remove_file(&mark).unwrap();
        put(&DatabaseFile::open(&path).unwrap(), 1..2).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = DatabaseFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("is missing") && error.contains("a.redb.made") && !path.exists(), "{error}");
        std::fs::remove_file(&mark).unwrap();
        put(&DatabaseFile::open(&path).unwrap(), 0..1).unwrap();
        assert!(path.exists() && mark.exists());
    }

    #[test]
    fn a_failed_sync_of_the_database_is_told_to_users_of_its_disk() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.redb");
        let (tell, told) = channel();
        let _watch = posthaste_fsops::watch(File::open(machine.path()).unwrap(), move |what| {
            tell.send(what.to_owned()).unwrap();
        });
        let file = DatabaseFile::open(&path).unwrap();
        put(&file, 0..1).unwrap();
        assert!(matches!(DatabaseFile::open(&path), Err(FileError::Database(redb::Error::DatabaseAlreadyOpen))));
        let (syncs, _) = machine.counts();
        machine.set_faults(Faults { fail_syncs: (syncs..syncs + 100).collect(), ..Faults::default() });
        assert!(put(&file, 1..2).is_err());
        assert!(told.recv_timeout(Duration::from_secs(60)).unwrap().contains("fdatasync"));
        machine.set_faults(Faults::default());
    }

    #[test]
    fn a_file_is_written_again_after_its_disk_was_full() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.redb");
        let file = DatabaseFile::open(&path).unwrap();
        put(&file, 0..200).unwrap();
        for round in 1..4 {
            let (_, changes) = machine.counts();
            let full = Some((changes..u64::MAX, rustix::io::Errno::NOSPC));
            machine.set_faults(Faults { fail_changes: full, ..Faults::default() });
            (0..3).for_each(|_| drop(put(&file, 900..1000).unwrap_err()));
            let _ = content(&file);
            machine.set_faults(Faults::default());
            assert_eq!(content(&file).unwrap().unwrap(), expected(0..200 * round));
            put(&file, 200 * round..200 * (round + 1)).unwrap();
            assert_eq!(content(&file).unwrap().unwrap(), expected(0..200 * (round + 1)));
        }
        drop(file);
        assert_eq!(content(&DatabaseFile::open(&path).unwrap()).unwrap().unwrap(), expected(0..800));
    }

    #[test]
    fn a_file_whose_sync_failed_is_not_trusted_again() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.redb");
        let file = DatabaseFile::open(&path).unwrap();
        put(&file, 0..1).unwrap();
        let (syncs, _) = machine.counts();
        machine.set_faults(Faults { fail_syncs: vec![syncs + 1], ..Faults::default() });
        assert!(put(&file, 1..2).is_err() && put(&file, 1..2).is_err());
    }
}
