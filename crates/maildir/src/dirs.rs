//! Directories as descriptors, so that a concurrent rename or link cannot redirect an access.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags for directories that are only passed through: search permission is enough.
const WAY_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Device and inode number: constant during the file's life, whatever its names.
pub(crate) type Identity = (u64, u64);

/// The directory or file that `stat` is of.
pub(crate) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Opens a directory below `dir`, following no symbolic link.
///
/// Opens one component after the other. `openat2` takes one call, but sandboxes forbid it, as a filter of system calls
/// cannot see its flags (ENOSYS under `RestrictSUIDSGID=` of systemd).
pub(crate) fn open_beneath(dir: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let Some((way, last)) = path.rsplit_once('/') else { return open_component(dir.as_fd(), path, DIR_FLAGS) };
    let mut names = way.split('/');
    let mut reached = open_component(dir.as_fd(), names.next().unwrap_or(""), WAY_FLAGS)?;
    for name in names {
        reached = open_component(reached.as_fd(), name, WAY_FLAGS)?;
    }
    open_component(reached.as_fd(), last, DIR_FLAGS)
}

fn open_component(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    if name == ".." {
        return Err(Errno::XDEV.into());
    }
    match open_file(dir, name, flags) {
        // Also said of a symbolic link.
        Err(Errno::NOTDIR) if is_link(dir, name) => Err(Errno::LOOP.into()),
        done => Ok(done?),
    }
}

fn is_link(dir: BorrowedFd<'_>, name: &str) -> bool {
    let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Opens an entry of `dir` by its name, which must not be a path.
///
/// # Errors
/// Errors of `openat`; ELOOP for a symbolic link (with `DIRECTORY` in `flags` ENOTDIR), EINVAL for a path.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    if name.contains('/') {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty()))
}

/// Opens the parent directory of `dir`: the Maildir that a `new/` belongs to, wherever it has been moved.
pub(crate) fn open_parent(dir: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, "..", DIR_FLAGS, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_on_the_way_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        std::fs::write(dir.path().join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("first")).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a/last")).unwrap();
        let top = std::fs::File::open(dir.path()).unwrap();
        let opened = |path: &str| open_beneath(&top, path).map_err(|error| error.raw_os_error().unwrap());
        for path in [".", "a", "a/b/c"] {
            assert!(opened(path).is_ok(), "{path}");
        }
        for (path, expected) in [
            ("first", Errno::LOOP),
            ("first/b/c", Errno::LOOP),
            ("a/last", Errno::LOOP),
            ("a/last/c", Errno::LOOP),
            ("a/file", Errno::NOTDIR),
            ("a/file/c", Errno::NOTDIR),
            ("a/none", Errno::NOENT),
            ("a/../a", Errno::XDEV),
            ("..", Errno::XDEV),
            ("/", Errno::NOENT),
        ] {
            assert_eq!(opened(path).unwrap_err(), expected.raw_os_error(), "{path}");
        }
        assert_eq!(open_file(top.as_fd(), "a/file", OFlags::RDONLY).unwrap_err(), Errno::INVAL);
        assert_eq!(open_file(top.as_fd(), "first", OFlags::RDONLY).unwrap_err(), Errno::LOOP);
    }
}
