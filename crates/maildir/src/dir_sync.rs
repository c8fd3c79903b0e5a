//! Fsyncs of directories, where no `syncfs` makes names durable: of the path to a mailbox, and in it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dirs::{Identity, identity, open_parent};

/// Directories whose fsync failed. The kernel may have dropped the failed pages, so the next fsync would return 0
/// without a write. These directories are never fsynced again.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedDirs(Arc<Mutex<BTreeMap<Identity, Arc<Mutex<Failed>>>>>);

/// True once an fsync of the directory failed. Locked during the fsync.
type Failed = bool;

impl FailedDirs {
    /// The kernel reports an error to one caller only. So threads that need the same directory meanwhile wait for that
    /// result.
    fn sync(&self, place: Identity, fsync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let dirs = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = Arc::clone(dirs().entry(place).or_default());
        let mut failed = dir.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(io::Error::other(
                "a directory of the mailbox or above it could not be synced, and a second sync would prove nothing",
            ));
        }
        if let Err(error) = fsync() {
            *failed = true;
            return Err(error);
        }
        let mut dirs = dirs();
        // Only this thread and the map have it: nobody waits for the result.
        if Arc::strong_count(&dir) == 2 {
            dirs.remove(&place);
        }
        Ok(())
    }
}

/// Fsyncs of the directories that hold the names of one mailbox and its files.
#[derive(Debug)]
pub(crate) struct DirSync {
    is_durable: AtomicBool,
    failed: FailedDirs,
}

impl DirSync {
    /// `is_durable`: `syncfs` does it, so no fsync is needed.
    pub fn new(is_durable: bool, failed: &FailedDirs) -> Self {
        DirSync { is_durable: AtomicBool::new(is_durable), failed: failed.clone() }
    }

    /// Fsyncs a directory, even if it may be unchanged.
    pub fn sync_dir(&self, dir: BorrowedFd<'_>) -> io::Result<()> {
        self.failed.sync(identity(&rustix::fs::fstat(dir)?), || Ok(posthaste_fsops::fsync(dir)?))
    }

    /// Fsyncs the mailbox with `new` and the directories above it on the same file system, once. Existing ones are
    /// included: the process that made them may have been killed, or may never sync.
    pub fn sync(&self, new: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_durable.load(Ordering::Relaxed) {
            return Ok(());
        }
        let place = |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| identity(&stat));
        let mut dir = open_parent(new)?;
        let mut here = place(&dir)?;
        loop {
            self.failed.sync(here, || Ok(posthaste_fsops::fsync(&dir)?))?;
            dir = match open_parent(&dir) {
                // A directory that we may not read has no entries made by us.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_comes_while_a_directory_is_synced_hears_that_it_failed() {
        let failed = FailedDirs::default();
        let (heard, other) = channel();
        std::thread::scope(|scope| {
            let first = failed.sync((1, 2), || {
                let failed = failed.clone();
                // The kernel would tell this one nothing of an error that the first is told of.
                scope.spawn(move || heard.send(failed.sync((1, 2), || Ok(()))));
                let early = other.recv_timeout(Duration::from_millis(100));
                assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "before anything is known: {early:?}");
                Err(io::ErrorKind::Other.into())
            });
            assert!(first.is_err());
            assert!(other.recv().unwrap().is_err());
        });
        assert!(failed.sync((1, 2), || panic!("asked again")).is_err());
        assert!(failed.sync((1, 3), || Ok(())).is_ok(), "another directory");
        assert_eq!(failed.0.lock().unwrap().len(), 1, "those that are durable are forgotten");
    }
}
