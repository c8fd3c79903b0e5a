//! A lock on a file, for one process at a time.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// An exclusive `flock(2)`, released when dropped.
///
/// Closing the file would not always release it: a child process has a copy of the descriptor from its fork to its exec,
/// and keeps the lock so long.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file. `None` if it is locked already, by this or another process.
    ///
    /// # Errors
    /// Errors of `flock(2)`, such as ENOLCK on a network file system.
    pub fn try_new(file: File) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            locked => Ok(locked.map(|()| Some(Self(file)))?),
        }
    }
}

impl AsFd for FileLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It cannot fail for a lock that is held.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let file = File::create(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let lock = FileLock::try_new(file).unwrap().unwrap();
        assert!(FileLock::try_new(File::open(&path).unwrap()).unwrap().is_none());
        drop(lock);
        assert!(FileLock::try_new(File::open(&path).unwrap()).unwrap().is_some());
        drop(copy);
    }
}
