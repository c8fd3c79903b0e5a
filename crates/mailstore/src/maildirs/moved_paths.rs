//! Paths that folders have left by DELETE and RENAME. Mail that was sorted into one of them before must not make the
//! directory again: whoever makes a folder of that name later would get it (decision 42).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::mailbox::lock;

/// Longer than a transaction takes from RCPT to the end of its message.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
const PATHS_MAX: usize = 10_000;

/// The paths, with the time when each was left.
#[derive(Debug, Default)]
pub(super) struct MovedPaths(Mutex<HashMap<String, Instant>>);

impl MovedPaths {
    /// A folder has left its path. Its `adding` is locked.
    pub fn leave(&self, path: &str) {
        let (mut paths, now) = (lock(&self.0), Instant::now());
        if paths.len() >= PATHS_MAX {
            paths.retain(|_, left| now.duration_since(*left) < REMEMBERED_FOR);
        }
        // So many renames in an hour: the oldest matter least.
        if paths.len() >= PATHS_MAX
            && let Some(oldest) = paths.iter().min_by_key(|(_, left)| **left).map(|(path, _)| path.clone())
        {
            paths.remove(&oldest);
        }
        paths.insert(path.to_owned(), now);
    }

    /// A folder has this path now.
    pub fn take(&self, path: &str) {
        lock(&self.0).remove(path);
    }

    /// True if a folder has left this path, and none has it since.
    pub fn has(&self, path: &str) -> bool {
        lock(&self.0).get(path).is_some_and(|left| left.elapsed() < REMEMBERED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_paths_are_remembered() {
        let paths = MovedPaths::default();
        (0..PATHS_MAX + 5).for_each(|number| paths.leave(&number.to_string()));
        assert!(!paths.has("0") && paths.has(&(PATHS_MAX + 4).to_string()));
        assert_eq!(lock(&paths.0).len(), PATHS_MAX);
        paths.take("7000");
        assert!(!paths.has("7000"));
    }
}
