//! How far a webhook has been told: a small file, replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use posthaste_events::Cursor;
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
        let partial = path.with_extension("partial");
        // As the files of the log.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&partial)?;
        serde_json::to_writer(&mut file, &self)?;
        file.write_all(b"\n")?;
        posthaste_fsops::fsync(&file)?;
        fs::rename(&partial, path)?;
        path.parent().map_or(Ok(()), |dir| Ok(posthaste_fsops::fsync(File::open(dir)?)?))
    }
}

/// The file of a webhook.
pub(super) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("webhook-{name}.json"))
}
