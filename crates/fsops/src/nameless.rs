//! Files that get their name when they are whole.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::{linkat, openat};

/// Begins a file without a name (`O_TMPFILE`), which is gone with its descriptor unless it is [linked](link_nameless). `None` if this file system or this
/// kernel has no such files.
///
/// # Errors
/// Others of `openat`.
pub fn create_nameless(dir: impl AsFd, mode: Mode) -> rustix::io::Result<Option<File>> {
    match openat(dir, ".", OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gives a nameless file its name, never that of another file. Durable after a sync of the directory. False if there is no way here: neither the right to
/// name a file by its descriptor, nor /proc.
///
/// # Errors
/// EEXIST if the name is taken; others of `linkat`.
pub fn link_nameless(file: &File, dir: impl AsFd, name: &str) -> rustix::io::Result<bool> {
    let linked = match linkat(file, "", &dir, name, AtFlags::EMPTY_PATH) {
        // Before Linux 6.10 this needed CAP_DAC_READ_SEARCH.
        Err(Errno::NOENT) => {
            let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, itself, &dir, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    };
    match linked {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nameless_file_is_seen_once_linked_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let into = File::open(dir.path()).unwrap();
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        // Where the file system has none, callers name their files from the beginning.
        let Some(file) = create_nameless(&into, Mode::RUSR | Mode::WUSR).unwrap() else { return };
        crate::write_all(&file, b"whole").unwrap();
        assert_eq!(count(), 0);
        assert!(link_nameless(&file, &into, "name").unwrap());
        assert_eq!(std::fs::read(dir.path().join("name")).unwrap(), b"whole");
        let other = create_nameless(&into, Mode::RUSR).unwrap().unwrap();
        assert_eq!(link_nameless(&other, &into, "name"), Err(Errno::EXIST));
        drop(other);
        assert_eq!(count(), 1);
    }
}
