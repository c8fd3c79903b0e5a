//! The number of times that UIDs were left out. Its file is beside the table's directory, so that a lost table does not take it along.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

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
    let text = format!("{skip}\n");
    Ok(posthaste_fsops::replace_file(&path_of(dir), Mode::RUSR | Mode::WUSR, text.as_bytes())?)
}
