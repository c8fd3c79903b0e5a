//! The system calls that change a file system, through one door.
//!
//! For every program that promises durability and wants to test the promise in process, without root. In a normal build these are
//! `rustix`'s own functions under the same names. With the feature `record`, calls below a directory that a [`Machine`] watches go on
//! record, none is really synced, and from the [`Recording`] any directory tree can be made that a power cut at any moment could have left
//! ([`recording`](mod@recording) states the model). What only reads needs no door.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "record")]
mod calls;
#[cfg(feature = "record")]
mod machine;
#[cfg(feature = "record")]
pub mod recording;
#[cfg(feature = "record")]
mod tree;

use std::io;
use std::os::fd::AsFd;

#[cfg(feature = "record")]
pub use calls::*;
#[cfg(feature = "record")]
pub use machine::{Faults, Machine};
#[cfg(feature = "record")]
pub use recording::{Choice, Cut, Recording};
#[cfg(feature = "record")]
pub use tree::Tree;

#[cfg(not(feature = "record"))]
pub use rustix::fs::{
    fdatasync, fsync, linkat, mkdir, mkdirat, open, openat, rename, renameat, renameat_with, syncfs, unlink, unlinkat,
};
#[cfg(not(feature = "record"))]
pub use rustix::io::{pwritev, write, writev};

/// What a [`Machine`]'s file system is declared to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Whether 0 from `syncfs` is to be believed.
    pub syncfs_trusted: bool,
    /// Whether an fsync makes all earlier changes of names durable, too.
    pub ordered_log: bool,
    /// Which life of the page cache this is: another one after each power cut.
    pub life: u64,
}

/// What is declared of the file system of `fd`; nothing if it is a real one.
#[cfg(not(feature = "record"))]
#[inline]
pub fn declared(_fd: impl AsFd) -> Option<Declared> {
    None
}

/// Writes all of `bytes` at the file's position.
///
/// # Errors
/// Those of `write`.
pub fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| write(fd.as_fd(), bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}
