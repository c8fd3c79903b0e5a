//! How far a webhook has been told: a small file, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_events::Cursor;
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
    pub lsn: u64,
    /// Its number among the lines of that place, from 1; 0 if there was none.
    #[serde(default)]
    pub index: u64,
}

impl Place {
    pub fn cursor(self) -> Cursor {
        Cursor { file: self.file, offset: self.offset }
    }

    /// Reads it; `None` if there is none yet.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(place) => Ok(Some(place)),
                Err(error) => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "{}: {error}; without this file the webhook is told of what comes from now on",
                        path.display()
                    ),
                )),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes it durable.
    pub fn save(self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(&self)? + "\n";
        // As the files of the log.
        Ok(posthaste_fsops::replace_file(path, Mode::from_raw_mode(0o640), text.as_bytes())?)
    }
}

/// The file of a webhook.
pub(super) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("webhook-{name}.json"))
}
