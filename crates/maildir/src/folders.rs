//! Maildir++ folders: `.Lists.Rust` beside the inbox's `new/` is the folder `Lists.Rust`.
//!
//! A folder is a Maildir with an empty file `maildirfolder` in it. The inbox is the Maildir itself and has no folder
//! name. Names are UTF-8 as on disk; the IMAP layer converts modified UTF-7.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::dirs::open_beneath;
use crate::maildir::{Maildir, rename_exclusive};
use crate::path::{COMPONENT_BYTES_MAX, MailboxPath, PathError, check_component};
use crate::root::MailRoot;
use crate::scan::{for_each_entry, for_each_file};

const MARK: &str = "maildirfolder";

/// A checked folder name, such as `Lists.Rust`: parts joined by dots, at most 254 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FolderName(Box<str>);

impl FolderName {
    /// Joins the levels of a folder's name.
    ///
    /// # Errors
    /// [`PathError`]: no level or an empty one, a `.` or `/` or control character inside one, too long.
    pub fn from_levels<'a>(levels: impl IntoIterator<Item = &'a str>) -> Result<Self, PathError> {
        let mut joined = String::new();
        for level in levels {
            check_component(level)?;
            if level.contains('.') {
                return Err(PathError::Dots);
            }
            if !joined.is_empty() {
                joined.push('.');
            }
            joined.push_str(level);
        }
        if joined.is_empty() {
            return Err(PathError::Empty);
        }
        if joined.len() >= COMPONENT_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self(joined.into_boxed_str()))
    }

    /// Checks a name whose levels are separated by dots.
    ///
    /// # Errors
    /// As [`from_levels`](Self::from_levels).
    pub fn parse(name: &str) -> Result<Self, PathError> {
        Self::from_levels(name.split('.'))
    }

    /// The name, levels separated by dots.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The levels, outermost first.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    fn dir_name(&self) -> String {
        format!(".{}", self.0)
    }

    /// The path of this folder of an inbox.
    ///
    /// # Errors
    /// [`PathError::TooLong`] if it would exceed the limit of paths.
    pub fn path_in(&self, inbox: &MailboxPath) -> Result<MailboxPath, PathError> {
        inbox.join(&self.dir_name())
    }
}

impl fmt::Display for FolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl MailRoot {
    /// Opens a folder, making it if need be.
    ///
    /// # Errors
    /// As [`MailRoot::mailbox`]; `InvalidInput` if the path gets too long.
    pub fn folder(&self, inbox: &MailboxPath, folder: &FolderName) -> io::Result<Maildir> {
        let path = folder.path_in(inbox).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let maildir = self.mailbox(&path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match posthaste_fsops::openat(self.open_dir(&path)?, MARK, flags, Mode::RUSR | Mode::WUSR) {
            Ok(mark) => maildir.ownership().apply_to_file(&mark).map(|()| maildir),
            Err(Errno::EXIST) => Ok(maildir),
            Err(e) => Err(e.into()),
        }
    }

    /// The folders of an inbox, sorted. Directories that are not Maildir++ folder names or have no `new/` are left out.
    ///
    /// # Errors
    /// Errors of `open` and `getdents`; `NotFound` if there is no such inbox.
    pub fn folders(&self, inbox: &MailboxPath) -> io::Result<Vec<FolderName>> {
        self.list_folders(inbox).map(|listed| listed.folders)
    }

    /// Like [`folders`](Self::folders), with a flag that is true if Dovecot keeps its files in the inbox.
    ///
    /// # Errors
    /// As [`folders`](Self::folders).
    pub fn list_folders(&self, inbox: &MailboxPath) -> io::Result<ListedFolders> {
        let dir = self.open_dir(inbox)?;
        let mut folders = Vec::new();
        let mut has_dovecot_files = false;
        for_each_entry(&dir, |name, kind| {
            has_dovecot_files |= name.starts_with("dovecot");
            let folder = name.strip_prefix('.').and_then(|name| FolderName::parse(name).ok());
            folders.extend(folder.filter(|_| kind == FileType::Directory));
        })?;
        folders.retain(|folder| open_beneath(&dir, &format!("{}/new", folder.dir_name())).is_ok());
        folders.sort_unstable();
        Ok(ListedFolders { folders, has_dovecot_files })
    }

    /// Renames a folder's directory, but not the folders below it. Not synced.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists` if the new name is taken; others of `rename`.
    pub fn rename_folder(&self, inbox: &MailboxPath, from: &FolderName, to: &FolderName) -> io::Result<()> {
        rename_dir(&self.open_dir(inbox)?, &from.dir_name(), &to.dir_name())
    }

    /// Removes a folder with all its messages, but not the folders below it. Not synced. After a crash or an error part
    /// of it may remain; the call can be repeated.
    ///
    /// # Errors
    /// `NotFound`; `DirectoryNotEmpty` if it contains foreign files; others of `unlink`.
    pub fn remove_folder(&self, inbox: &MailboxPath, folder: &FolderName) -> io::Result<()> {
        let above = self.open_dir(inbox)?;
        let name = folder.dir_name();
        let dir = open_beneath(&above, &name)?;
        for sub in ["new", "cur", "tmp"] {
            match open_beneath(&dir, sub) {
                Ok(sub_dir) => {
                    remove_files(&sub_dir)?;
                    posthaste_fsops::unlinkat(&dir, sub, AtFlags::REMOVEDIR)?;
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        remove_files(&dir)?;
        Ok(posthaste_fsops::unlinkat(&above, &*name, AtFlags::REMOVEDIR)?)
    }
}

/// The folders of an inbox, from one reading of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFolders {
    /// Sorted.
    pub folders: Vec<FolderName>,
    /// True if Dovecot keeps its files in the inbox.
    pub has_dovecot_files: bool,
}

fn rename_dir(dir: &OwnedFd, old: &str, new: &str) -> io::Result<()> {
    use std::os::fd::AsFd;
    match rename_exclusive(dir.as_fd(), old, dir.as_fd(), new) {
        // Without an exclusive rename, `rename` itself still refuses a directory that is not empty.
        Err(Errno::INVAL | Errno::NOSYS) => Ok(posthaste_fsops::renameat(dir, old, dir, new)?),
        done => Ok(done?),
    }
}

fn remove_files(dir: &OwnedFd) -> io::Result<()> {
    let mut names = Vec::new();
    for_each_file(dir, |name| names.push(name.to_owned()))?;
    names.iter().try_for_each(|name| Ok(posthaste_fsops::unlinkat(dir, &**name, AtFlags::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_letter_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".A", ".é", ".Ab", ".A.B", ".", ".."] {
            std::fs::create_dir_all(dir.path().join("ann").join(name).join("new")).unwrap();
        }
        let root = MailRoot::open(dir.path()).unwrap();
        let found = root.folders(&MailboxPath::parse("ann").unwrap()).unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["A", "A.B", "Ab", "é"]);
    }

    #[test]
    fn folder_names_are_levels_without_dots() {
        let check = |name: &str, expected: Result<(), PathError>| {
            assert_eq!(FolderName::parse(name).map(|_| ()), expected, "{name:?}");
        };
        check("Lists.Rust", Ok(()));
        check("Entwürfe", Ok(()));
        check("", Err(PathError::Empty));
        check(".Lists", Err(PathError::Empty));
        check("a..b", Err(PathError::Empty));
        check("a/b", Err(PathError::Character));
        check(&"n".repeat(254), Ok(()));
        check(&"n".repeat(255), Err(PathError::TooLong));
        assert_eq!(FolderName::from_levels(["a.b"]), Err(PathError::Dots));
    }
}
