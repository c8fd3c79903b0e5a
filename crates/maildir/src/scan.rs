//! Directory scans by name only: `getdents64`, no `stat`.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, RawDir};

use crate::maildir::{Maildir, Subdir};

/// Bytes of directory entries fetched at once: about 800 of this server's names.
const BUFFER_BYTES: usize = 64 * 1024;

impl Maildir {
    /// Calls `each` with the name of every message in `new/` or `cur/`, in the directory's own order.
    ///
    /// Skips names that begin with a dot or are not UTF-8, directories, links and other special files. A message that
    /// is renamed meanwhile may come twice or not at all (POSIX leaves that open).
    ///
    /// # Errors
    /// Errors of `open` and `getdents`.
    pub fn for_each_name(&self, dir: Subdir, each: impl FnMut(&str)) -> io::Result<()> {
        for_each_file(self.dir(dir), each)
    }

    /// The names of all messages in `new/` and `cur/`.
    ///
    /// # Errors
    /// Errors of `open` and `getdents`.
    pub fn scan(&self) -> io::Result<Vec<(Subdir, String)>> {
        let mut all = Vec::new();
        for dir in [Subdir::New, Subdir::Cur] {
            self.for_each_name(dir, |name| all.push((dir, name.to_owned())))?;
        }
        Ok(all)
    }
}

/// Calls `each` for the regular files of a directory. Opens a descriptor for itself, since the read position belongs to
/// the descriptor and other threads may be scanning too.
pub(crate) fn for_each_file(dir: impl AsFd, mut each: impl FnMut(&str)) -> io::Result<()> {
    for_each_entry(dir, |name, kind| {
        // Unknown: the file system does not tell without a stat. Then the name decides.
        if matches!(kind, FileType::RegularFile | FileType::Unknown) {
            each(name);
        }
    })
}

/// Calls `each` for every entry whose name is UTF-8. Of names that begin with a dot only directories (Maildir++
/// folders) are passed, without `.` and `..`.
pub(crate) fn for_each_entry(dir: impl AsFd, mut each: impl FnMut(&str, FileType)) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = posthaste_fsops::openat(dir, ".", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        let kind = entry.file_type();
        let is_folder = kind == FileType::Directory && !matches!(name, "." | "..");
        if !name.starts_with('.') || is_folder {
            each(name, kind);
        }
    }
    Ok(())
}
