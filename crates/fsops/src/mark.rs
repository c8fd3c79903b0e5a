//! A mark beside a file says that there is one: `NAME.made`. Without it the loss of a file would look as if it had never been made.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Presence of a file that has a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkedFile {
    /// It is there.
    Present,
    /// It was never made.
    NeverMade,
    /// It was made once, and is gone.
    Lost {
        /// Says so. Without it the file counts as never made.
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

/// Marks a file that is made durably: after the file, since a mark alone says that the file was lost. Durable once this returns; does nothing if the mark is there.
///
/// # Errors
/// The mark cannot be made. It may be tried again.
pub fn mark_made(path: &Path) -> io::Result<()> {
    let mark = mark_of(path);
    if mark.try_exists()? {
        return Ok(());
    }
    File::create(&mark)?;
    let dir = mark.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(crate::fsync(File::open(dir)?)?)
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
}
