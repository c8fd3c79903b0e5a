//! Cleanup of `tmp/` after crashes: files whose writer is gone.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::AtFlags;

use crate::maildir::Maildir;
use crate::scan::for_each_file;

/// A file in `tmp/` that has not changed for this long has no writer any more (Maildir's own rule: 36 hours).
pub const TMP_AGE_MAX: Duration = Duration::from_secs(36 * 3600);

impl Maildir {
    /// True if [`cleanup_tmp`](Self::cleanup_tmp) would remove a file.
    ///
    /// # Errors
    /// Errors of `getdents` and `stat`.
    pub fn has_old_tmp(&self, now: SystemTime, age_max: Duration) -> io::Result<bool> {
        let mut names = Vec::new();
        for_each_file(self.tmp_dir(), |name| names.push(name.to_owned()))?;
        for name in names {
            match self.is_old(&name, now, age_max) {
                Ok(false) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                old => return old,
            }
        }
        Ok(false)
    }

    /// Removes files from `tmp/` whose last change, of bytes or inode, is more than `age_max` before `now`; returns
    /// their number. Use [`TMP_AGE_MAX`] unless you know all the writers.
    ///
    /// # Errors
    /// Errors of `getdents`, `stat` and `unlink`. A file that vanishes meanwhile is skipped.
    pub fn cleanup_tmp(&self, now: SystemTime, age_max: Duration) -> io::Result<usize> {
        let mut names = Vec::new();
        for_each_file(self.tmp_dir(), |name| names.push(name.to_owned()))?;
        let mut removed = 0;
        for name in names {
            match self.remove_if_old(&name, now, age_max) {
                Ok(was_old) => removed += usize::from(was_old),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(removed)
    }

    fn is_old(&self, name: &str, now: SystemTime, age_max: Duration) -> io::Result<bool> {
        let now_secs = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let stat = rustix::fs::statat(self.tmp_dir(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        let changed_secs = u64::try_from(stat.st_mtime.max(stat.st_ctime as i64)).unwrap_or(0);
        Ok(now_secs.saturating_sub(changed_secs) > age_max.as_secs())
    }

    fn remove_if_old(&self, name: &str, now: SystemTime, age_max: Duration) -> io::Result<bool> {
        let old = self.is_old(name, now, age_max)?;
        if old {
            posthaste_fsops::unlinkat(self.tmp_dir(), name, AtFlags::empty())?;
        }
        Ok(old)
    }
}
