//! A message on its way into a Maildir: written, but not yet visible.

use std::fs::File;
use std::io::{self, IoSlice, Seek};
use std::os::fd::AsFd;
use std::time::SystemTime;

use rustix::fs::Mode;
use rustix::io::Errno;

use crate::maildir::{Maildir, check_name, write_all};

/// A message that is invisible until it is [published](Draft::publish). Dropped earlier, it leaves nothing behind.
///
/// Where the file system supports it, the file has no name until then (`O_TMPFILE`), so a crash leaves no litter. It is
/// also cheaper. A rename from `tmp/` to `new/` changes two directories, one of them twice, under a lock that all
/// renames of the file system share. Linking the nameless file changes one directory.
#[derive(Debug)]
pub struct Draft<'a> {
    maildir: &'a Maildir,
    file: File,
    name: &'a str,
    // It lies in `tmp/` under its name.
    is_named: bool,
}

impl Maildir {
    /// Begins a message that will be called `name`: empty, with the mailbox's [`Ownership`](crate::Ownership).
    ///
    /// # Errors
    /// `InvalidFilename` for a name that is no plain file name of at most 255 bytes. `AlreadyExists` if `tmp/` has that
    /// name, on a file system where every file needs one. Others of `open`, `fchown` and `fchmod`, and of `fsync` where
    /// the directories have to be synced first.
    pub fn draft<'a>(&'a self, name: &'a str) -> io::Result<Draft<'a>> {
        check_name(name)?;
        if self.can_be_nameless() {
            self.sync_way()?;
            match posthaste_fsops::create_nameless(self.tmp_dir(), Mode::RUSR | Mode::WUSR) {
                Ok(Some(file)) => {
                    self.ownership().apply_to_file(&file)?;
                    return Ok(Draft { maildir: self, file, name, is_named: false });
                }
                Ok(None) | Err(Errno::NOENT) => self.set_names_needed(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Draft { maildir: self, file: self.create_tmp(name)?.into(), name, is_named: true })
    }
}

impl Draft<'_> {
    /// Writes all parts, in order. Not synced.
    ///
    /// # Errors
    /// `StorageFull`; others of `write`.
    pub fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        write_all(self.file.as_fd(), parts)
    }

    /// Sets its modification time, which mail programs show as the time of arrival. Call it after the last write.
    ///
    /// # Errors
    /// An error of `utimensat`.
    pub fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        self.file.set_modified(at)
    }

    /// Makes it visible in `new/`, never over an existing file. Not synced.
    ///
    /// # Errors
    /// `AlreadyExists` if `new/` has that name; others of `linkat` and `rename`.
    pub fn publish(mut self) -> io::Result<()> {
        if !self.is_named {
            if posthaste_fsops::link_nameless(&self.file, self.maildir.new_dir(), self.name)? {
                return Ok(());
            }
            self.copy_to_tmp()?;
        }
        self.maildir.publish(self.name)?;
        self.is_named = false;
        Ok(())
    }

    fn copy_to_tmp(&mut self) -> io::Result<()> {
        self.maildir.set_names_needed();
        let named = File::from(self.maildir.create_tmp(self.name)?);
        self.is_named = true;
        let mut nameless = std::mem::replace(&mut self.file, named);
        nameless.rewind()?;
        io::copy(&mut nameless, self)?;
        self.file.set_modified(nameless.metadata()?.modified()?)
    }
}

impl io::Write for Draft<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(posthaste_fsops::write(&self.file, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.is_named {
            // If this fails too, cleanup_tmp finds it.
            let _ = self.maildir.remove_tmp(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subdir;

    fn files_in(dir: &std::path::Path) -> usize {
        std::fs::read_dir(dir).expect("a directory").count()
    }

    type Change = fn(&mut Draft<'_>);

    /// Runs `check` for files with a name, without one, and for files that need a name only later.
    fn each_way(check: impl Fn(&std::path::Path, &Maildir, Change)) {
        let prepare: [(bool, Change); 3] =
            [(false, |_| ()), (true, |_| ()), (false, |draft| draft.copy_to_tmp().expect("copied"))];
        for (names_needed, change) in prepare {
            let dir = tempfile::tempdir().expect("a directory");
            let maildir = Maildir::open_or_create(dir.path()).expect("a Maildir");
            if names_needed {
                maildir.set_names_needed();
            }
            check(dir.path(), &maildir, change);
        }
    }

    #[test]
    fn a_draft_is_seen_once_it_is_published() {
        each_way(|dir, maildir, change| {
            let mut draft = maildir.draft("name").expect("begun");
            draft.write_parts(&[IoSlice::new(b"Subject: one\n"), IoSlice::new(b"\n")]).expect("written");
            change(&mut draft);
            io::Write::write_all(&mut draft, b"body\n").expect("written");
            assert_eq!(files_in(&dir.join("new")), 0);
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
            draft.set_modified(at).expect("set");
            draft.publish().expect("published");
            let modified = std::fs::metadata(dir.join("new/name")).and_then(|facts| facts.modified());
            assert_eq!(modified.expect("there"), at);
            assert_eq!(maildir.read(Subdir::New, "name").expect("there"), b"Subject: one\n\nbody\n");
            assert_eq!(files_in(&dir.join("tmp")), 0);
        });
    }

    #[test]
    fn a_draft_that_gets_a_name_late_keeps_its_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let maildir = Maildir::open_or_create(dir.path()).expect("a Maildir");
        let mut draft = maildir.draft("name").expect("begun");
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        draft.set_modified(at).expect("set");
        draft.copy_to_tmp().expect("copied");
        assert_eq!(draft.file.metadata().and_then(|facts| facts.modified()).expect("there"), at);
    }

    #[test]
    fn a_dropped_draft_leaves_nothing() {
        each_way(|dir, maildir, change| {
            let mut draft = maildir.draft("name").expect("begun");
            draft.write_parts(&[IoSlice::new(b"half")]).expect("written");
            change(&mut draft);
            drop(draft);
            assert_eq!((files_in(&dir.join("tmp")), files_in(&dir.join("new"))), (0, 0));
        });
    }

    #[test]
    fn a_draft_replaces_nothing() {
        each_way(|dir, maildir, change| {
            std::fs::write(dir.join("new/name"), "first").expect("written");
            let mut draft = maildir.draft("name").expect("begun");
            change(&mut draft);
            let error = draft.publish().expect_err("the name is taken");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(dir.join("new/name")).expect("there"), b"first");
            assert_eq!(files_in(&dir.join("tmp")), 0);
            assert!(maildir.draft("a/b").is_err_and(|error| error.kind() == io::ErrorKind::InvalidFilename));
        });
    }
}
