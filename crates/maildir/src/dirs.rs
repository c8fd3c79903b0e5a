//! Directories by their descriptors: what is opened is what was meant, wherever others move it and whatever they link.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

// Without NOFOLLOW: NO_SYMLINKS refuses the last component too, and says ELOOP where NOFOLLOW would say ENOTDIR.
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Device and inode number: the same as long as it exists, whatever its names.
pub(crate) type Identity = (u64, u64);

/// The directory or file that `stat` is of.
pub(crate) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Opens a directory below `dir`, following no symbolic link.
pub(crate) fn open_beneath(dir: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    loop {
        match rustix::fs::openat2(&dir, path, DIR_FLAGS, Mode::empty(), resolve) {
            // A rename elsewhere on the way makes the kernel unsure whether we are still beneath; it asks to try again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Opens the directory above `dir`: the Maildir that a `new/` belongs to, wherever it has been moved.
pub(crate) fn open_parent(dir: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, "..", DIR_FLAGS, Mode::empty())?)
}
