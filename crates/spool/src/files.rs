//! Small files that are written once, and their directories.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::Errno;

/// Mode of the spool's files: owner only.
pub(crate) const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates an empty file for reading and writing; truncates the file of an earlier run.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    Ok(posthaste_fsops::open(path, flags, OWNER)?.into())
}

/// Writes a complete file and makes its bytes durable; its name is durable after [`sync_dir`].
///
/// # Errors
/// After an error the file is removed if possible. The next try must use another name: bytes lost in a failed sync
/// would look valid in the page cache.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = create(path)?;
    let written = posthaste_fsops::write_all(&file, bytes).and_then(|()| Ok(posthaste_fsops::fsync(&file)?));
    if written.is_err() {
        let _ = posthaste_fsops::unlink(path);
    }
    written
}

/// Bytes of a file read from the disk, bypassing the page cache. Unreadable sectors are zeros; nothing is returned
/// beyond the end.
pub(crate) fn read_again(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let first = offset / SECTOR * SECTOR;
    // Without this call, the read shows the content of the page cache.
    let _ = fadvise(file, first, NonZeroU64::new(offset - first + len), Advice::DontNeed);
    let mut bytes = vec![0; len.min(file.metadata()?.len().saturating_sub(offset)) as usize];
    let is_bad_sector = |error: &io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
    match file.read_exact_at(&mut bytes, offset) {
        Err(error) if is_bad_sector(&error) => {}
        read => return read.map(|()| bytes),
    }
    let mut at = 0;
    while at < bytes.len() {
        // Up to the end of the sector.
        let end = bytes.len().min(at + (SECTOR - (offset + at as u64) % SECTOR) as usize);
        match file.read_exact_at(&mut bytes[at..end], offset + at as u64) {
            Err(error) if is_bad_sector(&error) => bytes[at..end].fill(0),
            read => read?,
        }
        at = end;
    }
    Ok(bytes)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(File::open(dir)?)?)
}

/// Removes a file, if it exists. Not durable by itself: a file that returns after a power cut is removed by the next
/// opening.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match posthaste_fsops::unlink(path) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// An unpredictable number, from the standard library's source, which tests can seed.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The names in a directory, in order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        // The spool has no file whose name is not UTF-8.
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Largest unit that a disk reads or fails to read.
const SECTOR: u64 = 4096;
