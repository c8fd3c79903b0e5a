//! The number of times that UIDs were left out. Its file is beside the table's directory, so that a lost table does not take it along.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

fn path_of(dir: &Path) -> PathBuf {
    dir.with_extension("skipped")
}

/// The number that is kept for the table in `dir`; `None` without a file.
///
/// # Errors
/// Errors of reading; [`InvalidData`](io::ErrorKind::InvalidData) if it is no number.
pub(super) fn read(dir: &Path) -> io::Result<Option<u32>> {
    let path = path_of(dir);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim_end().parse().map(Some).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} is no number: remove it", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the number durable.
///
/// # Errors
/// Errors of writing and syncing.
pub(super) fn write(dir: &Path, skip: u32) -> io::Result<()> {
    let (path, new) = (path_of(dir), dir.with_extension("skipped.new"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = posthaste_fsops::open(&new, flags, Mode::RUSR | Mode::WUSR)?;
    let text = format!("{skip}\n");
    if posthaste_fsops::write(&file, text.as_bytes())? < text.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    posthaste_fsops::fsync(&file)?;
    posthaste_fsops::rename(&new, &path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(posthaste_fsops::fsync(File::open(parent.unwrap_or(Path::new(".")))?)?)
}
