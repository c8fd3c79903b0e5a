//! Atomic replacement of a file's content.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Why a file was not replaced.
#[derive(Debug)]
pub enum ReplaceError {
    /// The file keeps its old content.
    Io(io::Error),
    /// A sync failed: a power cut leaves the old content or the new one. Only a rewrite helps.
    Sync(io::Error),
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Io(error) | ReplaceError::Sync(error) => error,
        }
    }
}

/// Replaces or creates the file at `path` with this content and mode. Durable on return; a power cut before that leaves
/// the old content or the new one, and perhaps a file with `.new` appended.
///
/// # Errors
/// See [`ReplaceError`].
pub fn replace_file(path: &Path, mode: Mode, content: &[u8]) -> Result<(), ReplaceError> {
    let unfinished = unfinished(path);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = crate::open(&unfinished, flags, mode).map_err(|error| ReplaceError::Io(error.into()))?;
    let written = crate::write_all(&file, content).map_err(ReplaceError::Io);
    written.and_then(|()| put_in_place(&file, &unfinished, path)).inspect_err(|_| {
        // The next try makes another file: bytes that a failed sync has forgotten would look well in the page cache.
        let _ = crate::unlink(&unfinished);
    })
}

/// The temporary name of a replacement for the file at `path`.
pub fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes a written file durable, renames it and makes the name durable: `unfinished` and `path` are in one directory.
///
/// # Errors
/// See [`ReplaceError`].
pub fn put_in_place(file: impl AsFd, unfinished: &Path, path: &Path) -> Result<(), ReplaceError> {
    crate::fsync(file).map_err(|error| ReplaceError::Sync(error.into()))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = File::open(dir).map_err(ReplaceError::Io)?;
    crate::rename(unfinished, path).map_err(|error| ReplaceError::Io(error.into()))?;
    crate::fsync(dir).map_err(|error| ReplaceError::Sync(error.into()))
}

#[cfg(all(test, feature = "record"))]
mod tests {
    use super::*;
    use crate::{Choice, Cut, Faults, Machine};

    const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

    #[test]
    fn a_power_cut_leaves_the_old_content_or_the_new_one() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("file");
        replace_file(&path, MODE, b"old").unwrap();
        let begun = machine.position();
        replace_file(&path, MODE, b"longer than before").unwrap();
        let recording = machine.recording();
        let mut found = std::collections::BTreeSet::new();
        for position in begun..=recording.events.len() {
            for seed in 0..16 {
                let cut = Cut { position, choice: Choice::Seed(seed) };
                let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
                let content = std::fs::read_to_string(left.path().join("file")).unwrap();
                assert!(content == "old" || content == "longer than before", "{position}:s{seed}: {content:?}");
                assert!(position < recording.events.len() || content != "old", "s{seed}: it was durable");
                found.insert(content);
            }
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_full_disk_leaves_the_old_content_and_no_other_file() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("file");
        replace_file(&path, MODE, b"old").unwrap();
        let (_, changes) = machine.counts();
        // Both writes, after the file is made and before it is removed.
        let full = Some((changes + 2..changes + 4, rustix::io::Errno::NOSPC));
        machine.set_faults(Faults { fail_changes: full, ..Faults::default() });
        assert!(matches!(replace_file(&path, MODE, &[7; 1 << 20]), Err(ReplaceError::Io(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert!(!unfinished(&path).exists());
    }

    #[test]
    fn a_failed_sync_is_told_apart() {
        let machine = Machine::new().unwrap();
        let path = machine.path().join("file");
        // Of the file, and of its directory.
        for nth in [1, 2] {
            let (syncs, _) = machine.counts();
            machine.set_faults(Faults { fail_syncs: vec![syncs + nth], ..Faults::default() });
            assert!(matches!(replace_file(&path, MODE, b"x"), Err(ReplaceError::Sync(_))), "{nth}");
        }
    }
}
