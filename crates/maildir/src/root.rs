//! The directory below which all mailboxes of a server lie.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};

use crate::dir_sync::FailedDirs;
use crate::dirs::open_beneath;
use crate::maildir::Maildir;
use crate::mount::{Mount, MountFacts};
use crate::owners::{Owners, Ownership};
use crate::path::MailboxPath;

/// An open mail root. All mailboxes are below it, and no symbolic link is followed on the way.
///
/// It keeps one descriptor for `syncfs` on each mount of a mailbox, opened before that mailbox could be written to.
/// Other file systems may be mounted below the root; [`sync`](Self::sync) covers all.
#[derive(Debug)]
pub struct MailRoot {
    dir: OwnedFd,
    facts: MountFacts,
    // Each mount has its own lock: a hanging sync must not block the opening of mailboxes elsewhere.
    mounts: Mutex<BTreeMap<u64, Arc<Mutex<Mount>>>>,
    failed_dirs: FailedDirs,
    owners: Owners,
}

impl MailRoot {
    /// Opens an existing directory. Links in `path` itself are followed: it comes from the operator.
    ///
    /// # Errors
    /// Errors of `open` and `statfs`; `NotADirectory` for anything else.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path.as_ref(), flags, Mode::empty())?;
        let mount = Mount::of_dir(&dir)?;
        let facts = mount.facts();
        let mounts = Mutex::new(BTreeMap::from([(facts.device, Arc::new(Mutex::new(mount)))]));
        Ok(Self { dir, facts, mounts, failed_dirs: FailedDirs::default(), owners: Owners::default() })
    }

    /// Files and directories made from now on get the owner and mode that `owners` returns. Existing ones keep theirs.
    #[must_use]
    pub fn with_owners(self, owners: Owners) -> Self {
        Self { owners, ..self }
    }

    /// Ownership of a new mailbox, or of a directory above one.
    pub fn ownership_of(&self, path: &str) -> Ownership {
        self.owners.of(path)
    }

    /// Durability properties of the root's own file system. [`Maildir::facts`] has those of a mailbox.
    pub fn facts(&self) -> MountFacts {
        self.facts
    }

    /// Opens a mailbox, making it and the directories above it if need be (mode 0700, or as set by
    /// [`with_owners`](Self::with_owners)). Nothing is synced: where `syncfs` is trusted, a new mailbox is durable with
    /// the next sync. Elsewhere the first write fsyncs it, with every directory above it. If that fails, no mailbox
    /// below that directory can be written to until the root is opened again.
    ///
    /// # Errors
    /// Errors of `mkdir`, `fchown`, `fchmod` and `openat`: `FilesystemLoop` (ELOOP) for a symbolic link on the way,
    /// `NotADirectory` for a file in its place, `PermissionDenied`, `StorageFull`.
    pub fn mailbox(&self, path: &MailboxPath) -> io::Result<Maildir> {
        let (dir, created) = self.open_or_create(path)?;
        let ownership = self.owners.of(path.as_str());
        let maildir = Maildir::open_or_create_in(&dir, created, ownership, &self.failed_dirs)?;
        self.remember_mount(&maildir)?;
        Ok(maildir)
    }

    /// Opens a mailbox that exists.
    ///
    /// # Errors
    /// `NotFound` if it, or its `tmp`, `new` or `cur`, does not exist; otherwise as [`mailbox`](Self::mailbox).
    pub fn existing_mailbox(&self, path: &MailboxPath) -> io::Result<Maildir> {
        let ownership = self.owners.of(path.as_str());
        let maildir = Maildir::open_in(&open_beneath(&self.dir, path.as_str())?, ownership, &self.failed_dirs)?;
        self.remember_mount(&maildir)?;
        Ok(maildir)
    }

    /// Makes all that was written to the mailboxes before this call durable, on every mount with one of them. Mounts
    /// whose `syncfs` is not to be trusted ([`MountFacts::syncfs_trusted`]) are skipped: there, use
    /// [`Maildir::sync_message`] for each message.
    ///
    /// # Errors
    /// The error of the first mount that failed; the others are synced all the same. The failure is final for
    /// everything written since the last success, on any thread: the descriptor has reported it once and is opened
    /// anew. So one owner should call this.
    pub fn sync(&self) -> io::Result<()> {
        let mut outcome = Ok(());
        let mounts: Vec<_> = lock(&self.mounts).iter().map(|(device, mount)| (*device, mount.clone())).collect();
        for (device, mount) in mounts {
            let mut mount = lock(&mount);
            if !mount.facts().syncfs_trusted {
                continue;
            }
            if let Err(e) = mount.sync() {
                if let Ok(fresh) = Mount::of_dir(&*mount) {
                    debug_assert_eq!(fresh.facts().device, device);
                    *mount = fresh;
                }
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }

    /// Fsyncs the directory at `path`, which makes the names in it durable.
    ///
    /// # Errors
    /// `NotFound`; errors of `fsync`, after which a second call would prove nothing.
    pub fn sync_dir(&self, path: &MailboxPath) -> io::Result<()> {
        Ok(posthaste_fsops::fsync(self.open_dir(path)?)?)
    }

    /// Fsyncs the directory at `path` and those above it, the root included, which makes the whole path durable.
    ///
    /// # Errors
    /// As [`sync_dir`](Self::sync_dir).
    pub fn sync_path(&self, path: &MailboxPath) -> io::Result<()> {
        self.sync_dir(path)?;
        for (end, _) in path.as_str().rmatch_indices('/') {
            posthaste_fsops::fsync(open_beneath(&self.dir, &path.as_str()[..end])?)?;
        }
        Ok(posthaste_fsops::fsync(&self.dir)?)
    }

    /// Opens the directory at `path`.
    pub(crate) fn open_dir(&self, path: &MailboxPath) -> io::Result<OwnedFd> {
        open_beneath(&self.dir, path.as_str())
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    fn remember_mount(&self, maildir: &Maildir) -> io::Result<()> {
        let device = maildir.facts().device;
        if let std::collections::btree_map::Entry::Vacant(vacant) = lock(&self.mounts).entry(device) {
            vacant.insert(Arc::new(Mutex::new(Mount::of_dir(maildir.new_dir())?)));
        }
        Ok(())
    }

    /// Opens the directory at `path`; the flag is true if any part of it was made.
    fn open_or_create(&self, path: &MailboxPath) -> io::Result<(OwnedFd, bool)> {
        match open_beneath(&self.dir, path.as_str()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return Ok((found?, false)),
        }
        let mut at: Option<OwnedFd> = None;
        let mut above = 0;
        for component in path.components() {
            let parent = at.as_ref().map_or(self.dir.as_fd(), AsFd::as_fd);
            let ownership = self.owners.of(&path.as_str()[..above + component.len()]);
            at = Some(ownership.open_or_make_dir(parent, component)?.0);
            above += component.len() + 1;
        }
        at.map(|dir| (dir, true)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while it was held leaves what it guards whole: each step is one assignment or insertion.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_that_hangs_keeps_no_mailbox_from_being_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let mounts: Vec<_> = lock(&root.mounts).values().cloned().collect();
        // What `sync` holds for as long as the disk does not answer.
        let _hanging: Vec<_> = mounts.iter().map(|mount| lock(mount)).collect();
        root.mailbox(&MailboxPath::parse("a/Maildir").unwrap()).unwrap();
    }
}
