//! A directory that an export writes into.
//!
//! The directory's owner may change anything in it while root writes. So no link below the named path is followed, and
//! no existing file is opened for writing.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// An open directory. Its path is only used in messages.
pub struct TargetDir {
    fd: OwnedFd,
    path: PathBuf,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Permission bits of new files: mail is readable by its owner only.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

impl TargetDir {
    /// Opens the named directory; links up to it are followed.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn named(path: &Path) -> io::Result<Self> {
        let place = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
        Ok(Self { fd: rustix::fs::open(place, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// Like [`named`](Self::named), but makes the directory and its parents.
    ///
    /// # Errors
    /// Errors of `mkdir` and `open`.
    pub fn make_named(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::named(path)
    }

    /// Opens a subdirectory.
    ///
    /// # Errors
    /// `NotADirectory` for a link; others of `open`.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        match openat(&self.fd, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let why = format!("{name} is a link, which is not followed, or not a directory");
                Err(io::Error::new(io::ErrorKind::NotADirectory, why))
            }
            opened => Ok(Self { fd: opened?, path: self.path.join(name) }),
        }
    }

    /// Like [`below`](Self::below), but makes the directory.
    ///
    /// # Errors
    /// `NotADirectory` for a link; others of `mkdir` and `open`.
    pub fn make_below(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.below(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes an empty file unless the name is taken. Its inode is durable, its name is not.
    ///
    /// # Errors
    /// Errors of `open` and `fsync`.
    pub fn mark(&self, name: &str) -> io::Result<()> {
        match openat(&self.fd, name, NEW_FILE, FILE_MODE) {
            Err(Errno::EXIST) => Ok(()),
            made => File::from(made?).sync_all(),
        }
    }

    /// Makes a file, after removing one that an interrupted export has left.
    ///
    /// # Errors
    /// Errors of `unlink` and `open`.
    pub fn new_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = name.as_ref();
        self.remove(name)?;
        Ok(File::from(openat(&self.fd, name, NEW_FILE, FILE_MODE)?))
    }

    /// Removes a file if it exists.
    ///
    /// # Errors
    /// Errors of `unlink`.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Renames a file, possibly into another directory.
    ///
    /// # Errors
    /// Errors of `rename`.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &Self, new: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.fd, name.as_ref(), &to.fd, new.as_ref())?)
    }

    /// Makes the names in the directory durable.
    ///
    /// # Errors
    /// Errors of `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fsync(&self.fd)?)
    }

    /// The descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
