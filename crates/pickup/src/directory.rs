//! The directory: its file names, access rights, and durability of names.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use posthaste_fsops as fsops;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;

/// Age without a write after which an unfinished file is removed, as in a Maildir's `tmp/`.
pub const UNFINISHED_AGE_MAX: Duration = Duration::from_secs(36 * 3600);

/// A directory that is open.
///
/// A name with a leading dot is an unfinished file; any other file is a message. Directories are ignored.
#[derive(Debug)]
pub struct PickupDirectory {
    path: PathBuf,
    fd: OwnedFd,
    /// True if we may list it, which its fsync needs.
    is_readable: bool,
    uid: u32,
    gid: u32,
    hands_on_group: bool,
}

impl PickupDirectory {
    /// Opens a directory. A write-only one (mode 3733) is usable for new files only.
    ///
    /// # Errors
    /// It is missing, or access is denied.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (fd, is_readable) = match fsops::open(path, flags | OFlags::RDONLY, Mode::empty()) {
            Err(Errno::ACCESS) => (fsops::open(path, flags | OFlags::PATH, Mode::empty())?, false),
            opened => (opened?, true),
        };
        Self::of(path, fd, is_readable)
    }

    fn of(path: &Path, fd: OwnedFd, is_readable: bool) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let hands_on_group = stat.st_mode & Mode::SGID.as_raw_mode() != 0;
        Ok(Self { path: path.to_owned(), fd, is_readable, uid: stat.st_uid, gid: stat.st_gid, hands_on_group })
    }

    /// Creates the directory and missing ones above it, with mode 0700: its owner may open it to others later.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and those of making it.
    pub fn make(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            fsops::make_dir(path)?;
        }
        Self::open(path)
    }

    /// Opens a directory below this one, and creates it (mode 0700) if it is missing. Follows no link: others may have
    /// placed it there.
    ///
    /// # Errors
    /// An error of making or opening it.
    pub fn make_below(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let open = || fsops::openat(&self.fd, name, flags, Mode::empty());
        let fd = match open() {
            Err(Errno::NOENT) => {
                fsops::mkdirat(&self.fd, name, Mode::RWXU)?;
                self.sync()?;
                open()?
            }
            opened => opened?,
        };
        Self::of(&self.path.join(name), fd, true)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The user that it belongs to: the server's.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Applies `choose` to messages, unordered, and returns at most `max` results; true if there may be more.
    ///
    /// # Errors
    /// An error of reading it.
    pub fn files<T>(&self, max: usize, mut choose: impl FnMut(&DirEntry) -> Option<T>) -> io::Result<(Vec<T>, bool)> {
        let mut chosen = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if is_unfinished(&entry.file_name()) || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let Some(file) = choose(&entry) else { continue };
            if chosen.len() == max {
                return Ok((chosen, true));
            }
            chosen.push(file);
        }
        Ok((chosen, false))
    }

    /// Owner of the message with that name, if it exists.
    pub fn owner(&self, name: &OsStr) -> Option<u32> {
        let found = rustix::fs::statat(&self.fd, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        (!is_dir && !is_unfinished(name)).then_some(found.st_uid)
    }

    /// The names of all messages, in no order.
    ///
    /// # Errors
    /// An error of reading it.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(self.files(usize::MAX, |file| Some(file.file_name()))?.0)
    }

    /// Removes unfinished files without a write for [`UNFINISHED_AGE_MAX`] before `now`. Returns their number.
    ///
    /// # Errors
    /// An error of reading it. A file that cannot be removed stays.
    pub fn remove_unfinished(&self, now: SystemTime) -> io::Result<usize> {
        let mut removed = 0;
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if !is_unfinished(&entry.file_name()) {
                continue;
            }
            let Ok(found) = entry.metadata() else { continue };
            let age = found.modified().ok().and_then(|modified| now.duration_since(modified).ok());
            if found.is_file() && age.is_some_and(|age| age >= UNFINISHED_AGE_MAX) {
                removed += usize::from(self.remove(&entry.file_name()).is_ok());
            }
        }
        Ok(removed)
    }

    /// Removes a message that is safe elsewhere; durable with [`sync`](Self::sync).
    ///
    /// # Errors
    /// Errors of `unlink`. A missing file is no error.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match fsops::unlinkat(&self.fd, name.as_bytes(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// `name` if it is free, else the name with a number appended.
    pub fn free_name(&self, name: &OsStr) -> OsString {
        let is_free =
            |name: &OsString| rustix::fs::statat(&self.fd, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).is_err();
        let numbered = |number: u64| [name.as_bytes(), format!(".{number}").as_bytes()].concat();
        let mut names = (1..).map(|number| OsString::from_vec(numbered(number)));
        Some(name.to_owned()).filter(is_free).or_else(|| names.find(is_free)).unwrap_or_else(|| name.to_owned())
    }

    /// Moves a message to another directory of the same file system; durable with [`sync`](Self::sync) of both. A file
    /// with the new name is replaced.
    ///
    /// # Errors
    /// Errors of `rename`. A missing file is no error.
    pub fn move_to(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        match fsops::renameat(&self.fd, name.as_bytes(), &to.fd, new_name.as_bytes()) {
            Err(Errno::NOENT) => Ok(()),
            moved => Ok(moved?),
        }
    }

    /// Makes the present names durable. `within` is a file on the same file system, for directories that we may not
    /// open.
    ///
    /// # Errors
    /// An error of the sync: the names may be lost by a power cut.
    pub(crate) fn sync_with(&self, within: impl AsFd) -> io::Result<()> {
        if self.is_readable {
            return self.sync();
        }
        Ok(fsops::syncfs(within)?)
    }

    /// Makes the present names durable.
    ///
    /// # Errors
    /// An error of the sync; fails for a directory that we may not list.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsops::fsync(&self.fd)?)
    }

    /// Sets mode and, if necessary, group of a new file, so that only the server can read it.
    ///
    /// # Errors
    /// `PermissionDenied`: the server would not be able to read it.
    pub(crate) fn let_server_read(&self, file: impl AsFd) -> io::Result<()> {
        let own = rustix::process::geteuid();
        if own.as_raw() == self.uid {
            return Ok(());
        }
        if own.is_root() {
            fsops::fchown(&file, None, Some(Gid::from_raw(self.gid)))?;
        } else if !self.hands_on_group {
            let what = format!("{} is not open to others: it needs mode 3733", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(fsops::fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP)?)
    }
}

impl AsFd for PickupDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// True for the name of an unfinished file.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// True if a message may be taken from such a file. Through a second name a user could have the server read, and
/// remove, another user's file.
pub(crate) fn is_sound(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_go_after_a_day_and_a_half_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let directory = PickupDirectory::make(&place.path().join("a/pickup")).unwrap();
        for name in [".unfinished", "whole"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(directory.path().join(".dir")).unwrap();
        let after = |hours: u64| SystemTime::now() + Duration::from_secs(hours * 3600);
        assert_eq!(directory.remove_unfinished(after(35)).unwrap(), 0);
        assert_eq!(directory.remove_unfinished(after(37)).unwrap(), 1);
        assert_eq!(directory.names().unwrap(), ["whole"]);
        std::fs::create_dir(directory.path().join("dir")).unwrap();
        std::fs::write(directory.path().join(".new"), "x").unwrap();
        assert_eq!(
            ["whole", "dir", ".new", "none"].map(|name| directory.owner(name.as_ref())),
            [Some(directory.uid()), None, None, None]
        );
        assert_eq!(directory.files(0, |_| Some(())).unwrap(), (vec![], true));
        let mode = std::fs::metadata(directory.path()).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}
