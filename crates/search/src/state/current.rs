//! The file `current`, which names the newest commit.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{FORMAT, StateError};

/// Names the newest commit.
pub(super) const CURRENT: &str = "current";
/// Default directory of the text index; a rebuild uses another.
const TEXT_DIR: &str = "text";

/// Content of the file `current`: the state file, and the position of the newest directory in it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Current {
    pub format: u32,
    pub file: String,
    pub offset: u64,
    pub length: u64,
    pub crc: u32,
    /// Name of the text index's directory, so that both halves change in one step.
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

/// Reads `current` whatever version wrote the index: this file's own format has never changed.
pub(super) fn read_current_of_any_format(dir: &Path) -> Result<Current, StateError> {
    let bytes = match fs::read(dir.join(CURRENT)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(StateError::Missing(dir.to_owned())),
        read => read.map_err(|error| StateError::Io { dir: dir.to_owned(), error })?,
    };
    let damaged = |what: String| StateError::Damaged { dir: dir.to_owned(), what };
    serde_json::from_slice(&bytes).map_err(|e| damaged(format!("{CURRENT}: {e}")))
}

/// Reads the JSON directory that `current` names; `None` if its checksum does not match.
pub(super) fn directory_bytes(file: &File, current: &Current) -> io::Result<Option<Vec<u8>>> {
    let end = current.offset.checked_add(current.length);
    if end.is_none_or(|end| end > file.metadata().map_or(0, |metadata| metadata.len())) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(current.length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, current.offset)?;
    Ok(Some(bytes).filter(|bytes| crc32c::crc32c(bytes) == current.crc))
}
