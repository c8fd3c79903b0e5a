//! Declarations of simulated file systems. A build without the feature `record` has none.

#[cfg(not(feature = "record"))]
use std::os::fd::AsFd;
#[cfg(not(feature = "record"))]
use std::path::{Path, PathBuf};

/// Properties that a `Machine`'s file system is declared to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Number of the file system within its machine.
    pub device: u64,
    /// True if a 0 from `syncfs` can be believed.
    pub syncfs_trusted: bool,
    /// True if changes of names reach the disk in order, so that an fsync makes all earlier ones durable, too.
    pub ordered_log: bool,
    /// Generation of the page cache: a new one begins after each power cut.
    pub life: u64,
    /// True if the kernel has given it up: no changes are possible, and `syncfs` returns 0 without a sync.
    pub is_read_only: bool,
}

/// The declaration of the file system of `fd`; `None` if it is a real one.
#[cfg(not(feature = "record"))]
#[inline]
pub fn declared(_fd: impl AsFd) -> Option<Declared> {
    None
}

/// Mount points below `dir`, if it lies in a watched directory; empty for a real one.
#[cfg(not(feature = "record"))]
#[inline]
pub fn mounts_below(_dir: &Path) -> Option<Vec<PathBuf>> {
    None
}
