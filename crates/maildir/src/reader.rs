//! Reading Maildirs, for programs that serve mail delivered by others.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat, StatxFlags};
use rustix::io::Errno;

use crate::dirs::{open_beneath, open_file};
use crate::keywords::{Keywords, keywords_at};
use crate::maildir::{Subdir, check_name, rename_exclusive};
use crate::mount::{MountFacts, is_local, keeps_precise_times};
use crate::path::MailboxPath;
use crate::root::MailRoot;
use crate::tree::{FileFacts, Stamp, key_of_name};
use crate::uidlist::{OWN_UIDLIST_FILE, UIDLIST_FILE, UidList, UidListError};

/// Bytes of directory entries fetched at once.
const BUFFER_BYTES: usize = 256 * 1024;
const SUBSCRIPTIONS_FILE: &str = "subscriptions";
const SUBSCRIPTIONS_BYTES_MAX: u64 = 1 << 20;

/// An open Maildir for reading; no message is added. Files can be renamed by [`give_other_key`](Self::give_other_key)
/// and [`rename_to_cur`](Self::rename_to_cur), or leave by [`remove`](Self::remove) and
/// [`GoneDir::take`](crate::GoneDir::take).
///
/// No symbolic link is followed, and no call waits for anything but the disk. A FIFO in place of a message is opened
/// without waiting for a writer, then rejected.
#[derive(Debug)]
pub struct MaildirReader {
    dir: OwnedFd,
    new: OwnedFd,
    cur: OwnedFd,
    /// Determined at the first rename.
    ordered_log: OnceLock<bool>,
}

/// A name in `new/` or `cur/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedMessage<'a> {
    /// The name, which may contain any characters except `/` and NUL.
    pub name: &'a str,
    /// Inode number.
    pub inode: u64,
    /// False for a directory, a link, a FIFO or the like. `None` if the file system does not tell without a `stat`.
    pub is_file: Option<bool>,
}

impl MailRoot {
    /// Opens a mailbox for reading.
    ///
    /// # Errors
    /// `NotFound` if it, or its `new` or `cur`, does not exist; others of `openat`, such as `FilesystemLoop` for a symbolic link on the way.
    pub fn reader(&self, path: &MailboxPath) -> io::Result<MaildirReader> {
        let dir = self.open_dir(path)?;
        let new = open_beneath(&dir, "new")?;
        let cur = open_beneath(&dir, "cur")?;
        Ok(MaildirReader { dir, new, cur, ordered_log: OnceLock::new() })
    }

    /// Stamp of a mailbox's directory, which changes when folders are made or removed in it.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; others of `openat` and `stat`.
    pub fn stamp(&self, path: &MailboxPath) -> io::Result<Stamp> {
        Ok(Stamp::of(&rustix::fs::fstat(self.open_dir(path)?)?))
    }

    /// Writes this server's list of UIDs into a mailbox: see [`UidList::own_text`]. Readers see either the old or the
    /// new list. Not synced.
    ///
    /// # Errors
    /// Errors of `open`, `write` and `rename`.
    pub fn put_uid_list(&self, path: &MailboxPath, text: &str) -> io::Result<()> {
        let dir = self.open_dir(path)?;
        let new = format!("{OWN_UIDLIST_FILE}.new");
        // Left by a kill.
        match posthaste_fsops::unlinkat(&dir, &*new, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::openat(&dir, &*new, flags, Mode::RUSR | Mode::WUSR)?;
        self.ownership_of(path.as_str()).apply_to_file(&file)?;
        posthaste_fsops::write_all(&file, text.as_bytes())?;
        Ok(posthaste_fsops::renameat(&dir, &*new, &dir, OWN_UIDLIST_FILE)?)
    }

    /// Dovecot's list of the account's subscriptions, up to 1 MiB; `None` if there is none. A symbolic link is not
    /// followed.
    ///
    /// # Errors
    /// Errors of `open` and `read`; `InvalidData` if it is longer, or no file.
    pub fn subscriptions(&self, inbox: &MailboxPath) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let dir = match self.open_dir(inbox) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            dir => dir?,
        };
        let file = match rustix::fs::openat(&dir, SUBSCRIPTIONS_FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened?),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a file"));
        }
        let mut content = Vec::new();
        file.take(SUBSCRIPTIONS_BYTES_MAX + 1).read_to_end(&mut content)?;
        if content.len() as u64 > SUBSCRIPTIONS_BYTES_MAX {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the list of subscriptions is too long"))
        } else {
            Ok(Some(content))
        }
    }
}

