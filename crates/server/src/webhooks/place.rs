//! How far a webhook has been told: a small file, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_events::Cursor;
use posthaste_fsops::{MarkedFile, look_for_marked, mark_made};
use posthaste_spool::Lsn;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

/// A place in the log, and the number of the last line in front of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// The number of the file.
    pub file: u64,
    /// Bytes of lines in front of it.
    pub offset: u64,
    /// The place in the spool of the last line.
    #[serde(default)]
    pub lsn: Lsn,
    /// Its number among the lines of that place, from 1; 0 if there was none.
    #[serde(default)]
    pub index: u64,
}

impl Place {
    pub fn cursor(self) -> Cursor {
        Cursor { file: self.file, offset: self.offset }
    }

    /// Reads it; `None` if there was never one.
    ///
    /// # Errors
    /// It is damaged or lost, or cannot be read: the text names the file and the remedy.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        if let MarkedFile::Lost { mark } = look_for_marked(path)? {
            let (path, mark) = (path.display(), mark.display());
            let why = format!(
                "{path}: the file is missing, and {mark} says that there was one; put the file back, or remove {mark} \
                 so that the webhook is told of what comes from then on"
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let path = path.display();
                let why = format!(
                    "{path}: {error}; put the file back, or remove it and {path}.made so that the webhook is told of \
                     what comes from then on"
                );
                io::Error::new(io::ErrorKind::InvalidData, why)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes it durable.
    pub fn save(self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(&self)? + "\n";
        // As the files of the log.
        posthaste_fsops::replace_file(path, Mode::from_raw_mode(0o640), text.as_bytes())?;
        mark_made(path)
    }
}

/// The file of a webhook.
pub(super) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("webhook-{name}.json"))
}
