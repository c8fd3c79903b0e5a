//! Paths that folders have left, or are leaving, by DELETE and RENAME. Mail sorted into such a path before must not
//! create the directory again: a later folder of that name would get the mail (decision 42).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::locks::lock;

/// Longer than a transaction takes from RCPT to the end of its message.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
/// Paths whose directories are gone. Others are few: the table has a row for each.
const PATHS_MAX: usize = 10_000;

/// Left paths, with their state.
#[derive(Debug, Default)]
pub(super) struct MovedPaths(Mutex<HashMap<String, LeftPath>>);

#[derive(Debug, Clone, Copy)]
enum LeftPath {
    /// The directory may still exist: mail in it would be moved or removed with it.
    Leaving,
    /// The directory was removed or renamed at this time.
    Left(Instant),
}

impl LeftPath {
    fn is_old(self) -> bool {
        matches!(self, Self::Left(at) if at.elapsed() >= REMEMBERED_FOR)
    }
}

impl MovedPaths {
    /// Paths of pending changes of directories.
    pub fn of(pending: impl Iterator<Item = String>) -> Self {
        Self(Mutex::new(pending.map(|path| (path, LeftPath::Leaving)).collect()))
    }

    /// Records that a folder leaves its path; the directory follows. The folder's `adding` is locked.
    pub fn leave(&self, path: &str) {
        lock(&self.0).insert(path.to_owned(), LeftPath::Leaving);
    }

    /// Records that the directory has left this path.
    pub fn is_done(&self, path: &str) {
        let mut paths = lock(&self.0);
        // A change that was undone has given the path back.
        let Some(path) = paths.get_mut(path) else { return };
        *path = LeftPath::Left(Instant::now());
        if paths.len() > PATHS_MAX {
            paths.retain(|_, path| !path.is_old());
        }
        // So many renames in an hour: the oldest matter least.
        if paths.len() > PATHS_MAX {
            let left = paths.iter().filter_map(|(path, left)| match left {
                LeftPath::Left(at) => Some((*at, path)),
                LeftPath::Leaving => None,
            });
            let oldest = left.min().map(|(_, path)| path.clone());
            if let Some(oldest) = oldest {
                paths.remove(&oldest);
            }
        }
    }

    /// Records that a new folder has this path.
    pub fn take(&self, path: &str) {
        lock(&self.0).remove(path);
    }

    /// True if a folder has left this path or is leaving it, and no other folder has taken it.
    pub fn has(&self, path: &str) -> bool {
        lock(&self.0).get(path).is_some_and(|path| !path.is_old())
    }

    /// True while the directory of this path waits to be renamed or removed.
    pub fn is_leaving(&self, path: &str) -> bool {
        matches!(lock(&self.0).get(path), Some(LeftPath::Leaving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_paths_and_all_pending_ones_are_remembered() {
        let paths = MovedPaths::of(["a".to_owned()].into_iter());
        for number in 0..PATHS_MAX + 5 {
            paths.leave(&number.to_string());
            paths.is_done(&number.to_string());
        }
        assert!(!paths.has("0") && paths.has(&(PATHS_MAX + 4).to_string()));
        assert!(paths.has("a") && paths.is_leaving("a"));
        assert_eq!(lock(&paths.0).len(), PATHS_MAX);
        paths.is_done("a");
        assert!(paths.has("a") && !paths.is_leaving("a"));
        paths.take("7000");
        paths.is_done("7000");
        assert!(!paths.has("7000"));
    }
}
