//! One Maildir: three open directories, and operations on single messages in them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_fsops::{NamelessFiles, PARTS_AT_ONCE_MAX, write_all_parts};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::dir_sync::{DirSync, FailedDirs};
use crate::dirs::{Identity, identity, open_beneath, open_file};
use crate::mount::{Mount, MountFacts};
use crate::name::key_of;
use crate::owners::Ownership;

/// Directory of a message that readers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subdir {
    /// `new/`: delivered, not yet seen by any mail program.
    New,
    /// `cur/`: seen by a mail program; the name carries flags.
    Cur,
}

impl Subdir {
    /// `new` or `cur`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Cur => "cur",
        }
    }
}

/// A message found in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `new/` or `cur/`.
    pub dir: Subdir,
    /// The whole file name, flags included.
    pub name: String,
    /// Bytes on disk by the file system. The name may differ after a power cut.
    pub size: u64,
}

/// An open Maildir: descriptors of `tmp/`, `new/` and `cur/`, nothing else; cheap to keep, three descriptors each.
///
/// Opening and reading sync nothing. Where `syncfs` is not to be trusted ([`MountFacts::syncfs_trusted`]), the first
/// write or sync of a message first fsyncs the directory and its parents on the same file system. If one of these
/// fails, so do all later writes below that directory, by this handle and by others of the same
/// [`MailRoot`](crate::MailRoot). A second fsync would prove nothing.
///
/// It stays valid when the directory is renamed; see [`is_at`](Self::is_at). All methods take `&self` and may be called from several threads.
#[derive(Debug)]
pub struct Maildir {
    tmp: OwnedFd,
    new: OwnedFd,
    cur: OwnedFd,
    facts: MountFacts,
    new_identity: Identity,
    /// True while a directory made by this handle has not been synced.
    fresh: AtomicBool,
    /// Where they are impossible, each file has a name from the beginning.
    nameless: NamelessFiles,
    ownership: Ownership,
    dir_sync: DirSync,
}

impl Maildir {
    /// Opens or makes a Maildir at any path the caller trusts: absolute, or relative to the working directory. Links in
    /// the path are followed, but `tmp`, `new` and `cur` themselves must be real directories.
    ///
    /// # Errors
    /// Errors of `mkdir` and `open`: `NotADirectory` for a file in its place, `PermissionDenied`, `StorageFull`, ...
    pub fn open_or_create(path: impl AsRef<Path>) -> io::Result<Self> {
        let (dir, created) = open_or_create_trusted(path.as_ref())?;
        Self::open_or_create_in(&dir, created, Ownership::default(), &FailedDirs::default())
    }

    /// Opens or makes a Maildir in an open directory; follows no link in it.
    ///
    /// # Errors
    /// As [`open_or_create`](Self::open_or_create).
    pub fn open_or_create_at(dir: &OwnedFd) -> io::Result<Self> {
        Self::open_or_create_in(dir, false, Ownership::default(), &FailedDirs::default())
    }

