//! All calls by which an index changes its files, in one place: tests stop at each of them, as a kill would.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use tantivy::directory::{AntiCallToken, TerminatingWrite};

/// A file that is being written from its beginning. Durable once [`sync`](Self::sync) has returned.
pub(crate) struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    /// A new, empty file. An existing one is unlinked first; processes that have it open or mapped keep its old content.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        remove_file(&path)?;
        step(&path)?;
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Self { file, path })
    }

    pub fn sync(&self) -> io::Result<()> {
        sync(&self.file, &self.path)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(stopped) = step(&self.path) {
            // As a kill or a full disk leaves it.
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(stopped);
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TerminatingWrite for Output {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.sync()
    }
}

/// Opens a file for writing at any offset, making it if there is none; `truncate` empties it.
pub(crate) fn open(path: &Path, truncate: bool) -> io::Result<File> {
    step(path)?;
    File::options().create(true).write(true).truncate(truncate).open(path)
}

pub(crate) fn write_all_at(file: &File, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
    if let Err(stopped) = step(path) {
        file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
        return Err(stopped);
    }
    file.write_all_at(bytes, offset)
}

pub(crate) fn set_len(file: &File, path: &Path, len: u64) -> io::Result<()> {
    step(path)?;
    file.set_len(len)
}

/// Makes a file's content durable.
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    step(path)?;
    // No test here cuts the power, and some commit thousands of times.
    if cfg!(test) || UnsyncedDir::holds(path) { Ok(()) } else { Ok(posthaste_fsops::fdatasync(file)?) }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    step(dir)?;
    if cfg!(test) || UnsyncedDir::holds(dir) { Ok(()) } else { Ok(posthaste_fsops::fsync(File::open(dir)?)?) }
}

/// While this value exists, nothing below the directory is fsynced: only the process that writes there reads it.
#[derive(Debug)]
pub(crate) struct UnsyncedDir(PathBuf);

/// Directories of all live [`UnsyncedDir`]s. A scan of a short list suffices: there are few, and syncs are rare.
static UNSYNCED_DIRS: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());

impl UnsyncedDir {
    pub fn new(dir: &Path) -> Self {
        UNSYNCED_DIRS.write().unwrap_or_else(PoisonError::into_inner).push(dir.to_owned());
        Self(dir.to_owned())
    }

    fn holds(path: &Path) -> bool {
        UNSYNCED_DIRS.read().unwrap_or_else(PoisonError::into_inner).iter().any(|dir| path.starts_with(dir))
    }
}

impl Drop for UnsyncedDir {
    fn drop(&mut self) {
        let mut all = UNSYNCED_DIRS.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|dir| *dir == self.0) {
            all.swap_remove(at);
        }
    }
}

/// Replaces a file by one with this content, in one step. Durable with the next [`sync_dir`].
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(TEMPORARY);
    let temporary = path.with_file_name(name);
    let mut output = Output::create(temporary.clone())?;
    output.write_all(content)?;
    output.sync()?;
    rename(&temporary, path)
}

/// Suffix of a file before [`replace`] moves it into place.
pub(crate) const TEMPORARY: &str = ".tmp";

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step(to)?;
    fs::rename(from, to)
}

/// Removes a file; a missing one is no error.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    step(path)?;
    unless_missing(fs::remove_file(path))
}

/// Like [`remove_file`], for a directory with its content.
pub(crate) fn remove_dir_all(dir: &Path) -> io::Result<()> {
    step(dir)?;
    unless_missing(fs::remove_dir_all(dir))
}

fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(not(test))]
#[inline]
fn step(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use stopping::{StoppedDisk, step};

#[cfg(test)]
mod stopping {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};

    /// Counts the calls below a directory and fails all from the n-th on: the disk then holds what a kill at that call
    /// leaves.
    pub(crate) struct StoppedDisk(Arc<Disk>);

    struct Disk {
        dir: PathBuf,
        calls: Mutex<u64>,
        allowed: u64,
    }

    static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());

    fn disks() -> std::sync::MutexGuard<'static, Vec<Arc<Disk>>> {
        DISKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl StoppedDisk {
        pub fn after(dir: &Path, allowed: u64) -> Self {
            let disk = Arc::new(Disk { dir: dir.to_owned(), calls: Mutex::new(0), allowed });
            disks().push(disk.clone());
            Self(disk)
        }

        /// Calls so far, including failed ones.
        pub fn calls(&self) -> u64 {
            *self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Drop for StoppedDisk {
        fn drop(&mut self) {
            disks().retain(|disk| !Arc::ptr_eq(disk, &self.0));
        }
    }

    pub(crate) fn step(path: &Path) -> io::Result<()> {
        let disk = disks().iter().find(|disk| path.starts_with(&disk.dir)).cloned();
        let Some(disk) = disk else { return Ok(()) };
        let mut calls = disk.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        if *calls > disk.allowed { Err(io::Error::other("stopped here")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_synced_where_nothing_is_to_last() {
        let dir = Path::new("/tmp/posthaste-scan.x");
        let files = [dir.join("text/meta.json"), dir.to_owned()];
        {
            let _unsynced = UnsyncedDir::new(dir);
            let _another = UnsyncedDir::new(Path::new("/tmp/posthaste-scan.y"));
            assert!(files.iter().all(|file| UnsyncedDir::holds(file)));
            assert!(!UnsyncedDir::holds(Path::new("/tmp/posthaste-scan.xy/lock")));
        }
        assert!(!files.iter().any(|file| UnsyncedDir::holds(file)));
    }
}
