//! The system calls that change a file system, in one place.
//!
//! For every program that promises durability and wants to test the promise in process, without root. In a normal build
//! these are `rustix`'s own functions under the same names. With the feature `record`, calls below a directory that a
//! [`Machine`] watches are recorded, and none is really synced. From the [`Recording`] a test makes any directory tree
//! that a power cut could have left ([`recording`](mod@recording) states the model). Reads bypass this crate, except
//! [`Space::of`] (tests declare the free space) and [`pread`] (tests make sectors unreadable).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "record")]
mod calls;
mod checked;
#[cfg(feature = "record")]
mod chooser;
mod declared;
mod devices;
#[cfg(feature = "record")]
mod event;
mod file_lock;
#[cfg(feature = "record")]
mod machine;
mod mark;
mod nameless;
#[cfg(feature = "record")]
pub mod recording;
mod replace;
mod space;
mod sync;
#[cfg(feature = "record")]
mod tree;
#[cfg(feature = "record")]
mod world;
mod write;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

#[cfg(feature = "record")]
pub use calls::{
    declared, fchmod, fchown, ftruncate, linkat, mkdir, mkdirat, mounts_below, open, openat, pread, pwritev, rename,
    renameat, renameat_with, unlink, unlinkat, write, writev,
};
pub use checked::{checked, with_checksum};
pub use declared::Declared;
#[cfg(not(feature = "record"))]
pub use declared::{declared, mounts_below};
pub use devices::{DeviceWatch, watch};
pub use file_lock::FileLock;
#[cfg(feature = "record")]
pub use machine::Machine;
pub use mark::{MarkedFile, look_for_marked, mark_made};
pub use nameless::{LinkOutcome, NamelessFile, NamelessFiles};
#[cfg(feature = "record")]
pub use recording::{Choice, Cut, FsEvent, Recording, SyncScope};
pub use replace::{ReplaceError, put_in_place, replace_file, unfinished};
pub use space::Space;
pub use sync::{fdatasync, fsync, syncfs};
#[cfg(feature = "record")]
pub use tree::Tree;
#[cfg(feature = "record")]
pub use world::Faults;
pub use write::{PARTS_AT_ONCE_MAX, write_all, write_all_parts};

#[cfg(not(feature = "record"))]
pub use rustix::fs::{
    fchmod, fchown, ftruncate, linkat, mkdir, mkdirat, open, openat, rename, renameat, renameat_with, unlink, unlinkat,
};
#[cfg(not(feature = "record"))]
pub use rustix::io::{pread, pwritev, write, writev};

#[cfg(not(feature = "record"))]
use rustix::fs as calls;

/// Makes a directory (mode 0700) and missing ones above it, each durable before its content. An existing one is made
/// durable too: the process that made it may have been killed before the sync.
///
/// # Errors
/// An error of making, opening or syncing a directory.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let was_there = dir.is_dir();
    if !was_there {
        make_dir(parent)?;
        match mkdir(dir, Mode::RWXU) {
            Err(Errno::EXIST) if dir.is_dir() => {}
            made => made?,
        }
    }
    let this = File::open(dir)?;
    fsync(&this)?;
    let parent = match File::open(parent) {
        // Where we may not look we have made nothing.
        Err(error) if was_there && error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    if this.metadata()?.dev() == parent.metadata()?.dev() {
        fsync(&parent)?;
    }
    Ok(())
}

/// True if a read failed because of the file or its disk: EIO, a bad checksum of the file system, no such file. Then a
/// second copy of the file is used. False if this process lacks a right, a descriptor or memory.
pub fn is_of_disk(error: &io::Error) -> bool {
    let ours = [Errno::ACCESS, Errno::PERM, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| !ours.contains(&errno))
}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
