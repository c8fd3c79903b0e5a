//! Copies of messages: made in `tmp/`, and moved to where readers see them on request.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, Stat, fstat};
use rustix::io::Errno;

use crate::dirs::{open_beneath, open_file};
use crate::maildir::{Maildir, Subdir, check_name, rename_exclusive};
use crate::mount::MountFacts;
use crate::reader::MaildirReader;

impl Maildir {
    /// Gives a message of another Maildir, or of this one, a second name in `tmp/`. Not synced.
    ///
    /// # Errors
    /// `CrossesDevices` from one file system to another; `NotFound`; `AlreadyExists`; others of `link`.
    pub fn link_tmp(&self, from: &MaildirReader, subdir: Subdir, name: &str, tmp_name: &str) -> io::Result<()> {
        check_name(name)?;
        check_name(tmp_name)?;
        self.sync_way()?;
        Ok(posthaste_fsops::linkat(from.subdir(subdir), name, self.tmp_dir(), tmp_name, AtFlags::empty())?)
    }

    /// Gives an open file a name in `tmp/`. False: the file has to be copied. It is on another file system, its owner is
    /// not that of `tmp/`, or it has several names: users can link files that they cannot read. Not synced.
    ///
    /// # Errors
    /// `AlreadyExists`; others of `link` and `fstat`.
    pub fn adopt_tmp(&self, file: &File, tmp_name: &str) -> io::Result<bool> {
        check_name(tmp_name)?;
        if self.owners_file(file)?.is_none_or(|found| found.st_nlink != 1) {
            return Ok(false);
        }
        self.sync_way()?;
        // Whatever its name leads to by now, it is this very file.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        match posthaste_fsops::linkat(CWD, &*opened, self.tmp_dir(), tmp_name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(true),
            Err(Errno::XDEV | Errno::PERM | Errno::ACCESS | Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file in `tmp/`. Follows no link.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if it is not a regular file, or belongs to somebody else than `tmp/`.
    pub fn open_tmp(&self, name: &str) -> io::Result<File> {
        check_name(name)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(open_file(self.tmp_dir(), name, flags)?);
        if self.owners_file(&file)?.is_some() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Gives a file in `tmp/` another name there; never replaces a file. Not synced.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists`; others of `rename`.
    pub fn rename_tmp(&self, name: &str, new_name: &str) -> io::Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        match rename_exclusive(self.tmp_dir(), name, self.tmp_dir(), new_name) {
            // Without an exclusive rename; a link is exclusive everywhere.
            Err(Errno::INVAL | Errno::NOSYS) => {
                posthaste_fsops::linkat(self.tmp_dir(), name, self.tmp_dir(), new_name, AtFlags::empty())?;
                Ok(posthaste_fsops::unlinkat(self.tmp_dir(), name, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Attributes of a regular file of the owner of `tmp/`, on its file system; `None` for another.
    fn owners_file(&self, file: &File) -> io::Result<Option<Stat>> {
        let tmp = fstat(self.tmp_dir())?;
        let found = fstat(file)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        let is_owners = is_file && (tmp.st_dev, tmp.st_uid) == (found.st_dev, found.st_uid);
        Ok(is_owners.then_some(found))
    }

    /// Makes the names in `tmp/` durable.
    ///
    /// # Errors
    /// Errors of `fsync`; a second call would prove nothing.
    pub fn sync_tmp(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fsync(self.tmp_dir())?)
    }

    /// Renames a file in `tmp/` into `new/` or `cur/`; never replaces a file. After a power cut it is in one of them.
    /// Not synced.
    ///
    /// # Errors
    /// `NotFound` if `tmp/` does not have it; `AlreadyExists`; others of `rename` and `fsync`.
    pub fn place(&self, tmp_name: &str, dir: Subdir, name: &str) -> io::Result<()> {
        self.place_all(dir, &[(tmp_name, name)]).pop().expect("there is one")
    }

    /// Like [`place`](Self::place), of many files: where names do not reach the disk in order, with one fsync for all of them. `files`: names in `tmp/`, and those
    /// to be. Returns the outcome of each.
    pub fn place_all(&self, dir: Subdir, files: &[(&str, &str)]) -> Vec<io::Result<()>> {
        place_all(self.tmp_dir(), self.dir(dir), files, self.facts().ordered_log)
    }
}

impl MaildirReader {
    /// Moves a file that was left in `tmp/` into `new/`, under its name. Not synced.
    ///
    /// # Errors
    /// As [`Maildir::place`].
    pub fn place_in_new(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let tmp = open_beneath(self.dir(), "tmp")?;
        let new = self.subdir(Subdir::New);
        place_all(tmp, new, &[(name, name)], MountFacts::of(new)?.ordered_log).pop().expect("there is one")
    }
}

fn place_all(from: impl AsFd, to: impl AsFd, files: &[(&str, &str)], ordered_log: bool) -> Vec<io::Result<()>> {
    let from = from.as_fd();
    let to = to.as_fd();
    let mut linked = Vec::new();
    let mut put = |at: usize, (name, new_name): (&str, &str)| {
        check_name(name)?;
        check_name(new_name)?;
        if ordered_log {
            match rename_exclusive(from, name, to, new_name) {
                // Without an exclusive rename; a link is exclusive everywhere.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                renamed => return Ok(renamed?),
            }
        }
        posthaste_fsops::linkat(from, name, to, new_name, AtFlags::empty())?;
        linked.push(at);
        Ok(())
    };
    let mut placed: Vec<io::Result<()>> = files.iter().enumerate().map(|(at, names)| put(at, *names)).collect();
    if linked.is_empty() {
        return placed;
    }
    // The old names could go from the disk before the new ones are there.
    let synced = posthaste_fsops::fsync(to);
    for at in linked {
        let removed = synced.and_then(|()| posthaste_fsops::unlinkat(from, files[at].0, AtFlags::empty()));
        placed[at] = removed.map_err(io::Error::from);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MailRoot, MailboxPath};

    #[test]
    fn a_copy_is_seen_once_it_is_placed() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let path = |name: &str| MailboxPath::parse(name).unwrap();
        let (from, to) = (root.mailbox(&path("a")).unwrap(), root.mailbox(&path("b")).unwrap());
        from.write_tmp("1", &[io::IoSlice::new(b"text")]).unwrap();
        from.place("1", Subdir::Cur, "1:2,S").unwrap();
        let reader = root.reader(&path("a")).unwrap();
        to.link_tmp(&reader, Subdir::Cur, "1:2,S", "2").unwrap();
        assert_eq!(to.link_tmp(&reader, Subdir::Cur, "1:2,", "3").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(to.scan().unwrap().is_empty());
        root.reader(&path("b")).unwrap().place_in_new("2").unwrap();
        assert_eq!(to.read(Subdir::New, "2").unwrap(), b"text");
        assert_eq!(to.place("2", Subdir::Cur, "2:2,").unwrap_err().kind(), io::ErrorKind::NotFound);
        to.sync_tmp().unwrap();
    }

    #[test]
    fn a_file_of_the_owner_is_adopted_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let maildir = root.mailbox(&MailboxPath::parse("a").unwrap()).unwrap();
        let file = dir.path().join("mail");
        std::fs::write(&file, "text").unwrap();
        let opened = File::open(&file).unwrap();
        assert!(maildir.adopt_tmp(&opened, "1").unwrap());
        assert!(!maildir.adopt_tmp(&opened, "2").unwrap(), "it has two names");
        assert!(!maildir.adopt_tmp(&File::open(dir.path()).unwrap(), "2").unwrap(), "a directory");
        std::fs::remove_file(&file).unwrap();
        let adopted = maildir.open_tmp("1").unwrap();
        assert_eq!(fstat(&adopted).unwrap().st_ino, fstat(&opened).unwrap().st_ino);
        maildir.rename_tmp("1", "2").unwrap();
        maildir.place("2", Subdir::Cur, "2:2,").unwrap();
        assert_eq!(maildir.read(Subdir::Cur, "2:2,").unwrap(), b"text");
        std::os::unix::fs::symlink("../cur/2:2,", dir.path().join("a/tmp/3")).unwrap();
        assert!(maildir.open_tmp("3").is_err() && maildir.open_tmp("../cur/2:2,").is_err());
    }

    #[test]
    fn many_files_are_placed_with_one_sync() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let maildir = root.mailbox(&MailboxPath::parse("a").unwrap()).unwrap();
        let cur = |name: &str| dir.path().join("a/cur").join(name).exists();
        for ordered_log in [true, false] {
            for name in ["1", "2", "3"] {
                maildir.write_tmp(name, &[io::IoSlice::new(b"text")]).unwrap();
            }
            std::fs::write(dir.path().join("a/cur/2:2,"), "another").unwrap();
            let files = [("1", "1:2,"), ("2", "2:2,"), ("none", "none:2,"), ("../1", "4"), ("3", "3:2,")];
            let placed = place_all(maildir.tmp_dir(), maildir.dir(Subdir::Cur), &files, ordered_log);
            let kinds: Vec<_> = placed.into_iter().map(|placed| placed.map_err(|error| error.kind())).collect();
            let (taken, none) = (Err(io::ErrorKind::AlreadyExists), Err(io::ErrorKind::NotFound));
            assert_eq!(kinds, [Ok(()), taken, none, Err(io::ErrorKind::InvalidFilename), Ok(())]);
            assert!(cur("1:2,") && cur("3:2,") && !cur("none:2,"));
            let left: Vec<_> = std::fs::read_dir(dir.path().join("a/tmp")).unwrap().collect();
            assert_eq!(left.len(), 1, "the one whose name is taken");
            for name in ["cur/1:2,", "cur/2:2,", "cur/3:2,", "tmp/2"] {
                std::fs::remove_file(dir.path().join("a").join(name)).unwrap();
            }
        }
    }
}
