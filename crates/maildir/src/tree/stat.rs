//! Size and times of many files.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::facts::FileFacts;
use super::method::IoMethod;
use super::walk::open_dir;

/// Looks at files of one directory in the order of their inode numbers, which is their order on disk. On a cold cache
/// the inode table is then read once, in sequence, instead of in random order.
///
/// `files` is `(name, inode)` as [`Folder::for_each_name`](super::Folder::for_each_name) gives them. It is sorted by
/// inode, and the result has the same order. `None` for a file that is gone.
///
/// # Errors
/// Errors of opening the directory, and of `statx` except `ENOENT`.
pub fn stat_files(dir: &Path, files: &mut [(String, u64)]) -> io::Result<Vec<Option<FileFacts>>> {
    stat_files_with(IoMethod::Best, dir, files)
}

/// Like [`stat_files`], with a given method.
///
/// # Errors
/// As [`stat_files`].
pub fn stat_files_with(
    method: IoMethod,
    dir: &Path,
    files: &mut [(String, u64)],
) -> io::Result<Vec<Option<FileFacts>>> {
    files.sort_unstable_by_key(|(_, inode)| *inode);
    let dir = open_dir(CWD, dir)?;
    let sample = match method {
        IoMethod::Best => SAMPLE.min(files.len()),
        IoMethod::OneByOne => files.len(),
        IoMethod::Batched => 0,
    };
    let (sample, rest) = files.split_at(sample);
    #[cfg(feature = "io-uring")]
    let bytes_before = (method == IoMethod::Best && !rest.is_empty()).then(bytes_read);
    let mut facts = one_by_one(&dir, sample)?;
    #[cfg(feature = "io-uring")]
    if (method == IoMethod::Batched || bytes_before.is_some_and(|before| bytes_read() != before))
        && let Some(found) = super::uring::stat(&dir, rest)?
    {
        facts.extend(found);
        return Ok(facts);
    }
    facts.extend(one_by_one(&dir, rest)?);
    Ok(facts)
}

/// Files looked at by single calls, to detect cached inodes: then no disk read occurs. Single calls are faster on a
/// warm cache; io_uring is faster on a cold one, where many waits can overlap.
const SAMPLE: usize = 64;

/// Bytes read from disks for this thread. Unlike time, the count does not depend on the load of the processor.
#[cfg(feature = "io-uring")]
pub(super) fn bytes_read() -> u64 {
    // A system without this file, or where it is denied, is taken for one whose cache is warm.
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    let bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Looks up files by name in one directory. Leaves out missing files, and all but regular files and links to them. A
/// missing directory has no files.
///
/// # Errors
/// Errors of opening the directory and of `stat`, except `ENOENT`.
pub fn look_up<'a>(dir: &Path, names: impl Iterator<Item = &'a str>) -> io::Result<Vec<(String, FileFacts)>> {
    let dir = match open_dir(CWD, dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut found = Vec::new();
    for name in names.filter(|name| !name.starts_with('.')) {
        match rustix::fs::statat(&dir, name, AtFlags::empty()) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
                let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanos);
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                found.push((name.to_owned(), FileFacts { inode: stat.st_ino, size, mtime_ns }));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(found)
}

fn one_by_one(dir: &OwnedFd, files: &[(String, u64)]) -> io::Result<Vec<Option<FileFacts>>> {
    let mask = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME;
    let mut found = Vec::with_capacity(files.len());
    for (name, _) in files {
        found.push(match rustix::fs::statx(dir, name.as_str(), AtFlags::STATX_DONT_SYNC, mask) {
            Ok(stat) => Some(FileFacts {
                inode: stat.stx_ino,
                size: stat.stx_size,
                mtime_ns: stat.stx_mtime.tv_sec.saturating_mul(1_000_000_000) + i64::from(stat.stx_mtime.tv_nsec),
            }),
            Err(rustix::io::Errno::NOENT) => None,
            Err(e) => return Err(e.into()),
        });
    }
    Ok(found)
}
