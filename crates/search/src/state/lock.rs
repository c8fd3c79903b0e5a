//! Who may write: one process at a time, in turn.
//!
//! A writer that stays, such as one that watches the Maildirs, lends the index: it sees that somebody waits ([`Turn::is_wanted`]), lets the lock go,
//! and takes it again behind those who wait. Both files are locked with `flock`, which the kernel undoes when a process dies, so nothing can be left over.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::StateError;

const LOCK: &str = "lock";
const TURN: &str = "turn";

/// Held by whoever writes; given back when dropped, also by the kernel when the process dies.
#[derive(Debug)]
pub struct Lock {
    // The descriptor is the lock.
    _file: File,
}

impl Lock {
    /// Makes the directory if need be and takes the lock. `waiting` is called once before waiting for another writer;
    /// without it, [`StateError::Locked`] is the answer.
    ///
    /// # Errors
    /// [`StateError::Locked`], [`StateError::Io`].
    pub fn acquire(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, StateError> {
        Self::try_acquire(dir, waiting)
            .map_err(|error| StateError::Io { dir: dir.to_owned(), error })?
            .ok_or_else(|| StateError::Locked(dir.to_owned()))
    }

    /// Takes the lock behind all who wait for it now: for a writer that has just lent it.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn acquire_last(dir: &Path) -> Result<Self, StateError> {
        let wait = || {
            let turn = open(dir, TURN)?;
            take(&turn)?;
            let file = open(dir, LOCK)?;
            take(&file)?;
            Ok(Self { _file: file })
        };
        wait().map_err(|error| StateError::Io { dir: dir.to_owned(), error })
    }

    fn try_acquire(dir: &Path, waiting: Option<&dyn Fn()>) -> io::Result<Option<Self>> {
        // Whoever can read an index can read the mail.
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
            take(&turn)?;
        }
        ring(&mut turn)?;
        if first && !is_lent_soon(&file)? {
            waiting();
        }
        take(&file)?;
        Ok(Some(Self { _file: file }))
    }
}

/// A writer that watches lends its lock within moments; that is not worth a message.
fn is_lent_soon(lock: &File) -> io::Result<bool> {
    const LOOKS: u32 = 20;
    for _ in 0..LOOKS {
        if take_at_once(lock)? {
            return Ok(true);
        }
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
    Ok(false)
}

/// Wakes a writer that watches the file: the turn is held by now.
fn ring(turn: &mut File) -> io::Result<()> {
    turn.set_len(0)?;
    turn.write_all(b"\n")
}

/// Tells a writer that stays whether others wait for its lock.
#[derive(Debug)]
pub struct Turn(PathBuf);

impl Turn {
    /// Of the index in `dir`.
    pub fn of(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The file that changes when somebody begins to wait.
    ///
    /// # Errors
    /// [`StateError::Io`] if it is not there and cannot be made.
    pub fn file(&self) -> Result<PathBuf, StateError> {
        open(&self.0, TURN).map_err(|error| StateError::Io { dir: self.0.clone(), error })?;
        Ok(self.0.join(TURN))
    }

    /// Whether somebody waits now.
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

fn take(file: &File) -> io::Result<()> {
    Ok(rustix::io::retry_on_intr(|| rustix::fs::flock(file, FlockOperation::LockExclusive))?)
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
        let turn = Turn::of(dir.path());
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
            let _again = Lock::acquire_last(dir.path()).unwrap();
            order.lock().unwrap().push("owner");
        });
        assert_eq!(order.into_inner().unwrap(), ["borrower", "owner"]);
    }
}
