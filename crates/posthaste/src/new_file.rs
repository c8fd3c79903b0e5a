//! New files and directories of mail and secrets: their owner's alone from the beginning, whatever the umask.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Makes a file with mode 0600.
///
/// # Errors
/// `AlreadyExists`; others of `open`.
pub fn new_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a directory with mode 0700.
///
/// # Errors
/// `AlreadyExists`; others of `mkdir`.
pub fn new_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}
