//! The scratch directory of a run.

use std::io;
use std::path::{Path, PathBuf};

/// A directory for one run, removed when this value is dropped.
///
/// All files stay until then. The file system ext4 does not reuse an inode for minutes after its removal, and scans all
/// such inodes each time it creates a file near them. Runs next to the remains of an earlier one were up to ten times
/// as slow. The subdirectories made directly in it are spread over the disk, if the file system can do that.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes a new directory in `base`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_in(base: &Path) -> io::Result<Self> {
        let base = std::path::absolute(base)?;
        if !base.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such directory"));
        }
        let dir = tempfile::Builder::new().prefix("posthaste-bench-").tempdir_in(base)?;
        // Other users' processes, such as Postfix's, have to get through.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        spread(dir.path());
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Keeps the directory and returns its path.
    pub fn keep(self) -> PathBuf {
        self.0.keep()
    }
}

/// Makes a directory for `name` in `base`, far from its siblings on the disk.
///
/// # Errors
/// When it cannot be made.
pub fn subdirectory(base: &Path, name: &str) -> io::Result<PathBuf> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let prefix: String = name.chars().map(plain).collect();
    let dir = tempfile::Builder::new().prefix(&format!("{prefix}-")).tempdir_in(base)?.keep();
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(dir)
}

/// Marks a directory so that its subdirectories are spread over the disk. File systems without such a flag do not need
/// it.
fn spread(dir: &Path) {
    use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};
    if let Ok(dir) = open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        let _ = ioctl_getflags(&dir).and_then(|flags| ioctl_setflags(&dir, flags | IFlags::TOPDIR));
    }
}

/// Writes everything so far to the disk, so that the next round does not pay for it.
pub fn write_back(dir: &Path) {
    if let Ok(dir) = std::fs::File::open(dir) {
        // An error shows in what is measured next, or in the account.
        let _ = rustix::fs::syncfs(&dir);
    }
}