impl MaildirReader {
    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    pub(crate) fn subdir(&self, subdir: Subdir) -> &OwnedFd {
        match subdir {
            Subdir::New => &self.new,
            Subdir::Cur => &self.cur,
        }
    }

    /// True if `tmp/` has a file of this name.
    ///
    /// # Errors
    /// Errors of `stat`.
    pub fn has_tmp(&self, name: &str) -> io::Result<bool> {
        check_name(name)?;
        match rustix::fs::statat(&self.dir, format!("tmp/{name}"), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// Stamps of `new/` and `cur/`.
    ///
    /// # Errors
    /// Errors of `stat`.
    pub fn stamps(&self) -> io::Result<[Stamp; 2]> {
        Ok([Stamp::of(&rustix::fs::fstat(&self.new)?), Stamp::of(&rustix::fs::fstat(&self.cur)?)])
    }

    /// Minimum age of a directory's last change for which the next change is certain to have another [`Stamp`].
    ///
    /// # Errors
    /// Errors of `statfs`.
    pub fn settle_time(&self) -> io::Result<Duration> {
        Ok(if keeps_precise_times(&self.new)? { Duration::from_millis(100) } else { Duration::from_secs(2) })
    }

    /// True if inotify(7) reports every change of `new/` and `cur/`. False on a network file system, which other
    /// machines change.
    ///
    /// # Errors
    /// Errors of `statfs`.
    pub fn tells_of_changes(&self) -> io::Result<bool> {
        Ok(is_local(&self.new)? && is_local(&self.cur)?)
    }

    /// Calls `each` for every entry of `new/` or `cur/` whose name does not begin with a dot, in the directory's own
    /// order. Returns the number of names skipped because they are not UTF-8. A file renamed meanwhile may come twice
    /// or not at all.
    ///
    /// # Errors
    /// Errors of `open` and `getdents`.
    pub fn for_each_name(&self, subdir: Subdir, mut each: impl FnMut(ListedMessage<'_>)) -> io::Result<usize> {
        let mut left_out = 0;
        entries(self.subdir(subdir), |name, kind, inode| {
            let is_file = (kind != FileType::Unknown).then_some(kind == FileType::RegularFile);
            match name {
                Some(name) if name.starts_with('.') => {}
                Some(name) => each(ListedMessage { name, inode, is_file }),
                None => left_out += 1,
            }
        })?;
        Ok(left_out)
    }

    /// Attributes of a message's file; `None` if it is gone or no regular file.
    ///
    /// # Errors
    /// Errors of `stat`.
    pub fn facts(&self, subdir: Subdir, name: &str) -> io::Result<Option<FileFacts>> {
        match rustix::fs::statat(self.subdir(subdir), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(facts(&stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creation time of a message's file, in nanoseconds since 1970. `None` if the file is gone, or the file system
    /// does not record it. The kernel's coarse clock may be one tick, at most 10 ms, behind.
    ///
    /// # Errors
    /// Errors of `statx`.
    pub fn made_at(&self, subdir: Subdir, name: &str) -> io::Result<Option<i64>> {
        let found = match rustix::fs::statx(self.subdir(subdir), name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        let nanos = found.stx_btime.tv_sec.saturating_mul(1_000_000_000).saturating_add(found.stx_btime.tv_nsec.into());
        Ok((found.stx_mask & StatxFlags::BTIME.bits() != 0).then_some(nanos))
    }

    /// Looks at an open file of a message; `None` if it is not a regular file.
    ///
    /// # Errors
    /// The values of `stat`.
    pub fn facts_of(&self, file: &File) -> io::Result<Option<FileFacts>> {
        Ok(facts(&rustix::fs::fstat(file)?))
    }

    /// Opens a message's file; `None` if it is gone or no regular file.
    ///
    /// # Errors
    /// Errors of `open`, such as `PermissionDenied`.
    pub fn open(&self, subdir: Subdir, name: &str) -> io::Result<Option<(File, FileFacts)>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match open_file(self.subdir(subdir).as_fd(), name, flags) {
            // Gone, a link, a socket.
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            opened => opened?,
        };
        let found = facts(&rustix::fs::fstat(&file)?);
        Ok(found.map(|facts| (File::from(file), facts)))
    }

    /// The keywords of this Maildir; none if it has no table.
    ///
    /// # Errors
    /// As [`read_keywords`](crate::read_keywords); a symbolic link is not followed.
    pub fn keywords(&self) -> io::Result<Keywords> {
        keywords_at(&self.dir)
    }
}

impl MaildirReader {
    /// Dovecot's list of UIDs; `None` if there is none. A symbolic link is not followed.
    ///
    /// # Errors
    /// See [`UidListError`].
    pub fn uid_list(&self, messages_max: usize) -> Result<Option<UidList>, UidListError> {
        self.list_file(UIDLIST_FILE)?.map(|file| UidList::read(file, messages_max)).transpose()
    }

    /// The list of UIDs last written by this server; `None` if there is none. A symbolic link is not followed.
    ///
    /// # Errors
    /// See [`UidListError`].
    pub fn own_uid_list(&self, messages_max: usize) -> Result<Option<UidList>, UidListError> {
        self.list_file(OWN_UIDLIST_FILE)?.map(|file| UidList::read_own(file, messages_max)).transpose()
    }

    fn list_file(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened?),
        };
        if file.metadata()?.is_file() {
            Ok(Some(file))
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a file"))
        }
    }

    /// Stamp of Dovecot's list of UIDs; `None` if there is none.
    ///
    /// # Errors
    /// Errors of `stat`.
    pub fn uid_list_stamp(&self) -> io::Result<Option<Stamp>> {
        match rustix::fs::statat(&self.dir, UIDLIST_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stamp::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a file into `cur/`; never replaces a file. Not synced.
    ///
    /// # Errors
    /// `NotFound` if it is not there under this name; `AlreadyExists`; `InvalidFilename`; others of `rename`.
    pub fn rename_to_cur(&self, subdir: Subdir, name: &str, new_name: &str) -> io::Result<()> {
        check_name(new_name)?;
        if subdir == Subdir::New && !self.has_ordered_log()? {
            // The old name could go from the disk before the new one is there.
            posthaste_fsops::linkat(&self.new, name, &self.cur, new_name, AtFlags::empty())?;
            posthaste_fsops::fsync(&self.cur)?;
            return Ok(posthaste_fsops::unlinkat(&self.new, name, AtFlags::empty())?);
        }
        match rename_exclusive(self.subdir(subdir).as_fd(), name, self.cur.as_fd(), new_name) {
            // Without an exclusive rename; a link is exclusive everywhere.
            Err(Errno::INVAL | Errno::NOSYS) => {
                posthaste_fsops::linkat(self.subdir(subdir), name, &self.cur, new_name, AtFlags::empty())?;
                Ok(posthaste_fsops::unlinkat(self.subdir(subdir), name, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    fn has_ordered_log(&self) -> io::Result<bool> {
        if let Some(known) = self.ordered_log.get() {
            return Ok(*known);
        }
        let found = MountFacts::of(&self.new)?.ordered_log;
        Ok(*self.ordered_log.get_or_init(|| found))
    }

    /// Removes a file. Not synced.
    ///
    /// # Errors
    /// `NotFound` if it is not there under this name; others of `unlink`.
    pub fn remove(&self, subdir: Subdir, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(posthaste_fsops::unlinkat(self.subdir(subdir), name, AtFlags::empty())?)
    }

    /// Makes additions and removals of names in `new/` and `cur/` durable.
    ///
    /// # Errors
    /// Errors of `fsync`; a second call would prove nothing.
    pub fn sync_names(&self) -> io::Result<()> {
        posthaste_fsops::fsync(&self.new)?;
        Ok(posthaste_fsops::fsync(&self.cur)?)
    }

    /// Removes the second of two names of one file; true if it did. False if they are not, or no longer, the same file.
    /// Not synced.
    ///
    /// # Errors
    /// Errors of `stat` and `unlink`.
    pub fn remove_twin(&self, kept: (Subdir, &str), twin: (Subdir, &str)) -> io::Result<bool> {
        // In this order a program that renames the twin to the kept name loses nothing.
        let removed = self.facts(twin.0, twin.1)?.map(|facts| facts.inode);
        let stays = self.facts(kept.0, kept.1)?.map(|facts| facts.inode);
        let is_twin = removed.is_some() && removed == stays && kept != twin;
        if is_twin {
            self.remove(twin.0, twin.1)?;
        }
        Ok(is_twin)
    }

    /// Renames a file whose key another file has, and returns the new name: a number follows the key. Not synced.
    /// `is_taken` knows the keys of other files, whatever their flags.
    ///
    /// # Errors
    /// `NotFound` if it is gone; `InvalidFilename` if the name would be too long; others of `rename`.
    pub fn give_other_key(&self, subdir: Subdir, name: &str, is_taken: impl Fn(&str) -> bool) -> io::Result<String> {
        let key = key_of_name(name);
        for number in 1..=OTHER_KEYS_MAX {
            let other_key = format!("{key}_{number}");
            if is_taken(&other_key) {
                continue;
            }
            let other = format!("{other_key}{}", &name[key.len()..]);
            check_name(&other)?;
            match rename_exclusive(self.subdir(subdir).as_fd(), name, self.subdir(subdir).as_fd(), &other) {
                Err(Errno::EXIST) => {}
                renamed => return Ok(renamed.map(|()| other_key)?),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Maximum numbers tried for an unused key.
const OTHER_KEYS_MAX: u32 = 1000;

fn facts(stat: &Stat) -> Option<FileFacts> {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let Stamp { inode, mtime_ns } = Stamp::of(stat);
    is_file.then_some(FileFacts { inode, size: stat.st_size as u64, mtime_ns })
}

/// Reads entries through a separate descriptor, as a directory's read position belongs to the descriptor. A name that
/// is not UTF-8 is `None`; `.` and `..` are left out.
fn entries(dir: &OwnedFd, mut each: impl FnMut(Option<&str>, FileType, u64)) -> io::Result<()> {
    let dir = open_beneath(dir.as_fd(), ".")?;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok();
        if !matches!(name, Some("." | "..")) {
            each(name, entry.file_type(), entry.ino());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Maildir;

    #[test]
    fn what_is_no_regular_file_is_no_message() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let path = MailboxPath::parse("ann/Maildir").unwrap();
        assert_eq!(root.reader(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        Maildir::open_or_create(dir.path().join("ann/Maildir")).unwrap();
        let cur = dir.path().join("ann/Maildir/cur");
        fs::write(cur.join("1:2,S"), "text").unwrap();
        fs::write(cur.join("two\nlines"), "x").unwrap();
        fs::write(cur.join(".hidden"), "x").unwrap();
        fs::create_dir(cur.join("dir")).unwrap();
        symlink("1:2,S", cur.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, cur.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        std::os::unix::net::UnixListener::bind(cur.join("socket")).unwrap();
        let reader = root.reader(&path).unwrap();
        let mut names = Vec::new();
        reader.for_each_name(Subdir::Cur, |listed| names.push((listed.name.to_owned(), listed.is_file))).unwrap();
        names.sort();
        let expected = ["1:2,S", "dir", "fifo", "link", "socket", "two\nlines"];
        assert_eq!(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expected);
        for (name, is_file) in &names {
            let wanted = name.starts_with('1') || name.starts_with('t');
            assert!(is_file.is_none_or(|is_file| is_file == wanted), "{name}");
            assert_eq!(reader.facts(Subdir::Cur, name).unwrap().is_some(), wanted, "{name}");
            assert_eq!(reader.open(Subdir::Cur, name).unwrap().is_some(), wanted, "{name}");
        }
        assert_eq!(reader.facts(Subdir::Cur, "1:2,S").unwrap().unwrap().size, 4);
        assert!(reader.open(Subdir::New, "1:2,S").unwrap().is_none());
        assert!(reader.open(Subdir::New, "../cur/1:2,S").is_err());
    }

    #[test]
    fn dovecots_files_and_new_folders_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let path = MailboxPath::parse("Maildir").unwrap();
        Maildir::open_or_create(dir.path().join("Maildir")).unwrap();
        assert!(!root.list_folders(&path).unwrap().has_dovecot_files);
        fs::write(dir.path().join("Maildir/dovecot-uidlist"), "3 V1 N1\n").unwrap();
        assert!(root.list_folders(&path).unwrap().has_dovecot_files);
        let before = root.stamp(&path).unwrap();
        std::fs::File::open(dir.path().join("Maildir")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_ne!(root.stamp(&path).unwrap(), before);
    }
}
