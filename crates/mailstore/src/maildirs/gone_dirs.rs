//! Directories of files that have left their mailboxes, one for each file system with mail, swept from time to time.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use posthaste_maildir::{GoneDir, MailRoot, MailboxPath};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::mailbox::lock;

/// So long the file of an expunged message can be read: longer than a session without a command lives.
const KEEP_TIME: Duration = Duration::from_secs(35 * 60);
const SWEEP_EVERY: Duration = Duration::from_secs(5 * 60);

/// Directories that have been used in this opening.
#[derive(Debug, Default)]
pub(super) struct GoneDirs(Mutex<Vec<Arc<GoneDir>>>);

impl GoneDirs {
    pub fn of(dir: Option<GoneDir>) -> Self {
        Self(Mutex::new(dir.into_iter().map(Arc::new).collect()))
    }

    /// The directory for expunged files of a mailbox. `None`, and logged, if it cannot be made. Blocks.
    pub fn get(&self, root: &MailRoot, path: &MailboxPath) -> Option<Arc<GoneDir>> {
        let dir = match root.gone_dir(path) {
            Ok(dir) => Arc::new(dir),
            Err(error) => {
                let (mailbox, error) = (path.as_str(), error.to_string());
                tracing::warn!(mailbox, error, "no directory for files of expunged messages: they are removed at once");
                return None;
            }
        };
        let mut known = lock(&self.0);
        if let Some(found) = known.iter().find(|found| found.is(&dir)) {
            return Some(Arc::clone(found));
        }
        known.push(Arc::clone(&dir));
        Some(dir)
    }

    /// Removes files whose time is over. Blocks.
    pub fn sweep(&self) {
        let known = lock(&self.0).clone();
        for dir in known {
            if let Err(error) = dir.sweep(SystemTime::now(), KEEP_TIME) {
                tracing::warn!(error = error.to_string(), "files of expunged messages cannot be removed; tried again");
            }
        }
    }
}

/// Sweeps until the store has ended.
pub(super) async fn sweep_at_times(dirs: Weak<GoneDirs>) {
    let mut times = interval(SWEEP_EVERY);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let Some(dirs) = dirs.upgrade() else { return };
        if spawn_blocking(move || dirs.sweep()).await.is_err() {
            return;
        }
    }
}
