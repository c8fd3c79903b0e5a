//! The names that lead to a mailbox, where no `syncfs` makes them durable.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::root::open_parent;

/// Directories whose fsync failed, by device and inode. The kernel may have dropped what it could not write, so that the next fsync has
/// nothing to do and returns 0: these directories are not asked again.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedDirs(Arc<Mutex<BTreeSet<(u64, u64)>>>);

impl FailedDirs {
    fn sync(&self, dir: &OwnedFd, place: (u64, u64)) -> io::Result<()> {
        let failed = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failed().contains(&place) {
            return Err(io::Error::other(
                "a directory on the way to the mailbox could not be synced, and a second try proves nothing",
            ));
        }
        posthaste_fsops::fsync(dir).map_err(|error| {
            failed().insert(place);
            error.into()
        })
    }
}

/// Whether the names that lead to one mailbox are known to be durable.
#[derive(Debug)]
pub(crate) struct Way {
    is_durable: AtomicBool,
    failed: FailedDirs,
}

impl Way {
    /// `is_durable`: nothing has to be done, since `syncfs` does it.
    pub fn new(is_durable: bool, failed: &FailedDirs) -> Self {
        Way { is_durable: AtomicBool::new(is_durable), failed: failed.clone() }
    }

    /// Once: fsyncs the mailbox that `new` is in and the directories above it, as far as they are on the same file system. Also those
    /// that were there: whoever made them may have been killed, or may never sync.
    pub fn sync(&self, new: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_durable.load(Ordering::Relaxed) {
            return Ok(());
        }
        let place = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
        let mut dir = open_parent(new)?;
        let mut here = place(&dir)?;
        loop {
            self.failed.sync(&dir, here)?;
            dir = match open_parent(&dir) {
                // Where we may not look we have made nothing.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                above => above?,
            };
            let above = place(&dir)?;
            if above.0 != here.0 || above == here {
                break;
            }
            here = above;
        }
        self.is_durable.store(true, Ordering::Relaxed);
        Ok(())
    }
}
