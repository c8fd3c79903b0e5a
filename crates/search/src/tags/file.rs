//! The tag store's file as the database's backend. The index's own lock ensures a single writer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk;

#[derive(Debug)]
pub(super) struct StoreFile {
    file: File,
    path: PathBuf,
}

impl StoreFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Makes an empty file, replacing an existing one.
    pub fn create(path: &Path) -> io::Result<Self> {
        disk::remove_file(path)?;
        disk::open(path, true)?;
        Self::open(path)
    }
}

impl redb::StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        disk::set_len(&self.file, &self.path, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        disk::sync(&self.file, &self.path)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        disk::write_all_at(&self.file, &self.path, data, offset)
    }
}
