//! The directory: its names, who may read what is put there, and what makes a change of names durable.

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

/// An unfinished file that nobody has written to for so long is removed, as in a Maildir's `tmp/`.
pub const UNFINISHED_AGE_MAX: Duration = Duration::from_secs(36 * 3600);

/// A directory that is open.
///
/// A name that begins with a dot is a file that is being written; any other file is a message. Directories are passed over.
#[derive(Debug)]
pub struct PickupDirectory {
    path: PathBuf,
    fd: OwnedFd,
    /// True if we may list it, which an fsync of it needs.
    is_readable: bool,
    uid: u32,
    gid: u32,
    hands_on_group: bool,
}

impl PickupDirectory {
    /// Opens a directory. One that may be written to and not listed (mode 3733) is open for new files only.
    ///
    /// # Errors
    /// There is none, or it is not for us.
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

    /// Makes the directory (mode 0700: for its owner and root, until its owner opens it to others), if it is not there, and those above it.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and those of making it.
    pub fn make(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            fsops::make_dir(path)?;
        }
        Self::open(path)
    }

    /// Opens a directory below this one, and makes it (mode 0700) if it is not there. A link is not followed: others may have put it there.
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

    /// Applies `choose` to messages, in no order, and returns at most `max` results; true if there may be more.
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

    /// Owner of the message of that name; `None` if there is none.
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

    /// Removes unfinished files that nobody has written to for [`UNFINISHED_AGE_MAX`] before `now`. Returns how many.
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

    /// Removes a message that is kept elsewhere by now; durable with [`sync`](Self::sync).
    ///
    /// # Errors
    /// An error of unlinking it; none if it is gone.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match fsops::unlinkat(&self.fd, name.as_bytes(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// `name` if no file has it, else the name with a number appended.
    pub fn free_name(&self, name: &OsStr) -> OsString {
        let is_free =
            |name: &OsString| rustix::fs::statat(&self.fd, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).is_err();
        let numbered = |number: u64| [name.as_bytes(), format!(".{number}").as_bytes()].concat();
        let mut names = (1..).map(|number| OsString::from_vec(numbered(number)));
        Some(name.to_owned()).filter(is_free).or_else(|| names.find(is_free)).unwrap_or_else(|| name.to_owned())
    }

    /// Moves a message to another directory of the same file system; durable with [`sync`](Self::sync) of both. What has the new name is replaced.
    ///
    /// # Errors
    /// An error of renaming it; none if it is gone.
    pub fn move_to(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        match fsops::renameat(&self.fd, name.as_bytes(), &to.fd, new_name.as_bytes()) {
            Err(Errno::NOENT) => Ok(()),
            moved => Ok(moved?),
        }
    }

    /// Makes the names as they are now durable. `within` is a file on the same file system, for directories that we may not open.
    ///
    /// # Errors
    /// An error of the sync: the names may be lost by a power cut.
    pub(crate) fn sync_with(&self, within: impl AsFd) -> io::Result<()> {
        if self.is_readable {
            return self.sync();
        }
        Ok(fsops::syncfs(within)?)
    }

    /// Makes the names as they are now durable.
    ///
    /// # Errors
    /// An error of the sync; a directory that we may not list is refused.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsops::fsync(&self.fd)?)
    }

    /// Gives a new file the mode, and if need be the group, with which the server can read it and nobody else.
    ///
    /// # Errors
    /// `PermissionDenied`: the server could not read it.
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

/// True if a file of that name is still being written.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// True if a message can be taken from such a file. A second name would let a user have the server read, and remove, what belongs to somebody else.
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
