//! Removes unfinished files in `tmp/` that a crash of this or another program has left, once they are too old to be in
//! use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use posthaste_maildir::tree::{TreeError, TreeOptions, walk};
use posthaste_maildir::{MailRoot, MailboxPath, TMP_AGE_MAX};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::lifecycle::{Ended, Ending, OnFailure, Service};

/// Restores copies that a kill left in `tmp/` of a mailbox. They are acknowledged mail.
pub(crate) type PlaceCopies = dyn Fn(&MailboxPath) -> Result<(), String> + Send;

/// Scans all mailboxes at the start and once a day, on its own thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Tidy {
    _until: Sender<()>,
    ended: Ended,
}

impl Tidy {
    /// Starts the thread. `None` if that fails: mail is still received, and the log has the error.
    pub fn begin(mail: PathBuf, place_copies: Box<PlaceCopies>) -> Option<Self> {
        let (until, is_over) = channel();
        let (alive, ended) = Ended::new();
        let work = move || {
            let _alive = alive;
            loop {
                match tidy(&mail, SystemTime::now(), &place_copies) {
                    Ok(Cleanup { removed: 0, troubles: 0 }) => {}
                    Ok(Cleanup { removed, troubles }) => {
                        tracing::info!(removed, troubles, "removed unfinished files from mailboxes");
                    }
                    Err(error) => {
                        tracing::warn!(error = error.to_string(), "cannot scan the mailboxes for unfinished files")
                    }
                }
                if is_over.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("tidy".to_owned()).spawn(work);
        let failed = |error: io::Error| tracing::error!(error = error.to_string(), WITHOUT);
        started.map(|_| Self { _until: until, ended }).map_err(failed).ok()
    }
}

impl Service for Tidy {
    fn name(&self) -> &'static str {
        "tidy"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn(WITHOUT)
    }

    /// Not waited for: it may be in a hanging mailbox, and its work can be left unfinished.
    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ended.poll(cx)
    }
}

const WITHOUT: &str = "unfinished files in mailboxes are not removed";

/// Counts of a cleanup.
#[derive(Debug, PartialEq, Eq)]
struct Cleanup {
    removed: usize,
    /// Mailboxes that could not be read.
    troubles: usize,
}

/// Removes old files from the `tmp/` of each mailbox below `mail`: unchanged for 36 hours, which is Maildir's own rule,
/// and no copies.
fn tidy(mail: &Path, now: SystemTime, place_copies: &PlaceCopies) -> Result<Cleanup, TidyError> {
    // Found by name and opened from the root, which follows no link out of it.
    let root = MailRoot::open(mail)?;
    let tree = walk(mail, &TreeOptions { into_noupdate: true })?;
    let mut done = Cleanup { removed: 0, troubles: tree.troubles.len() };
    for folder in &tree.folders {
        let Ok(path) = MailboxPath::parse(&folder.path) else { continue };
        let cleaned = root.existing_mailbox(&path).and_then(|maildir| {
            if !maildir.has_old_tmp(now, TMP_AGE_MAX)? {
                return Ok(0);
            }
            place_copies(&path).map_err(io::Error::other)?;
            maildir.cleanup_tmp(now, TMP_AGE_MAX)
        });
        match cleaned {
            Ok(removed) => done.removed += removed,
            // Taken away since, no whole Maildir, or behind a link.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            Err(_) => done.troubles += 1,
        }
    }
    Ok(done)
}

#[derive(Debug, thiserror::Error)]
enum TidyError {
    #[error(transparent)]
    Root(#[from] io::Error),
    #[error(transparent)]
    Tree(#[from] TreeError),
}

const INTERVAL: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmp_files_untouched_for_36_hours_are_removed_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mailbox = dir.path().join("example.org/ann/Maildir");
        for sub in ["tmp", "new", "cur"] {
            std::fs::create_dir_all(mailbox.join(sub)).unwrap();
            std::fs::write(mailbox.join(sub).join("1.a.host"), "text").unwrap();
        }
        let elsewhere = tempfile::tempdir().unwrap();
        for sub in ["tmp", "new", "cur"] {
            std::fs::create_dir_all(elsewhere.path().join(sub)).unwrap();
            std::fs::write(elsewhere.path().join(sub).join("1.a.host"), "text").unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("example.org/link")).unwrap();
        let after = |hours: u64| SystemTime::now() + Duration::from_secs(hours * 3600);
        let place = |path: &MailboxPath| match path.as_str() {
            "example.org/ann/Maildir" => Ok(()),
            path => Err(path.to_owned()),
        };
        assert_eq!(tidy(dir.path(), after(35), &place).unwrap(), Cleanup { removed: 0, troubles: 0 });
        assert!(mailbox.join("tmp/1.a.host").exists());
        let cannot = |_: &MailboxPath| Err("the table cannot be read".to_owned());
        assert_eq!(tidy(dir.path(), after(37), &cannot).unwrap(), Cleanup { removed: 0, troubles: 1 });
        assert!(mailbox.join("tmp/1.a.host").exists(), "it may be a copy");
        assert_eq!(tidy(dir.path(), after(37), &place).unwrap().removed, 1);
        assert!(!mailbox.join("tmp/1.a.host").exists());
        assert!(mailbox.join("new/1.a.host").exists() && mailbox.join("cur/1.a.host").exists());
        assert!(elsewhere.path().join("tmp/1.a.host").exists(), "no link is followed");
    }
}
