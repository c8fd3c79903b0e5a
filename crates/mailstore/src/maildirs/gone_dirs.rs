//! Directories of expunged files, one for each file system with mail, swept regularly.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use posthaste_maildir::{GoneDir, MailRoot, MailboxPath, mounts_below};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::locks::lock;

/// Time that the file of an expunged message stays readable: longer than an idle session may live.
const KEEP_TIME: Duration = Duration::from_secs(35 * 60);
const SWEEP_EVERY: Duration = Duration::from_secs(5 * 60);

/// The directories, with those used in this opening.
#[derive(Debug)]
pub(super) struct GoneDirs {
    root: Arc<MailRoot>,
    root_path: PathBuf,
    used: Mutex<Vec<Arc<GoneDir>>>,
}

impl GoneDirs {
    pub fn new(root: Arc<MailRoot>, root_path: &Path) -> Self {
        Self { root, root_path: root_path.to_owned(), used: Mutex::default() }
    }

    /// The directory for expunged files of a mailbox. `None`, and logged, if it cannot be made. Blocks.
    pub fn get(&self, path: &MailboxPath) -> Option<Arc<GoneDir>> {
        let dir = match self.root.gone_dir(path) {
            Ok(dir) => Arc::new(dir),
            Err(error) => {
                let (mailbox, error) = (path.as_str(), error.to_string());
                tracing::warn!(mailbox, error, "no directory for files of expunged messages: they are removed at once");
                return None;
            }
        };
        let mut known = lock(&self.used);
        if let Some(found) = known.iter().find(|found| found.is(&dir)) {
            return Some(Arc::clone(found));
        }
        known.push(Arc::clone(&dir));
        Some(dir)
    }

    /// Removes files that are older than [`KEEP_TIME`]. Blocks.
    pub fn sweep(&self, now: SystemTime) {
        for dir in self.all() {
            if let Err(error) = dir.sweep(now, KEEP_TIME) {
                tracing::warn!(error = error.to_string(), "files of expunged messages cannot be removed; retrying");
            }
        }
    }

    /// Directories in use, and those of earlier openings on mounted file systems.
    fn all(&self) -> Vec<Arc<GoneDir>> {
        let mut all = lock(&self.used).clone();
        let mounts = mounts_below(&self.root_path).unwrap_or_default();
        for point in mounts.iter().map(String::as_str).chain([""]) {
            // One that cannot be opened now is tried again.
            if let Ok(Some(dir)) = self.root.existing_gone_dir(point)
                && !all.iter().any(|known| known.is(&dir))
            {
                all.push(Arc::new(dir));
            }
        }
        all
    }
}

/// The name of a file that has left its mailbox.
pub(super) fn gone_name(mailbox: u32, uid: u32) -> String {
    format!("{mailbox}.{uid}")
}

/// Sweeps until the store has ended.
pub(super) async fn sweep_at_times(dirs: Weak<GoneDirs>) {
    let mut times = interval(SWEEP_EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let Some(dirs) = dirs.upgrade() else { return };
        if spawn_blocking(move || dirs.sweep(SystemTime::now())).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use posthaste_fsops::{Machine, Tree};

    use super::*;

    #[test]
    fn files_on_other_mounts_are_removed_after_a_restart() {
        let machine = Machine::boot(&Tree::with_mounts(&["mail/big"]), true, false).unwrap();
        let mail = machine.path().join("mail");
        let gone = [mail.join(".posthaste-gone"), mail.join("big/.posthaste-gone")];
        for dir in &gone {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("1.1"), "x").unwrap();
        }
        let dirs = GoneDirs::new(Arc::new(MailRoot::open(&mail).unwrap()), &mail);
        let count = || gone.iter().map(|dir| fs::read_dir(dir).unwrap().count()).sum::<usize>();
        dirs.sweep(SystemTime::now());
        assert_eq!(count(), 2);
        dirs.sweep(SystemTime::now() + KEEP_TIME + Duration::from_secs(2));
        assert_eq!(count(), 0);
    }
}
