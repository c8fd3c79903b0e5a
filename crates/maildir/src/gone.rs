//! Files of expunged messages, kept for a while for sessions that still read them.
//!
//! Removed mailboxes lie in `.posthaste-gone` at the top of their file system: a rename moves them there, and no mail
//! program looks for mail in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::dirs::{Identity, identity, open_beneath, open_file, open_parent};
use crate::maildir::{Subdir, check_name};
use crate::path::MailboxPath;
use crate::reader::MaildirReader;
use crate::root::MailRoot;
use crate::scan::for_each_file;

const GONE_DIR: &str = ".posthaste-gone";

/// An open directory of expunged files.
#[derive(Debug)]
pub struct GoneDir {
    dir: OwnedFd,
    identity: Identity,
}

impl MailRoot {
    /// The directory for expunged files of a mailbox, made if need be.
    ///
    /// # Errors
    /// `NotFound` if there is no such mailbox; others of `mkdir`, `open` and `stat`, such as `PermissionDenied` where the top of a mount belongs to others.
    pub fn gone_dir(&self, path: &MailboxPath) -> io::Result<GoneDir> {
        let root = identity(&rustix::fs::fstat(self.dir())?);
        let mut top = self.open_dir(path)?;
        let mut here = identity(&rustix::fs::fstat(&top)?);
        while here != root {
            let above = open_parent(&top)?;
            let place = identity(&rustix::fs::fstat(&above)?);
            if place.0 != here.0 {
                break;
            }
            (top, here) = (above, place);
        }
        let dir = match open_beneath(&top, GONE_DIR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match posthaste_fsops::mkdirat(&top, GONE_DIR, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                open_beneath(&top, GONE_DIR)?
            }
            found => found?,
        };
        GoneDir::of(dir)
    }

    /// The directory of expunged files on the file system mounted at `point`, a path relative to the mail root; an
    /// empty path means the root's own file system. `None` if nothing was ever expunged there.
    ///
    /// # Errors
    /// Errors of `open` and `stat`.
    pub fn existing_gone_dir(&self, point: &str) -> io::Result<Option<GoneDir>> {
        let path = if point.is_empty() { GONE_DIR.to_owned() } else { format!("{point}/{GONE_DIR}") };
        match open_beneath(self.dir(), &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => GoneDir::of(found?).map(Some),
        }
    }
}

impl GoneDir {
    fn of(dir: OwnedFd) -> io::Result<Self> {
        let identity = identity(&rustix::fs::fstat(&dir)?);
        Ok(Self { dir, identity })
    }

    /// True if both are the same directory.
    pub fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Moves a file out of a mailbox, replacing a file with the new name. Not synced.
    ///
    /// # Errors
    /// `NotFound` if the file is not there under this name; others of `rename`.
    pub fn take(&self, from: &MaildirReader, subdir: Subdir, name: &str, new_name: &str) -> io::Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        Ok(posthaste_fsops::renameat(from.subdir(subdir), name, &self.dir, new_name)?)
    }

    /// Opens a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn open(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_file(self.dir.as_fd(), name, flags) {
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
            opened => Ok(Some(File::from(opened?))),
        }
    }

    /// Removes files that were expunged longer than `age_max` before `now`; returns their number.
    ///
    /// # Errors
    /// Errors of `getdents`, `stat` and `unlink`. A file that vanishes meanwhile is skipped.
    pub fn sweep(&self, now: SystemTime, age_max: Duration) -> io::Result<usize> {
        let now_secs = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut names = Vec::new();
        for_each_file(&self.dir, |name| names.push(name.to_owned()))?;
        let mut removed = 0;
        for name in names {
            let stat = match rustix::fs::statat(&self.dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            // The rename that brought it here was the last change of its inode.
            let came_secs = u64::try_from(stat.st_ctime).unwrap_or(0);
            if now_secs.saturating_sub(came_secs) <= age_max.as_secs() {
                continue;
            }
            match posthaste_fsops::unlinkat(&self.dir, &*name, AtFlags::empty()) {
                Err(Errno::NOENT) => {}
                done => {
                    done?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::Maildir;

    #[test]
    fn a_file_that_left_is_read_until_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (root, path) = (MailRoot::open(dir.path()).unwrap(), MailboxPath::parse("ann/Maildir").unwrap());
        assert_eq!(root.gone_dir(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        Maildir::open_or_create(dir.path().join("ann/Maildir")).unwrap();
        std::fs::write(dir.path().join("ann/Maildir/cur/1:2,ST"), "text").unwrap();
        let reader = root.reader(&path).unwrap();
        let gone = root.gone_dir(&path).unwrap();
        gone.take(&reader, Subdir::Cur, "1:2,ST", "7.1").unwrap();
        assert_eq!(gone.take(&reader, Subdir::Cur, "1:2,ST", "7.1").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(dir.path().join(".posthaste-gone/7.1").exists());
        let mut text = String::new();
        root.gone_dir(&path).unwrap().open("7.1").unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let (hour, now) = (Duration::from_secs(3600), SystemTime::now());
        assert_eq!(gone.sweep(now, hour).unwrap(), 0);
        assert_eq!(gone.sweep(now + 2 * hour, hour).unwrap(), 1);
        assert!(gone.open("7.1").unwrap().is_none());
        assert!(root.folders(&path).unwrap().is_empty());
    }
}
