//! The mailboxes of an account as known in memory, also those whose directories are to follow, or are missing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_maildir::MailboxPath;

use super::mailbox::MaildirMailbox;
use crate::ledger::PendingDirectory;
use crate::name::MailboxName;
use crate::row::MailboxId;

/// Interval between attempts to remove a directory.
const TRY_EVERY: Duration = Duration::from_secs(60);
const DAY_SECS: u64 = 86_400;

/// All mailboxes of the ledger, and others seen since. A removed folder that reappears within a week continues its
/// UIDs.
#[derive(Default)]
pub(super) struct KnownMailboxes {
    pub ids: HashMap<MailboxName, MailboxId>,
    pub by_id: HashMap<MailboxId, Arc<MaildirMailbox>>,
    pub pending: PendingFolders,
    pub missing: MissingFolders,
    pub has_told_left_out: bool,
    /// True if folder names are in modified UTF-7, as of the last list.
    pub is_utf7: bool,
}

/// A pending rename or removal of a directory.
#[derive(Debug, Clone)]
pub(super) struct PendingFolder {
    /// LSN of the batch with the change.
    pub lsn: u64,
    pub from: MailboxPath,
    /// New path; `None`: remove it.
    pub to: Option<MailboxPath>,
    /// True once delivery makes no more files in the directory.
    pub is_forgotten: bool,
}

/// Pending changes of an account, by mailbox.
#[derive(Debug, Default)]
pub(super) struct PendingFolders {
    pub by_id: BTreeMap<u32, PendingFolder>,
    /// Time of the last attempt.
    pub tried: Option<Instant>,
    /// Counts updates: a listing begun before an update may show names that are no longer hidden.
    pub changes: u64,
}

impl PendingFolder {
    pub fn new(lsn: u64, from: MailboxPath, to: Option<MailboxPath>) -> Self {
        Self { lsn, from, to, is_forgotten: false }
    }

    /// `None` if the directory belongs to another account.
    fn of(stored: &PendingDirectory, inbox: &MailboxPath) -> Option<Self> {
        let path = |path: &[u8]| MailboxPath::parse(std::str::from_utf8(path).ok()?).ok();
        let from = path(&stored.from)?;
        let is_own = from.as_str().strip_prefix(inbox.as_str()).is_some_and(|rest| rest.starts_with("/."));
        let to = stored.to.as_ref().map(|to| path(to));
        (is_own && to != Some(None)).then(|| Self::new(stored.lsn, from, to.flatten()))
    }
}

impl PendingFolders {
    pub fn load(&mut self, stored: &[PendingDirectory], inbox: &MailboxPath) {
        self.by_id.extend(stored.iter().filter_map(|row| Some((row.mailbox, PendingFolder::of(row, inbox)?))));
    }

    pub fn insert(&mut self, mailbox: u32, folder: PendingFolder) {
        self.by_id.insert(mailbox, folder);
        (self.tried, self.changes) = (None, self.changes + 1);
    }

    /// Removes a finished change, and returns the path that was left.
    pub fn remove(&mut self, mailbox: u32) -> Option<MailboxPath> {
        self.changes += 1;
        self.by_id.remove(&mailbox).map(|folder| folder.from)
    }

    /// True if a directory is due for a retry.
    pub fn is_due(&self) -> bool {
        !self.by_id.is_empty() && self.tried.is_none_or(|tried| tried.elapsed() >= TRY_EVERY)
    }

    /// True while a mailbox's directory waits to be renamed or removed.
    pub fn has(&self, mailbox: MailboxId) -> bool {
        self.by_id.contains_key(&mailbox.0)
    }

    /// True for a path whose directory is being removed, or does not exist yet.
    pub fn hides(&self, path: &MailboxPath) -> bool {
        self.by_id.values().any(|folder| folder.from == *path || folder.to.as_ref() == Some(path))
    }

    /// True while a mailbox is not at its path in the ledger.
    pub fn has_moving(&self) -> bool {
        self.by_id.values().any(|folder| folder.to.is_some())
    }
}

/// Missing folders; `None` until they are read from the ledger.
#[derive(Debug, Default)]
pub(super) struct MissingFolders(pub Option<HashMap<MailboxId, MissingFolder>>);

/// Days are counted while the server runs: a clock that was set forward makes no folder older. A restart begins the day
/// again.
#[derive(Debug, Clone, Copy)]
pub(super) struct MissingFolder {
    /// Number of the day, from 1.
    pub day: u16,
    pub begun: Instant,
}

impl MissingFolder {
    /// Counts days that are over. True if there are some.
    pub fn count(&mut self, now: Instant) -> bool {
        let over = now.saturating_duration_since(self.begun).as_secs() / DAY_SECS;
        self.begun += Duration::from_secs(over * DAY_SECS);
        self.day = self.day.saturating_add(u16::try_from(over).unwrap_or(u16::MAX));
        over > 0
    }
}
