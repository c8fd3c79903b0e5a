//! Small files that are written once and whole, and the directories they lie in.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Nobody else reads what is kept here.
pub(crate) const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// Makes a directory (mode 0700) and those above it that are missing, each durable before what lies in it. One that is there is made durable
/// too: whoever made it may have been killed before the sync.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let was_there = dir.is_dir();
    if !was_there {
        make_dir(parent)?;
        match posthaste_fsops::mkdir(dir, Mode::RWXU) {
            Err(Errno::EXIST) if dir.is_dir() => {}
            made => made?,
        }
    }
    let this = File::open(dir)?;
    posthaste_fsops::fsync(&this)?;
    let parent = match File::open(parent) {
        // Where we may not look we have made nothing.
        Err(error) if was_there && error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    if this.metadata()?.dev() == parent.metadata()?.dev() {
        posthaste_fsops::fsync(&parent)?;
    }
    Ok(())
}

/// Creates an empty file for reading and writing; one of that name, left by an earlier life, loses its bytes.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    Ok(posthaste_fsops::open(path, flags, OWNER)?.into())
}

/// Writes a file whole and makes its bytes durable; its name is durable after [`sync_dir`].
///
/// # Errors
/// Nothing of the file is left then, as far as it can be removed. The next try takes another name: bytes that a failed sync has forgotten
/// would look well in the page cache.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = create(path)?;
    let written = posthaste_fsops::write_all(&file, bytes).and_then(|()| Ok(posthaste_fsops::fsync(&file)?));
    if written.is_err() {
        let _ = posthaste_fsops::unlink(path);
    }
    written
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(File::open(dir)?)?)
}

/// Removes a file, if it is there. Not durable by itself: a file that comes back after a power cut is removed by the next opening.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match posthaste_fsops::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// A number that nobody guesses and that is not drawn twice. By way of the standard library's own source, which a test can give its seed.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The names in a directory, in order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // A name that is no UTF-8 is none of ours.
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
