//! Files that get their name when they are whole.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::{linkat, openat};

/// Makes unnamed files on one file system (`O_TMPFILE`). Remembers if they are impossible there; clones share that.
#[derive(Debug, Clone, Default)]
pub struct NamelessFiles {
    are_impossible: Arc<AtomicBool>,
}

/// The outcome of [`NamelessFile::link`].
#[derive(Debug)]
#[must_use]
pub enum LinkOutcome {
    /// The file has its name.
    Named,
    /// The file cannot be named: neither the right to link by descriptor, nor /proc. No more are made here.
    Impossible(File),
}

/// An unnamed file, which vanishes with its descriptor unless it is [linked](Self::link).
#[derive(Debug)]
pub struct NamelessFile {
    file: File,
    files: NamelessFiles,
}

impl NamelessFiles {
    /// Makes a file for reading and writing. `None` if this file system or kernel cannot make or name such files: the
    /// caller uses a temporary name.
    ///
    /// # Errors
    /// Others of `openat`.
    pub fn create(&self, dir: impl AsFd, mode: Mode) -> rustix::io::Result<Option<NamelessFile>> {
        if self.are_impossible.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match openat(dir, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok(Some(NamelessFile { file: file.into(), files: self.clone() })),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                self.give_up();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Stops making them.
    pub fn give_up(&self) {
        self.are_impossible.store(true, Ordering::Relaxed);
    }
}

impl NamelessFile {
    /// The file, to write its bytes.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Names the file, without replacing another one. Durable after a sync of the directory.
    ///
    /// # Errors
    /// EEXIST if the name is taken; others of `linkat`.
    pub fn link(self, dir: impl AsFd, name: &str) -> rustix::io::Result<LinkOutcome> {
        let linked = match linkat(&self.file, "", &dir, name, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 this needed CAP_DAC_READ_SEARCH.
            Err(Errno::NOENT) => {
                let itself = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, itself, &dir, name, AtFlags::SYMLINK_FOLLOW)
            }
            linked => linked,
        };
        match linked {
            Ok(()) => Ok(LinkOutcome::Named),
            Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {
                self.files.give_up();
                Ok(LinkOutcome::Impossible(self.file))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    #[test]
    fn a_nameless_file_is_seen_once_linked_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let into = File::open(dir.path()).unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        let files = NamelessFiles::default();
        // Where the file system has none, callers name their files from the beginning.
        let Some(file) = files.create(&into, Mode::RUSR | Mode::WUSR).unwrap() else { return };
        crate::write_all(file.file(), b"whole").unwrap();
        assert_eq!(count(), 0);
        assert!(matches!(file.link(&into, "name"), Ok(LinkOutcome::Named)));
        assert_eq!(std::fs::read(dir.path().join("name")).unwrap(), b"whole");
        let other = files.create(&into, Mode::RUSR).unwrap().unwrap();
        assert_eq!(other.link(&into, "name").unwrap_err(), Errno::EXIST);
        assert_eq!(count(), 1);
    }

    #[test]
    fn files_that_cannot_get_a_name_are_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let into = File::open(dir.path()).unwrap();
        let files = NamelessFiles::default();
        let Some(file) = files.create(&into, Mode::RUSR | Mode::WUSR).unwrap() else { return };
        crate::write_all(file.file(), b"kept").unwrap();
        // As without /proc: the directory for the name is gone.
        std::fs::remove_dir(dir.path()).unwrap();
        let LinkOutcome::Impossible(mut kept) = file.link(&into, "name").unwrap() else { panic!("it has a name") };
        kept.rewind().unwrap();
        assert_eq!(std::io::read_to_string(kept).unwrap(), "kept");
        assert!(files.clone().create(&into, Mode::RUSR).unwrap().is_none());
    }
}
