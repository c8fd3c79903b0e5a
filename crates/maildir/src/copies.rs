//! Copies of messages: made in `tmp/`, and moved to where readers see them on request.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::dirs::open_beneath;
use crate::maildir::{Maildir, Subdir, check_name, rename_exclusive};
use crate::mount::MountFacts;
use crate::reader::MaildirReader;

impl Maildir {
    /// Gives a message of another Maildir, or of this one, a second name in `tmp/`. Not synced.
    ///
    /// # Errors
    /// `CrossesDevices` from one file system to another; `NotFound`; `AlreadyExists`; others of `link`.
    pub fn link_tmp(&self, from: &MaildirReader, subdir: Subdir, name: &str, tmp_name: &str) -> io::Result<()> {
        check_name(name)?;
        check_name(tmp_name)?;
        self.sync_way()?;
        Ok(posthaste_fsops::linkat(from.subdir(subdir), name, self.tmp_dir(), tmp_name, AtFlags::empty())?)
    }

    /// Makes the names in `tmp/` durable.
    ///
    /// # Errors
    /// Errors of `fsync`; a second call would prove nothing.
    pub fn sync_tmp(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fsync(self.tmp_dir())?)
    }

    /// Renames a file in `tmp/` into `new/` or `cur/`; never replaces a file. After a power cut it is in one of them.
    /// Not synced.
    ///
    /// # Errors
    /// `NotFound` if `tmp/` does not have it; `AlreadyExists`; others of `rename` and `fsync`.
    pub fn place(&self, tmp_name: &str, dir: Subdir, name: &str) -> io::Result<()> {
        check_name(tmp_name)?;
        check_name(name)?;
        place(self.tmp_dir(), tmp_name, self.dir(dir), name, self.facts().ordered_log)
    }
}

impl MaildirReader {
    /// Moves a file that was left in `tmp/` into `new/`, under its name. Not synced.
    ///
    /// # Errors
    /// As [`Maildir::place`].
    pub fn place_in_new(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let tmp = open_beneath(self.dir(), "tmp")?;
        let new = self.subdir(Subdir::New);
        place(&tmp, name, new, name, MountFacts::of(new)?.ordered_log)
    }
}

fn place(from: impl AsFd, name: &str, to: impl AsFd, new_name: &str, ordered_log: bool) -> io::Result<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    if ordered_log {
        match rename_exclusive(from, name, to, new_name) {
            // Without an exclusive rename; a link is exclusive everywhere.
            Err(Errno::INVAL | Errno::NOSYS) => {}
            renamed => return Ok(renamed?),
        }
    }
    posthaste_fsops::linkat(from, name, to, new_name, AtFlags::empty())?;
    // The old name could go from the disk before the new one is there.
    posthaste_fsops::fsync(to)?;
    Ok(posthaste_fsops::unlinkat(from, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MailRoot, MailboxPath};

    #[test]
    fn a_copy_is_seen_once_it_is_placed() {
        let dir = tempfile::tempdir().unwrap();
        let root = MailRoot::open(dir.path()).unwrap();
        let path = |name: &str| MailboxPath::parse(name).unwrap();
        let (from, to) = (root.mailbox(&path("a")).unwrap(), root.mailbox(&path("b")).unwrap());
        from.write_tmp("1", &[io::IoSlice::new(b"text")]).unwrap();
        from.place("1", Subdir::Cur, "1:2,S").unwrap();
        let reader = root.reader(&path("a")).unwrap();
        to.link_tmp(&reader, Subdir::Cur, "1:2,S", "2").unwrap();
        assert_eq!(to.link_tmp(&reader, Subdir::Cur, "1:2,", "3").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(to.scan().unwrap().is_empty());
        root.reader(&path("b")).unwrap().place_in_new("2").unwrap();
        assert_eq!(to.read(Subdir::New, "2").unwrap(), b"text");
        assert_eq!(to.place("2", Subdir::Cur, "2:2,").unwrap_err().kind(), io::ErrorKind::NotFound);
        to.sync_tmp().unwrap();
    }
}
