//! The writer's lock: one process writes at a time, others queue.
//!
//! A long-lived writer, such as one that watches the Maildirs, lends the index. It sees that another waits
//! ([`WaitingWriter::is_wanted`]), releases the lock, and queues for it again. Both files are locked with `flock`. The
//! kernel releases that when a process dies, so no lock is ever stale.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::StateError;
use crate::stop::Stop;

const LOCK: &str = "lock";
const TURN: &str = "turn";

/// The writer's lock. Released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub struct Lock {
    // The descriptor is the lock.
    _file: File,
}

impl Lock {
    /// Makes the directory if need be and takes the lock. `waiting` is called once before waiting for another writer.
    /// Without it, a held lock is an error ([`StateError::Locked`]).
    ///
    /// # Errors
    /// [`StateError::Locked`], [`StateError::Io`].
    pub fn acquire(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, StateError> {
        Self::try_acquire(dir, waiting, None)
            .map_err(|error| StateError::Io { dir: dir.to_owned(), error })?
            .ok_or_else(|| StateError::Locked(dir.to_owned()))
    }

    /// Like [`acquire`](Self::acquire), for a long-lived writer: `None` if `stop` is called while it waits.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub(crate) fn acquire_unless(dir: &Path, waiting: &dyn Fn(), stop: &Stop) -> Result<Option<Self>, StateError> {
        Self::try_acquire(dir, Some(waiting), Some(stop)).map_err(|error| StateError::Io { dir: dir.to_owned(), error })
    }

    /// Queues for the lock after all current waiters, for a writer that has just lent it. `None` if `stop` is called
    /// while it waits.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub(crate) fn acquire_last(dir: &Path, stop: &Stop) -> Result<Option<Self>, StateError> {
        let wait = || {
            let turn = open(dir, TURN)?;
            let file = open(dir, LOCK)?;
            let is_taken = take(&turn, Some(stop))? && take(&file, Some(stop))?;
            Ok(is_taken.then_some(Self { _file: file }))
        };
        wait().map_err(|error| StateError::Io { dir: dir.to_owned(), error })
    }

    /// Acquires the lock. `None` if another process has it: at once if `waiting` is `None`, else after `stop` was
    /// called.
    fn try_acquire(dir: &Path, waiting: Option<&dyn Fn()>, stop: Option<&Stop>) -> io::Result<Option<Self>> {
        // Reading an index is reading the mail.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let file = open(dir, LOCK)?;
        if take_at_once(&file)? {
            return Ok(Some(Self { _file: file }));
        }
        let Some(waiting) = waiting else { return Ok(None) };
        let mut turn = open(dir, TURN)?;
        let first = take_at_once(&turn)?;
        if !first {
            waiting();
            if !take(&turn, stop)? {
                return Ok(None);
            }
        }
        ring(&mut turn)?;
        if first && !is_lent_soon(&file)? {
            waiting();
        }
        Ok(take(&file, stop)?.then_some(Self { _file: file }))
    }
}

/// Interval between attempts to take a lock that another holds.
const PAUSE: Duration = Duration::from_millis(25);

/// Waits a moment for a lock that a watch is about to lend, to avoid a needless message.
fn is_lent_soon(lock: &File) -> io::Result<bool> {
    const LOOKS: u32 = 20;
    for _ in 0..LOOKS {
        if take_at_once(lock)? {
            return Ok(true);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(false)
}

/// Wakes a watching writer by changing the file. The caller already holds the turn.
fn ring(turn: &mut File) -> io::Result<()> {
    turn.set_len(0)?;
    turn.write_all(b"\n")
}

/// Shows a long-lived writer that others wait for its lock.
#[derive(Debug)]
pub struct WaitingWriter(PathBuf);

impl WaitingWriter {
    /// The lock of the index in `dir`.
    pub fn of(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// Path of the file that changes when another process begins to wait.
    ///
    /// # Errors
    /// [`StateError::Io`] if it does not exist and cannot be made.
    pub fn file(&self) -> Result<PathBuf, StateError> {
        open(&self.0, TURN).map_err(|error| StateError::Io { dir: self.0.clone(), error })?;
        Ok(self.0.join(TURN))
    }

    /// True if another process waits now.
    pub fn is_wanted(&self) -> bool {
        open(&self.0, TURN).and_then(|turn| take_at_once(&turn)).is_ok_and(|free| !free)
    }
}

fn open(dir: &Path, name: &str) -> io::Result<File> {
    File::options().create(true).append(true).open(dir.join(name))
}

fn take_at_once(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Polls for a lock until `stop` is called; false then. A blocking `flock` could not be interrupted.
fn take(file: &File, stop: Option<&Stop>) -> io::Result<bool> {
    let Some(stop) = stop else {
        rustix::io::retry_on_intr(|| rustix::fs::flock(file, FlockOperation::LockExclusive))?;
        return Ok(true);
    };
    while !take_at_once(file)? {
        if stop.wait(PAUSE) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let held = Lock::acquire(dir.path(), None).unwrap();
        assert!(matches!(Lock::acquire(dir.path(), None), Err(StateError::Locked(_))));
        drop(held);
        Lock::acquire(dir.path(), None).unwrap();
    }

    #[test]
    fn a_writer_that_stays_lends_its_lock_and_comes_next() {
        let dir = tempfile::tempdir().unwrap();
        let turn = WaitingWriter::of(dir.path());
        let held = Lock::acquire(dir.path(), None).unwrap();
        assert!(!turn.is_wanted());
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let lock = Lock::acquire(dir.path(), Some(&|| {})).unwrap();
                order.lock().unwrap().push("borrower");
                drop(lock);
            });
            while !turn.is_wanted() {
                std::thread::yield_now();
            }
            drop(held);
            let _again = Lock::acquire_last(dir.path(), &Stop::new().unwrap()).unwrap().unwrap();
            order.lock().unwrap().push("owner");
        });
        assert_eq!(order.into_inner().unwrap(), ["borrower", "owner"]);
    }
}