    /// Opens a Maildir that exists, by a trusted path.
    ///
    /// # Errors
    /// `NotFound` if it or one of its directories does not exist; otherwise as [`open_or_create`](Self::open_or_create).
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_in(&open_trusted(path.as_ref())?, Ownership::default(), &FailedDirs::default())
    }

    pub(crate) fn open_or_create_in(
        dir: &OwnedFd,
        created: bool,
        ownership: Ownership,
        failed: &FailedDirs,
    ) -> io::Result<Self> {
        let (tmp, tmp_made) = ownership.open_or_make_dir(dir, "tmp")?;
        let (cur, cur_made) = ownership.open_or_make_dir(dir, "cur")?;
        let (new, new_made) = ownership.open_or_make_dir(dir, "new")?;
        Self::with_dirs([tmp, new, cur], created | tmp_made | cur_made | new_made, ownership, failed)
    }

    pub(crate) fn open_in(dir: &OwnedFd, ownership: Ownership, failed: &FailedDirs) -> io::Result<Self> {
        let sub = |name| open_beneath(dir, name);
        Self::with_dirs([sub("tmp")?, sub("new")?, sub("cur")?], false, ownership, failed)
    }

    fn with_dirs(
        [tmp, new, cur]: [OwnedFd; 3],
        fresh: bool,
        ownership: Ownership,
        failed: &FailedDirs,
    ) -> io::Result<Self> {
        let facts = MountFacts::of(&new)?;
        Ok(Self {
            facts,
            new_identity: identity(&rustix::fs::fstat(&new)?),
            tmp,
            new,
            cur,
            fresh: AtomicBool::new(fresh),
            nameless: NamelessFiles::default(),
            ownership,
            dir_sync: DirSync::new(facts.syncfs_trusted, failed),
        })
    }

    /// Durability properties of its file system.
    pub fn facts(&self) -> MountFacts {
        self.facts
    }

    /// Ownership of the files that this handle makes.
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// True if `path` still leads to this Maildir, and none of its directories has been removed: one `stat`, two
    /// `fstat`. A handle outlives a rename or removal of its directory, so a cache asks this before reuse.
    pub fn is_at(&self, path: impl AsRef<Path>) -> bool {
        let exists = |dir: &OwnedFd| rustix::fs::fstat(dir).is_ok_and(|found| found.st_nlink > 0);
        rustix::fs::stat(path.as_ref().join("new")).is_ok_and(|found| identity(&found) == self.new_identity)
            && exists(&self.tmp)
            && exists(&self.cur)
    }

    /// True if this handle made one of its directories and has not seen them synced.
    pub fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }

    pub(crate) fn set_synced(&self) {
        self.fresh.store(false, Ordering::Relaxed);
    }

    /// Makes the path to this Maildir durable, unless `syncfs` does it.
    pub(crate) fn sync_way(&self) -> io::Result<()> {
        self.dir_sync.sync(self.new.as_fd())
    }

    pub(crate) fn nameless(&self) -> &NamelessFiles {
        &self.nameless
    }

    pub(crate) fn new_dir(&self) -> BorrowedFd<'_> {
        self.new.as_fd()
    }

    pub(crate) fn tmp_dir(&self) -> BorrowedFd<'_> {
        self.tmp.as_fd()
    }

    pub(crate) fn dir(&self, dir: Subdir) -> BorrowedFd<'_> {
        match dir {
            Subdir::New => self.new.as_fd(),
            Subdir::Cur => self.cur.as_fd(),
        }
    }

    /// Writes one message into `tmp/`, with the mailbox's [`Ownership`], not synced, never over an existing file. On an
    /// error no file is left.
    ///
    /// # Errors
    /// `AlreadyExists`; `InvalidFilename` for a name that is not a plain file name of at most 255 bytes; `StorageFull`.
    /// Others of `open` and `write`, and of `fsync` where the directories have to be synced first.
    pub fn write_tmp(&self, name: &str, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.write_tmp_open(name, parts).map(drop)
    }

    /// Like [`write_tmp`](Self::write_tmp), but returns the open file, for a caller that fsyncs it.
    ///
    /// # Errors
    /// As [`write_tmp`](Self::write_tmp).
    pub fn write_tmp_open(&self, name: &str, parts: &[IoSlice<'_>]) -> io::Result<OwnedFd> {
        let file = self.create_tmp(name)?;
        if let Err(e) = write_all(file.as_fd(), parts) {
            // Half a message in tmp/ is litter, not mail; if removing it fails too, cleanup_tmp finds it.
            let _ = self.remove_tmp(name);
            return Err(e);
        }
        Ok(file)
    }

    pub(crate) fn create_tmp(&self, name: &str) -> io::Result<OwnedFd> {
        check_name(name)?;
        self.sync_way()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = posthaste_fsops::openat(&self.tmp, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.ownership.apply_to_file(&file).inspect_err(|_| drop(self.remove_tmp(name)))?;
        Ok(file)
    }

    /// Removes a file from `tmp/`.
    ///
    /// # Errors
    /// Errors of `unlink`, such as `NotFound`.
    pub fn remove_tmp(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(posthaste_fsops::unlinkat(&self.tmp, name, AtFlags::empty())?)
    }

    /// Renames a message from `tmp/` into `new/`, where readers see it; never over an existing file. Not synced.
    ///
    /// # Errors
    /// `AlreadyExists` if `new/` has that name; `NotFound` if `tmp/` has not; others of `rename`.
    pub fn publish(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        match rename_exclusive(self.tmp.as_fd(), name, self.new.as_fd(), name) {
            // The file system has no exclusive rename; a link is exclusive everywhere.
            Err(Errno::INVAL | Errno::NOSYS) => {
                posthaste_fsops::linkat(&self.tmp, name, &self.new, name, AtFlags::empty())?;
                Ok(posthaste_fsops::unlinkat(&self.tmp, name, AtFlags::empty())?)
            }
            done => Ok(done?),
        }
    }

    /// Removes a message.
    ///
    /// # Errors
    /// Errors of `unlink`: `NotFound` if it was moved or removed meanwhile.
    pub fn remove(&self, dir: Subdir, name: &str) -> io::Result<()> {
        check_name(name)?;
        Ok(posthaste_fsops::unlinkat(self.dir(dir), name, AtFlags::empty())?)
    }

    /// Makes one message durable, bytes and name, by fsync of the file and of the directories that its name is and was
    /// in. For mounts whose `syncfs` is not to be trusted.
    ///
    /// # Errors
    /// Errors of `open` and `fsync`; after an error of `fsync` the file must be written anew.
    pub fn sync_message(&self, dir: Subdir, name: &str) -> io::Result<()> {
        self.sync_way()?;
        posthaste_fsops::fsync(self.open_message(dir, name)?)?;
        match dir {
            // The exchange in new/ that gave it its name there may not be durable either.
            Subdir::Cur if !self.facts.ordered_log => self.sync_names(),
            _ => Ok(posthaste_fsops::fsync(self.dir(dir))?),
        }
    }

    /// A descriptor for `syncfs` on its file system.
    ///
    /// # Errors
    /// Errors of [`Mount::of_dir`].
    pub fn mount(&self) -> io::Result<Mount> {
        Mount::of_dir(&self.new)
    }

    /// Makes renames in `new/` and `cur/` durable before anything depends on them. Does nothing where changes of names
    /// reach the disk in order ([`MountFacts::ordered_log`]).
    ///
    /// # Errors
    /// As [`sync_names`](Self::sync_names).
    pub fn sync_moves(&self) -> io::Result<()> {
        if self.facts.ordered_log { Ok(()) } else { self.sync_names() }
    }

    /// Makes additions and removals of names in `new/` and `cur/` durable.
    ///
    /// # Errors
    /// Errors of `fsync`, for this mailbox from then on: a second fsync of a directory would prove nothing.
    pub fn sync_names(&self) -> io::Result<()> {
        self.dir_sync.sync_dir(self.new.as_fd())?;
        self.dir_sync.sync_dir(self.cur.as_fd())
    }

    /// Finds a message in `new/` or `cur/`, whatever flags or sizes its name has now. `name` is a whole name or only
    /// its key (the part before the first `,` or `:`). Costs one `stat` if it is in `new/` under exactly `name`, else a
    /// scan of both directories.
    ///
    /// # Errors
    /// Errors of `open`, `getdents` and `stat`.
    pub fn find(&self, name: &str) -> io::Result<Option<Found>> {
        if check_name(name).is_ok()
            && let Some(found) = self.stat_message(Subdir::New, name)?
        {
            return Ok(Some(found));
        }
        Ok(self.find_many([name])?.remove(key_of(name)))
    }

    /// Finds many messages with one scan of `new/` and one of `cur/`. The result is by key (the part before the first
    /// `,` or `:`).
    ///
    /// A scan may miss a message that moves meanwhile, so if some are missing both directories are scanned once more.
    ///
    /// # Errors
    /// Errors of `open`, `getdents` and `stat`.
    pub fn find_many<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> io::Result<HashMap<String, Found>> {
        let mut wanted: std::collections::HashSet<&str> = names.into_iter().map(key_of).collect();
        let mut all = HashMap::with_capacity(wanted.len());
        // new/ first: messages move from there to cur/, and seldom back.
        for dir in [Subdir::New, Subdir::Cur, Subdir::New, Subdir::Cur] {
            if wanted.is_empty() {
                break;
            }
            let mut hits = Vec::new();
            self.for_each_name(dir, |name| {
                if let Some(key) = wanted.take(key_of(name)) {
                    hits.push((key, name.to_owned()));
                }
            })?;
            for (key, name) in hits {
                match self.stat_message(dir, &name)? {
                    Some(found) => {
                        all.insert(key.to_owned(), found);
                    }
                    None => {
                        wanted.insert(key);
                    }
                }
            }
        }
        Ok(all)
    }

    fn stat_message(&self, dir: Subdir, name: &str) -> io::Result<Option<Found>> {
        match rustix::fs::statat(self.dir(dir), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Found { dir, name: name.to_owned(), size: stat.st_size as u64 })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens a message for reading; follows no link.
    ///
    /// # Errors
    /// Errors of `open`: `NotFound` if it was moved or removed meanwhile.
    pub fn open_message(&self, dir: Subdir, name: &str) -> io::Result<File> {
        check_name(name)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(File::from(open_file(self.dir(dir), name, flags)?))
    }

    /// Reads a whole message as it is on disk.
    ///
    /// # Errors
    /// As [`open_message`](Self::open_message), and those of `read`.
    pub fn read(&self, dir: Subdir, name: &str) -> io::Result<Vec<u8>> {
        let mut file = self.open_message(dir, name)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Checks a plain file name: no path, no dots alone, no control characters, at most 255 bytes.
pub(crate) fn check_name(name: &str) -> io::Result<()> {
    crate::path::check_component(name).map_err(|e| io::Error::new(io::ErrorKind::InvalidFilename, e))
}

pub(crate) fn rename_exclusive(
    from: BorrowedFd<'_>,
    name: &str,
    to: BorrowedFd<'_>,
    new_name: &str,
) -> Result<(), Errno> {
    posthaste_fsops::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE)
}

/// Writes all parts, in order. Usually one call takes all, and the list of parts is not copied.
pub(crate) fn write_all(file: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> io::Result<()> {
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total == 0 {
        return Ok(());
    }
    let at_once = &parts[..parts.len().min(PARTS_AT_ONCE_MAX)];
    let written = rustix::io::retry_on_intr(|| posthaste_fsops::writev(file, at_once))?;
    if written == total {
        return Ok(());
    }
    let mut parts = parts.to_vec();
    let mut rest = &mut parts[..];
    IoSlice::advance_slices(&mut rest, written);
    write_all_parts(file, rest, None)
}

fn open_trusted(path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn open_or_create_trusted(path: &Path) -> io::Result<(OwnedFd, bool)> {
    match open_trusted(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        found => return Ok((found?, false)),
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    open_or_create_trusted(parent)?;
    match posthaste_fsops::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok((open_trusted(path)?, true))
}
