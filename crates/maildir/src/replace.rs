//! Replaces the content of a message, under the same name and flags.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::maildir::{Found, Maildir, write_all};
use crate::name::key_of;

impl Maildir {
    /// Replaces a message's file under the same name and flags: a new file is written to `tmp/` and renamed. A reader
    /// sees the old file or the new one. Not synced: call [`MailRoot::sync`](crate::MailRoot::sync) or
    /// [`sync_message`](Self::sync_message).
    ///
    /// # Errors
    /// `NotFound` if the message has gone meanwhile (it is not brought back); others of `open`, `write`, `fsync`,
    /// `rename`.
    pub fn replace(&self, found: &Found, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.replace_with(found, |file| write_all(file.0.as_fd(), parts))
    }

    /// Like [`replace`](Self::replace), with bytes that `write` supplies piece by piece.
    ///
    /// # Errors
    /// As [`replace`](Self::replace), and errors of `write`.
    pub fn replace_with(&self, found: &Found, write: impl FnOnce(&mut NewFile) -> io::Result<()>) -> io::Result<()> {
        let tmp_name = key_of(&found.name);
        // Litter of an earlier attempt that a crash cut short.
        let _ = self.remove_tmp(tmp_name);
        let mut file = NewFile(self.create_tmp(tmp_name)?);
        let put = || -> io::Result<()> {
            write(&mut file)?;
            let dir = self.dir(found.dir);
            // Its owner may have just moved it there. Of what reaches the disk in any order, the exchange might without that move: then it would lie in both.
            self.sync_moves()?;
            // A rename would bring it back under its old name if its owner has just given it another.
            match posthaste_fsops::renameat_with(self.tmp_dir(), tmp_name, dir, &*found.name, RenameFlags::EXCHANGE) {
                Ok(()) => return self.remove_tmp(tmp_name),
                // Not on this file system.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
            rustix::fs::statat(dir, &*found.name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(posthaste_fsops::renameat(self.tmp_dir(), tmp_name, dir, &*found.name)?)
        };
        put().inspect_err(|_| drop(self.remove_tmp(tmp_name)))
    }
}

/// A file under construction that will replace a message.
#[derive(Debug)]
pub struct NewFile(OwnedFd);

impl NewFile {
    /// Sets its modification time. Call it after the last write.
    ///
    /// # Errors
    /// An error of `utimensat`.
    pub fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
        Ok(rustix::fs::futimens(&self.0, &Timestamps { last_access: time, last_modification: time })?)
    }
}

impl io::Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(posthaste_fsops::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
