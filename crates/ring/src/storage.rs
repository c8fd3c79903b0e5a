//! The directory of segment files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use posthaste_fsops::FileLock;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::file::{OWNER, SegmentFile, Staging};

/// Segment files in a directory, locked for this ring.
pub(crate) struct Storage {
    dir: PathBuf,
    staging: Arc<Mutex<Staging>>,
    // Held for its lock: a second ring on the same directory must not start. `None`: nothing is changed.
    lock: Option<FileLock>,
}

/// Why a segment file could not be made or used. A failed sync concerns the whole device, so it has its own variant.
#[derive(Debug)]
pub(crate) enum MakeError {
    /// A sync failed.
    Sync(io::Error),
    /// Any other error.
    Other(io::Error),
}

impl MakeError {
    /// True if the disk was full: a later try may succeed, and no data of others are lost.
    pub fn is_no_room(&self) -> bool {
        let (MakeError::Sync(error) | MakeError::Other(error)) = self;
        matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
    }
}

impl From<io::Error> for MakeError {
    fn from(error: io::Error) -> Self {
        MakeError::Other(error)
    }
}

impl From<Errno> for MakeError {
    fn from(error: Errno) -> Self {
        MakeError::Other(error.into())
    }
}

impl Storage {
    /// Opens `dir`, creating it if needed, and locks it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another process has the directory; else those of the file system.
    pub fn open(dir: &Path) -> io::Result<Self> {
        posthaste_fsops::make_dir(dir)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = File::from(posthaste_fsops::open(dir.join(LOCK), flags, OWNER)?);
        let lock = FileLock::try_new(lock)?.ok_or(io::ErrorKind::WouldBlock)?;
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                posthaste_fsops::unlink(path)?;
            }
        }
        Ok(Storage { dir: dir.to_owned(), staging: Arc::default(), lock: Some(lock) })
    }

    /// Read-only access to `dir`, even while another process has it open.
    pub fn to_read(dir: &Path) -> Self {
        Storage { dir: dir.to_owned(), staging: Arc::default(), lock: None }
    }

    /// Sorted names of all segment files. Empty if the directory is missing and access is read-only.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.lock.is_none() => return Ok(names),
            entries => entries?,
        };
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string()
                && name.ends_with(SEGMENT)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Creates a segment file full of zeros. On return its bytes, size and name are durable. Calls `between_pieces`
    /// after each MiB, which waits while others use the device.
    pub fn create(
        &self,
        name: &str,
        len: u64,
        between_pieces: &mut dyn FnMut(),
    ) -> Result<Arc<SegmentFile>, MakeError> {
        // Asked first, so that a full disk is not filled to its last block by every append that is refused.
        let space = rustix::fs::statvfs(&self.dir)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < len {
            return Err(Errno::NOSPC.into());
        }
        // Under another name until it is full of durable zeros: a cut in the midst may leave anything in it, and what is called a
        // segment and has no readable header is damaged.
        let unfinished = self.dir.join(format!("{name}.{UNFINISHED}"));
        let made = self.fill(&unfinished, name, len, between_pieces);
        if made.is_err() {
            // A segment that could not be filled would only hold the space that is missing.
            let _ = posthaste_fsops::unlink(unfinished);
            let _ = posthaste_fsops::unlink(self.path(name));
        }
        made.map(Arc::new)
    }

    fn fill(
        &self,
        unfinished: &Path,
        name: &str,
        len: u64,
        between_pieces: &mut dyn FnMut(),
    ) -> Result<SegmentFile, MakeError> {
        // Opened before the file is filled: without a descriptor that work would be wasted.
        let dir = File::open(&self.dir)?;
        let segment = SegmentFile::open(unfinished, OFlags::CREATE | OFlags::TRUNC, self.staging.clone())?;
        segment.fill_with_zeros(len, between_pieces)?;
        segment.sync_all().map_err(MakeError::Sync)?;
        posthaste_fsops::rename(unfinished, self.path(name))?;
        sync(&dir).map_err(MakeError::Sync)?;
        Ok(segment)
    }

    /// Opens a segment file for reading and, if this has the lock, writing.
    pub fn segment(&self, name: &str) -> io::Result<Arc<SegmentFile>> {
        if self.lock.is_none() {
            return SegmentFile::open_to_read(&self.path(name)).map(Arc::new);
        }
        SegmentFile::open(&self.path(name), OFlags::empty(), self.staging.clone()).map(Arc::new)
    }

    /// Removes a segment file's name. Not synced.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(posthaste_fsops::unlink(self.path(name))?)
    }

    /// Gives a segment file a second name.
    pub fn link(&self, name: &str, to: &Path) -> io::Result<()> {
        Ok(posthaste_fsops::linkat(rustix::fs::CWD, self.path(name), rustix::fs::CWD, to, AtFlags::empty())?)
    }

    /// Saves the bytes of damaged records for examination, unless an earlier opening has saved them.
    pub fn set_aside(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match posthaste_fsops::open(self.path(name), how, OWNER) {
            Err(Errno::EXIST) => Ok(()),
            file => posthaste_fsops::write_all(file?, bytes),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Makes the names in a directory durable.
fn sync(dir: &File) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(dir)?)
}

/// The lock file: locked while the ring is open.
const LOCK: &str = "lock";
/// Suffix of segment files.
pub(crate) const SEGMENT: &str = ".seg";
/// Suffix of files with damaged records.
pub(crate) const SET_ASIDE: &str = ".damaged";
/// Suffix of a segment file under construction.
const UNFINISHED: &str = "new";

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Machine};

    use super::*;

    #[test]
    fn what_an_interrupted_start_made_is_synced_by_the_next() {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("ring");
        posthaste_fsops::mkdir(&dir, rustix::fs::Mode::RWXU).unwrap();
        posthaste_fsops::open(dir.join("segment"), OFlags::CREATE | OFlags::WRONLY, OWNER).unwrap();
        posthaste_fsops::make_dir(&dir).unwrap();
        let recording = machine.recording();
        let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Bits(0) });
        assert!(left.files().contains_key(Path::new("ring/segment")), "{:?}", left.files());
    }

    #[test]
    fn a_segment_whose_creation_was_cut_off_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = dir.path().join(format!("0000000000000000.seg.{UNFINISHED}"));
        // As long as a whole one, and full of what lay on the disk before.
        std::fs::write(&unfinished, [0xDB; 8192]).unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        assert!(!unfinished.exists());
        assert_eq!(storage.list().unwrap(), Vec::<String>::new());
        storage.create("0000000000000000.seg", 8192, &mut || ()).unwrap();
        assert_eq!(storage.list().unwrap(), ["0000000000000000.seg"]);
        assert!(!unfinished.exists());
    }

    #[test]
    fn the_first_copy_of_damaged_bytes_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        ["first", "later"].iter().for_each(|bytes| storage.set_aside("a.damaged", bytes.as_bytes()).unwrap());
        assert_eq!(std::fs::read(dir.path().join("a.damaged")).unwrap(), b"first");
    }
}
