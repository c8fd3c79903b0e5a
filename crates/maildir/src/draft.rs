//! A message on its way into a Maildir: written, but not yet visible.

use std::fs::File;
use std::io::{self, IoSlice, Seek};
use std::os::fd::AsFd;
use std::time::SystemTime;

use posthaste_fsops::{LinkOutcome, NamelessFile};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::maildir::{Maildir, check_name, write_all};

/// A message that is invisible until it is [published](MailDraft::publish). Dropped earlier, it leaves nothing behind.
///
/// Where the file system supports it, the file has no name until then (`O_TMPFILE`), so a crash leaves no litter. It is
/// also cheaper. A rename from `tmp/` to `new/` changes two directories, one of them twice, under a lock that all
/// renames of the file system share. Linking the nameless file changes one directory.
#[derive(Debug)]
pub struct MailDraft<'a> {
    maildir: &'a Maildir,
    name: &'a str,
    file: DraftFile<'a>,
}

#[derive(Debug)]
enum DraftFile<'a> {
    Nameless(NamelessFile),
    InTmp(File, TmpName<'a>),
}

/// The draft's name in `tmp/`, removed when this is dropped.
#[derive(Debug)]
struct TmpName<'a> {
    maildir: &'a Maildir,
    name: &'a str,
}

impl Maildir {
    /// Begins a message that will be called `name`: empty, with the mailbox's [`Ownership`](crate::Ownership).
    ///
    /// # Errors
    /// `InvalidFilename` for a name that is not a plain file name of at most 255 bytes. `AlreadyExists` if `tmp/` has that
    /// name, on a file system where every file needs one. Others of `open`, `fchown` and `fchmod`, and of `fsync` where
    /// the directories have to be synced first.
    pub fn draft<'a>(&'a self, name: &'a str) -> io::Result<MailDraft<'a>> {
        check_name(name)?;
        self.sync_way()?;
        match self.nameless().create(self.tmp_dir(), Mode::RUSR | Mode::WUSR) {
            Ok(Some(nameless)) => {
                self.ownership().apply_to_file(nameless.file())?;
                return Ok(MailDraft { maildir: self, name, file: DraftFile::Nameless(nameless) });
            }
            Ok(None) => {}
            Err(Errno::NOENT) => self.nameless().give_up(),
            Err(error) => return Err(error.into()),
        }
        MailDraft::in_tmp(self, name)
    }
}

impl<'a> MailDraft<'a> {
    fn in_tmp(maildir: &'a Maildir, name: &'a str) -> io::Result<Self> {
        let file = maildir.create_tmp(name)?.into();
        Ok(MailDraft { maildir, name, file: DraftFile::InTmp(file, TmpName { maildir, name }) })
    }

    fn copy_of(mut nameless: File, maildir: &'a Maildir, name: &'a str) -> io::Result<Self> {
        let mut copy = MailDraft::in_tmp(maildir, name)?;
        nameless.rewind()?;
        io::copy(&mut nameless, &mut copy)?;
        copy.set_modified(nameless.metadata()?.modified()?)?;
        Ok(copy)
    }

    fn file(&self) -> &File {
        match &self.file {
            DraftFile::Nameless(nameless) => nameless.file(),
            DraftFile::InTmp(file, _) => file,
        }
    }

    /// Writes all parts, in order. Not synced.
    ///
    /// # Errors
    /// `StorageFull`; others of `write`.
    pub fn write_parts(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        write_all(self.file().as_fd(), parts)
    }

    /// Sets its modification time, which mail programs show as the time of arrival. Call it after the last write.
    ///
    /// # Errors
    /// An error of `utimensat`.
    pub fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        self.file().set_modified(at)
    }

    /// Makes the message visible in `new/`, never over an existing file. Not synced.
    ///
    /// # Errors
    /// `AlreadyExists` if `new/` has that name; others of `linkat` and `rename`.
    pub fn publish(self) -> io::Result<()> {
        let MailDraft { maildir, name, file } = self;
        match file {
            DraftFile::Nameless(nameless) => match nameless.link(maildir.new_dir(), name)? {
                LinkOutcome::Named => Ok(()),
                LinkOutcome::Impossible(nameless) => MailDraft::copy_of(nameless, maildir, name)?.publish(),
            },
            DraftFile::InTmp(_, tmp_name) => {
                maildir.publish(name)?;
                // The message is in `new/` now.
                std::mem::forget(tmp_name);
                Ok(())
            }
        }
    }
}

impl io::Write for MailDraft<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(posthaste_fsops::write(self.file(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TmpName<'_> {
    fn drop(&mut self) {
        // If this fails too, cleanup_tmp finds it.
        let _ = self.maildir.remove_tmp(self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subdir;

    fn files_in(dir: &std::path::Path) -> usize {
        std::fs::read_dir(dir).expect("a directory").count()
    }

    type Change = fn(MailDraft<'_>) -> MailDraft<'_>;

    /// Simulates that a nameless file cannot be linked.
    fn copied(draft: MailDraft<'_>) -> MailDraft<'_> {
        let copy = MailDraft::copy_of(draft.file().try_clone().expect("cloned"), draft.maildir, draft.name);
        copy.expect("copied")
    }

    /// Runs `check` for files with a name, without one, and for files that need a name only later.
    fn each_way(check: impl Fn(&std::path::Path, &Maildir, Change)) {
        let prepare: [(bool, Change); 3] = [(false, |draft| draft), (true, |draft| draft), (false, copied)];
        for (names_needed, change) in prepare {
            let dir = tempfile::tempdir().expect("a directory");
            let maildir = Maildir::open_or_create(dir.path()).expect("a Maildir");
            if names_needed {
                maildir.nameless().give_up();
            }
            check(dir.path(), &maildir, change);
        }
    }

    #[test]
    fn a_draft_is_seen_once_it_is_published() {
        each_way(|dir, maildir, change| {
            let mut draft = maildir.draft("name").expect("begun");
            draft.write_parts(&[IoSlice::new(b"Subject: one\n"), IoSlice::new(b"\n")]).expect("written");
            let mut draft = change(draft);
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
        let draft = maildir.draft("name").expect("begun");
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        draft.set_modified(at).expect("set");
        assert_eq!(copied(draft).file().metadata().and_then(|facts| facts.modified()).expect("there"), at);
    }

    #[test]
    fn a_dropped_draft_leaves_nothing() {
        each_way(|dir, maildir, change| {
            let mut draft = maildir.draft("name").expect("begun");
            draft.write_parts(&[IoSlice::new(b"half")]).expect("written");
            drop(change(draft));
            assert_eq!((files_in(&dir.join("tmp")), files_in(&dir.join("new"))), (0, 0));
        });
    }

    #[test]
    fn a_draft_replaces_nothing() {
        each_way(|dir, maildir, change| {
            std::fs::write(dir.join("new/name"), "first").expect("written");
            let draft = maildir.draft("name").expect("begun");
            let error = change(draft).publish().expect_err("the name is taken");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(dir.join("new/name")).expect("there"), b"first");
            assert_eq!(files_in(&dir.join("tmp")), 0);
            assert!(maildir.draft("a/b").is_err_and(|error| error.kind() == io::ErrorKind::InvalidFilename));
        });
    }
}
