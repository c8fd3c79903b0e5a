//! A mark `NAME.made` beside a file: without it, a lost file would look as if it had never been made.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Presence of a file that has a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedFile {
    /// The file exists.
    Present,
    /// The file was never made.
    NeverMade,
    /// The file was made once, and is missing.
    Lost {
        /// Writes the mark. Without it the file counts as never made.
        mark: PathBuf,
    },
}

fn mark_of(path: &Path) -> PathBuf {
    path.with_added_extension("made")
}

/// Looks for a file and its mark.
///
/// # Errors
/// The directory cannot be searched.
pub fn look_for_marked(path: &Path) -> io::Result<MarkedFile> {
    let mark = mark_of(path);
    Ok(match (path.try_exists()?, mark.try_exists()?) {
        (true, _) => MarkedFile::Present,
        (false, false) => MarkedFile::NeverMade,
        (false, true) => MarkedFile::Lost { mark },
    })
}

/// Marks a file that is already durable: a mark alone would mean that the file was lost. Durable on return; does
/// nothing if the mark exists.
///
/// # Errors
/// The mark cannot be made. A retry may succeed.
pub fn mark_made(path: &Path) -> io::Result<()> {
    let mark = mark_of(path);
    if mark.try_exists()? {
        return Ok(());
    }
    crate::open(&mark, OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC, Mode::from_raw_mode(0o666))?;
    let dir = mark.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| Ok(crate::fsync(dir)?));
    synced.inspect_err(|_| {
        // The next try would take it for durable.
        let _ = crate::unlink(&mark);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_marked_and_is_gone_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(look_for_marked(&path).unwrap(), MarkedFile::NeverMade);
        std::fs::write(&path, "x").unwrap();
        // A kill between the two leaves the file alone.
        assert_eq!(look_for_marked(&path).unwrap(), MarkedFile::Present);
        (0..2).for_each(|_| mark_made(&path).unwrap());
        assert_eq!(look_for_marked(&path).unwrap(), MarkedFile::Present);
        std::fs::remove_file(&path).unwrap();
        let mark = dir.path().join("a.json.made");
        assert_eq!(look_for_marked(&path).unwrap(), MarkedFile::Lost { mark: mark.clone() });
        std::fs::remove_file(mark).unwrap();
        assert_eq!(look_for_marked(&path).unwrap(), MarkedFile::NeverMade);
    }

    #[cfg(feature = "record")]
    #[test]
    fn a_mark_that_is_not_durable_is_made_again() {
        use crate::{Faults, Machine};
        let machine = Machine::new().unwrap();
        let path = machine.path().join("a.json");
        std::fs::write(&path, "x").unwrap();
        let (syncs, changes) = machine.counts();
        let full = Faults { fail_changes: Some((changes..u64::MAX, rustix::io::Errno::NOSPC)), ..Faults::default() };
        for faults in [full, Faults { fail_syncs: (syncs..syncs + 100).collect(), ..Faults::default() }] {
            machine.set_faults(faults);
            assert!(mark_made(&path).is_err());
            machine.set_faults(Faults::default());
            assert!(!mark_of(&path).exists());
        }
        mark_made(&path).unwrap();
        assert!(mark_of(&path).exists() && machine.counts().0 > syncs);
    }
}
