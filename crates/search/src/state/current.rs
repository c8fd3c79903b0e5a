//! The file that names the newest commit.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::StateError;

/// Names the newest commit.
pub(super) const CURRENT: &str = "current";
/// Also raised when the same mail gives other texts than before, so that the next run builds an index again: 3 is with the MIME reader of `posthaste_message`.
pub(super) const FORMAT: u32 = 3;
/// Where the text index is, unless a rebuild put another in its place.
const TEXT_DIR: &str = "text";

/// The content of the file `current`: which state file, and where in it the newest directory is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Current {
    pub format: u32,
    pub file: String,
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
    /// Name of the text index's directory: both halves change in one step.
    #[serde(default = "first_text_dir")]
    pub text: String,
}

fn first_text_dir() -> String {
    TEXT_DIR.to_owned()
}

pub(super) fn read_current(dir: &Path) -> Result<Current, StateError> {
    let current = read_current_of_any_format(dir)?;
    match current.format {
        FORMAT => Ok(current),
        found => Err(StateError::Format { dir: dir.to_owned(), found }),
    }
}

/// The format is that of all else; this file has been the same in all.
pub(super) fn read_current_of_any_format(dir: &Path) -> Result<Current, StateError> {
    let bytes = match fs::read(dir.join(CURRENT)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StateError::Missing(dir.to_owned())),
        read => read.map_err(|error| StateError::Io { dir: dir.to_owned(), error })?,
    };
    let damaged = |what: String| StateError::Damaged { dir: dir.to_owned(), what };
    serde_json::from_slice(&bytes).map_err(|e| damaged(format!("{CURRENT}: {e}")))
}

/// The JSON directory that `current` names; `None` if it is not what was written.
pub(super) fn directory_bytes(file: &File, current: &Current) -> io::Result<Option<Vec<u8>>> {
    let end = current.offset.checked_add(current.length);
    if end.is_none_or(|end| end > file.metadata().map_or(0, |metadata| metadata.len())) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(current.length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, current.offset)?;
    Ok(Some(bytes).filter(|bytes| crc32c::crc32c(bytes) == current.crc))
}
