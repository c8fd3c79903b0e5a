//! Detects changes of a file.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, StatxFlags, statx};

/// Identity and change time of a file by its name. All zero: no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(found: &Metadata) -> Self {
        let changed = (found.ctime(), found.ctime_nsec());
        Self { device: found.dev(), inode: found.ino(), bytes: found.len(), changed }
    }
}

/// A file that was read, still open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    state: OpenState,
}

/// State that shows changes of an open file. A file renamed over it counts as a change, too: it takes the open file's
/// last link.
#[derive(Debug, PartialEq, Eq)]
struct OpenState {
    mode: u16,
    links: u32,
    bytes: u64,
    changed: (i64, u32),
}

impl OpenFile {
    /// Stamp of a file before it is read. `None` if the file was unlinked or cannot be examined.
    pub fn new(file: File) -> Option<Self> {
        let state = OpenState::of(&file).filter(|state| state.links > 0)?;
        Some(Self { file, state })
    }

    /// True if the file is unchanged and was not replaced. Some file systems do not report a replacement.
    pub fn is_unchanged(&self) -> bool {
        OpenState::of(&self.file).as_ref() == Some(&self.state)
    }
}

impl OpenState {
    /// Does not block: the kernel has the metadata of an open file in memory, and a remote file system is not asked.
    fn of(file: &File) -> Option<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, "", flags, StatxFlags::BASIC_STATS).ok()?;
        let changed = (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec);
        Some(Self { mode: found.stx_mode, links: found.stx_nlink, bytes: found.stx_size, changed })
    }
}
