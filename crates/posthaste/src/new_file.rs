//! Creates files and directories of mail and secrets: accessible to their owner only, whatever the umask.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Refuses a new path inside a mail directory: it would be served, and deleted with it.
///
/// # Errors
/// `InvalidInput`; others of looking for the directories.
pub fn check_outside(new: &Path, dir: &Path) -> io::Result<()> {
    // One that is not there is told by whoever opens it.
    let Ok(of_mail) = dir.canonicalize() else { return Ok(()) };
    // A path that is to be made begins with one that is there.
    let above = std::path::absolute(new)?.ancestors().find_map(|above| above.canonicalize().ok());
    if above.is_some_and(|above| above.starts_with(&of_mail)) {
        let why = format!("{} is inside {}: name a directory outside of it", new.display(), dir.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}

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
