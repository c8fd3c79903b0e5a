//! The syncs, of which a failure is reported.

use std::os::fd::AsFd;

use crate::{calls, devices};

/// [`rustix::fs::fsync`]. EIO is reported to [watchers](crate::watch()) of the device.
///
/// # Errors
/// See fsync(2).
pub fn fsync(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "fsync", calls::fsync(&fd))
}

/// [`rustix::fs::fdatasync`]. EIO is reported to [watchers](crate::watch()) of the device.
///
/// # Errors
/// See fdatasync(2).
pub fn fdatasync(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "fdatasync", calls::fdatasync(&fd))
}

/// [`rustix::fs::syncfs`]. EIO is reported to [watchers](crate::watch()) of the device.
///
/// # Errors
/// See syncfs(2).
pub fn syncfs(fd: impl AsFd) -> rustix::io::Result<()> {
    devices::told(&fd, "syncfs", calls::syncfs(&fd))
}
