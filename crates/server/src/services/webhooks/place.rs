//! Position of a webhook in the event log: a small file with a checksum, replaced atomically; the previous one is kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_events::Cursor;
use posthaste_fsops::{MarkedFile, checked, is_of_disk, look_for_marked, mark_made, with_checksum};
use posthaste_spool::Lsn;
use rustix::fs::{AtFlags, CWD, Mode};
use serde::{Deserialize, Serialize};

/// A position in the log, and the number of the line before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    /// The number of the file.
    pub file: u64,
    /// Bytes of lines before it.
    pub offset: u64,
    /// The spool position of the last line.
    #[serde(default)]
    pub lsn: Lsn,
    /// Number of the line at that place, from 1; 0 if there was none.
    #[serde(default)]
    pub index: u64,
}

impl Place {
    pub fn cursor(self) -> Cursor {
        Cursor { file: self.file, offset: self.offset }
    }

    /// Reads the position; `None` if there was never one. If the file is lost or damaged, the previous one is used, and
    /// later posts are repeated.
    ///
    /// # Errors
    /// Both are damaged, or the file cannot be read now. The text names the file and the remedy.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        let error = match read(path) {
            Ok(None) if matches!(look_for_marked(path)?, MarkedFile::Lost { .. }) => {
                io::Error::new(io::ErrorKind::NotFound, "the file is missing")
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData || is_of_disk(&error) => error,
            read => return read,
        };
        let before = before(path);
        let file = path.display().to_string();
        if let Ok(Some(place)) = read(&before) {
            posthaste_fsops::rename(&before, path)?;
            let error = error.to_string();
            tracing::warn!(
                file,
                error,
                "the position of a webhook is lost: using the previous one, so later events are posted again"
            );
            return Ok(Some(place));
        }
        let why = format!(
            "{file}: {error}; put the file back, or remove it and {file}.made so that the webhook receives the \
             events from then on"
        );
        Err(io::Error::new(error.kind(), why))
    }

    /// Saves the position durably, and keeps the previous file.
    pub fn save(self, path: &Path) -> io::Result<()> {
        let before = before(path);
        let _ = posthaste_fsops::unlink(&before);
        // There is none the first time, and on some file systems never.
        let _ = posthaste_fsops::linkat(CWD, path, CWD, &before, AtFlags::empty());
        let text = with_checksum(serde_json::to_string(&self)? + "\n");
        // As the files of the log.
        posthaste_fsops::replace_file(path, Mode::from_raw_mode(0o640), text.as_bytes())?;
        mark_made(path)
    }
}

fn read(path: &Path) -> io::Result<Option<Place>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
    match fs::read(path) {
        Ok(bytes) => checked(&bytes).and_then(|text| serde_json::from_str(text).ok()).map(Some).ok_or_else(damaged),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file of the previously saved position.
fn before(path: &Path) -> PathBuf {
    path.with_added_extension("before")
}

/// The file of a webhook.
pub(super) fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("webhook-{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_damaged_anywhere_is_the_one_before_or_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path(), "crm");
        assert_eq!(Place::load(&path).unwrap(), None);
        let place = |offset| Place { file: 7, offset, lsn: Lsn::new(offset), index: 1 };
        place(100).save(&path).unwrap();
        assert!(!before(&path).exists());
        place(200).save(&path).unwrap();
        let [whole, earlier] = [&path, &before(&path)].map(|path| fs::read(path).unwrap());
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Some(bytes)
        });
        let cut = (0..whole.len()).map(|len| Some(whole[..len].to_vec()));
        for damaged in flipped.chain(cut).chain([None]) {
            let spoil = || match &damaged {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            };
            spoil();
            fs::write(before(&path), &earlier).unwrap();
            assert_eq!(Place::load(&path).unwrap(), Some(place(100)), "{damaged:?}");
            assert!(fs::read(&path).unwrap() == earlier && !before(&path).exists(), "it has taken the place");
            spoil();
            for other in [None, Some(&whole[1..])] {
                other.iter().for_each(|bytes| fs::write(before(&path), bytes).unwrap());
                let why = Place::load(&path).unwrap_err().to_string();
                assert!(why.contains("webhook-crm.json.made"), "{damaged:?}: {why}");
            }
            fs::write(&path, &whole).unwrap();
            assert_eq!(Place::load(&path).unwrap(), Some(place(200)), "whatever the one before is");
        }
        // The remedy that is told begins anew, also beside a damaged one before.
        fs::write(before(&path), "x").unwrap();
        [path.clone(), path.with_added_extension("made")].iter().for_each(|path| fs::remove_file(path).unwrap());
        assert_eq!(Place::load(&path).unwrap(), None);
        place(300).save(&path).unwrap();
        assert!(!before(&path).exists());
    }

    #[test]
    fn a_place_that_cannot_be_saved_leaves_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path(), "crm");
        let place = |offset| Place { file: 1, offset, ..Place::default() };
        place(1).save(&path).unwrap();
        fs::create_dir(posthaste_fsops::unfinished(&path)).unwrap();
        (2..4).for_each(|offset| assert!(place(offset).save(&path).is_err()));
        assert_eq!(Place::load(&path).unwrap(), Some(place(1)));
        fs::remove_dir(posthaste_fsops::unfinished(&path)).unwrap();
        place(4).save(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(Place::load(&path).unwrap(), Some(place(1)));
    }
}
