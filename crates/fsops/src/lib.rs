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
mod devices;
#[cfg(feature = "record")]
mod event;
#[cfg(feature = "record")]
mod machine;
mod mark;
mod nameless;
#[cfg(feature = "record")]
pub mod recording;
mod replace;
mod space;
#[cfg(feature = "record")]
mod tree;
#[cfg(feature = "record")]
mod world;

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

#[cfg(feature = "record")]
pub use calls::{
    declared, declared_space, fchmod, fchown, ftruncate, linkat, mkdir, mkdirat, mounts_below, open, openat, pread,
    pwritev, rename, renameat, renameat_with, unlink, unlinkat, write, writev,
};
pub use checked::{checked, with_checksum};
pub use devices::{DeviceWatch, watch};
#[cfg(feature = "record")]
pub use machine::Machine;
pub use mark::{MarkedFile, look_for_marked, mark_made};
pub use nameless::{LinkOutcome, NamelessFile, NamelessFiles};
#[cfg(feature = "record")]
pub use recording::{Choice, Cut, FsEvent, Recording, SyncScope};
pub use replace::{ReplaceError, put_in_place, replace_file, unfinished};
pub use space::Space;
#[cfg(feature = "record")]
pub use tree::Tree;
#[cfg(feature = "record")]
pub use world::Faults;

#[cfg(not(feature = "record"))]
pub use rustix::fs::{
    fchmod, fchown, ftruncate, linkat, mkdir, mkdirat, open, openat, rename, renameat, renameat_with, unlink, unlinkat,
};
#[cfg(not(feature = "record"))]
pub use rustix::io::{pread, pwritev, write, writev};

#[cfg(not(feature = "record"))]
use rustix::fs as calls;

/// [`rustix::fs::fsync`]. EIO is reported to [watchers](watch()) of the device.
///
/// # Errors
/// See fsync(2).
pub fn fsync(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "fsync", calls::fsync(&fd))
}

/// [`rustix::fs::fdatasync`]. EIO is reported to [watchers](watch()) of the device.
///
/// # Errors
/// See fdatasync(2).
pub fn fdatasync(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "fdatasync", calls::fdatasync(&fd))
}

/// [`rustix::fs::syncfs`]. EIO is reported to [watchers](watch()) of the device.
///
/// # Errors
/// See syncfs(2).
pub fn syncfs(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "syncfs", calls::syncfs(&fd))
}

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

/// Properties that a [`Machine`]'s file system is declared to have.
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
pub fn mounts_below(_dir: &std::path::Path) -> Option<Vec<std::path::PathBuf>> {
    None
}

/// The declared space on the file system of `path`; `None` if it is a real one.
#[cfg(not(feature = "record"))]
#[inline]
pub fn declared_space(_path: &std::path::Path) -> Option<Space> {
    None
}

/// True if a read failed because of the file or its disk: EIO, a bad checksum of the file system, no such file. Then a
/// second copy of the file is used. False if this process lacks a right, a descriptor or memory.
pub fn is_of_disk(error: &io::Error) -> bool {
    let ours = [Errno::ACCESS, Errno::PERM, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| !ours.contains(&errno))
}

/// Writes all of `bytes` at the file's position.
///
/// # Errors
/// See write(2).
pub fn write_all(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_all_parts(fd, &mut [IoSlice::new(bytes)], None)
}

/// Writes all parts in order, at `offset` or at the file's position, and repeats short writes.
///
/// # Errors
/// See writev(2) and pwritev(2).
pub fn write_all_parts(fd: impl AsFd, mut parts: &mut [IoSlice<'_>], mut offset: Option<u64>) -> io::Result<()> {
    // Empty parts in front are gone from here on, so that 0 means that nothing more can be written.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let now = &parts[..parts.len().min(PARTS_AT_ONCE_MAX)];
        let written = rustix::io::retry_on_intr(|| match offset {
            Some(offset) => pwritev(fd.as_fd(), now, offset),
            None => writev(fd.as_fd(), now),
        })?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset = offset.map(|offset| offset + written as u64);
        IoSlice::advance_slices(&mut parts, written);
    }
    Ok(())
}

/// Linux's limit of parts in one call (UIO_MAXIOV).
pub const PARTS_AT_ONCE_MAX: usize = 1024;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn many_parts_and_empty_ones_arrive_in_order() {
        let mut numbers: Vec<String> =
            (0..5000).map(|n| if n % 7 == 0 { String::new() } else { format!("{n} ") }).collect();
        numbers.extend(vec![String::new(); 2000]);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writing = std::thread::spawn({
            let numbers = numbers.clone();
            move || {
                let mut parts: Vec<IoSlice<'_>> = numbers.iter().map(|n| IoSlice::new(n.as_bytes())).collect();
                write_all_parts(&writer, &mut parts, None)
            }
        });
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(read, numbers.concat());
    }
}
