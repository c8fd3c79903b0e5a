//! The reader's access to segment files: a trait, so that tests can simulate unreadable sectors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of segment files.
pub trait Storage: Send + Sync {
    /// The names of all segment files, in any order.
    ///
    /// # Errors
    /// What the file system said.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a segment file for reading.
    ///
    /// # Errors
    /// What the file system said.
    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>>;
}

/// One segment file.
#[expect(clippy::len_without_is_empty, reason = "no segment is empty")]
pub trait SegmentFile: Send + Sync {
    /// Bytes in the file.
    ///
    /// # Errors
    /// What the file system said.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// What the file system said; EIO for a sector that cannot be read.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl SegmentFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }
}

/// A directory of a file system.
pub(crate) struct Directory(pub PathBuf);

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        list_segments(&self.0)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(File::open(self.0.join(name))?))
    }
}

/// The names of the segments in `dir`, in order.
pub(crate) fn list_segments(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        // A directory of such a name is a sign for programs that must not open the journal any more.
        if let Ok(name) = entry.file_name().into_string()
            && name.ends_with(SEGMENT)
            && !entry.path().is_dir()
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The lock file: locked while the journal is open.
pub const LOCK: &str = "lock";
/// How the names of segment files end.
pub const SEGMENT: &str = ".seg";
