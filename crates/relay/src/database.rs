//! Files of redb whose failed syncs are known to all who rely on the same disk.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::FileBackend;
use redb::{BackendError, Database, DatabaseError, StorageBackend, StorageError};
use rustix::fs::{Mode, OFlags};

/// Opens a file and verifies all of its checksums, or makes it. It has its name, durably, only once it is a whole database: an empty file is a damaged one. Blocks.
pub(crate) fn open(path: &Path) -> Result<Database, DatabaseError> {
    if path.try_exists()? {
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
        return opened
            .unwrap_or_else(|_| Err(StorageError::Corrupted("its pages do not fit together".to_owned()).into()));
    }
    let unfinished = path.with_extension("new");
    let file = open_file(&unfinished, OFlags::CREATE | OFlags::TRUNC)?;
    let database = over(file.try_clone()?)?;
    posthaste_fsops::fsync(&file).map_err(io::Error::from)?;
    posthaste_fsops::rename(&unfinished, path).map_err(io::Error::from)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    posthaste_fsops::fsync(File::open(dir)?).map_err(io::Error::from)?;
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
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
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
    fn a_failed_sync_of_it_is_told_to_those_who_use_its_disk_and_nobody_else_opens_it() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.redb");
        let (tell, told) = channel();
        let _watch = posthaste_fsops::watch(File::open(machine.path()).unwrap(), move |what| {
            tell.send(what.to_owned()).unwrap();
        });
        let database = open(&path).unwrap();
        assert!(matches!(open(&path), Err(DatabaseError::DatabaseAlreadyOpen)));
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
