//! Directories follow the ledger: renamed or removed after the batch is durable, with retries.
//!
//! Until then nobody uses the names. A later entry for a directory implies that earlier ones are done.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{FolderName, MailboxPath, Subdir};

use super::account::MaildirAccount;
use super::file::own_part;
use super::locks::lock;
use super::names::mailbox_of_folder;
use super::state::MailboxState;
use crate::entry::{MailEntry, MailboxFields};
use crate::ledger::PendingDirectory;
use crate::row::MailboxId;
use crate::table::FileNote;

/// Interval between attempts to remove a directory.
const TRY_EVERY: Duration = Duration::from_secs(60);

/// A pending rename or removal of a directory.
#[derive(Debug, Clone)]
pub(super) struct PendingFolder {
    /// LSN of the batch with the change.
    pub lsn: u64,
    pub from: MailboxPath,
    /// New path; `None`: remove it.
    pub to: Option<MailboxPath>,
    /// True once delivery makes no more files in the directory.
    is_forgotten: bool,
}

/// Pending changes of an account, by mailbox.
#[derive(Debug, Default)]
pub(super) struct PendingFolders {
    by_id: BTreeMap<u32, PendingFolder>,
    tried: Option<Instant>,
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

/// Carries out pending renames and removals, and hides the failed ones. `folders` is locked. Blocks.
pub(super) fn finish_folders(account: &MaildirAccount) {
    let pending = {
        let mut known = lock(&account.mailboxes);
        known.pending.tried = Some(Instant::now());
        known.pending.by_id.clone()
    };
    for (id, folder) in pending {
        let done = match &folder.to {
            Some(to) => redo_move(account, id, &folder.from, to),
            None => remove(account, id, &folder),
        };
        match done {
            Ok(()) => folder_is_done(account, id, folder.lsn),
            Err(error) => {
                let (mailbox, error) = (folder.from.as_str(), error.to_string());
                tracing::warn!(mailbox, error, "cannot remove or rename the directory of a mailbox; retrying");
            }
        }
    }
}

/// Notes a finished change of a folder, in memory and in the ledger.
pub(super) fn folder_is_done(account: &MaildirAccount, id: u32, lsn: u64) {
    let left = lock(&account.mailboxes).pending.remove(id);
    left.into_iter().for_each(|path| account.shared.moved_paths.is_done(path.as_str()));
    account.shared.ledger.note(&[FileNote::DirectoryDone { mailbox: id, lsn }]);
}

/// Renames a directory without a sync.
///
/// # Errors
/// Errors of `rename`, such as `NotFound` and `AlreadyExists`.
pub(super) fn move_folder(account: &MaildirAccount, from: &MailboxPath, to: &MailboxPath) -> io::Result<()> {
    account.shared.root.rename_folder(&account.inbox, &folder_at(from)?, &folder_at(to)?)
}

fn redo_move(account: &MaildirAccount, id: u32, from: &MailboxPath, to: &MailboxPath) -> io::Result<()> {
    let mailbox = lock(&account.mailboxes).by_id.get(&MailboxId(id)).map(Arc::clone);
    let mut path = mailbox.as_ref().map(|mailbox| lock(&mailbox.core().path));
    match move_folder(account, from, to) {
        // Moved before.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Another program has made one of the two.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !is_moved(account, id, from, to)? {
                drop(path);
                return take_back(account, id, from, to);
            }
        }
        moved => moved?,
    }
    path.iter_mut().for_each(|path| **path = to.clone());
    account.shared.root.sync_dir(&account.inbox)
}

/// True unless the mailbox's files exist only under the old name. An empty mailbox continues under the new one.
fn is_moved(account: &MaildirAccount, id: u32, from: &MailboxPath, to: &MailboxPath) -> io::Result<bool> {
    let ledger = &account.shared.ledger;
    let Some(stored) = ledger.mailbox(id).map_err(io::Error::other)? else { return Ok(true) };
    let state = MailboxState::of(stored, ledger);
    let keys: HashSet<&str> = state.now.messages.iter().map(|message| key_of_name(&message.file.name)).collect();
    let has_some = |path: &MailboxPath| -> io::Result<bool> {
        let reader = match account.shared.root.reader(path) {
            // A directory that was being made, and is no Maildir yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            reader => reader?,
        };
        let mut has = false;
        for subdir in [Subdir::New, Subdir::Cur] {
            reader.for_each_name(subdir, |found| {
                // Of a file that was not listed before only the second is known.
                has |= keys.contains(key_of_name(found.name));
                has |= own_part(found.name).is_some_and(|own| keys.contains(own));
            })?;
        }
        Ok(has)
    };
    Ok(!has_some(from)? || has_some(to)?)
}

/// Restores the old name: the directory of the new one belongs to another program.
fn take_back(account: &MaildirAccount, id: u32, from: &MailboxPath, to: &MailboxPath) -> io::Result<()> {
    let ledger = &account.shared.ledger;
    let old = mailbox_of_folder(&folder_at(from)?).ok_or(io::ErrorKind::InvalidInput)?;
    let Some(head) = ledger.head(id).map_err(io::Error::other)? else { return Ok(()) };
    let entry = MailEntry::Mailbox(MailboxFields {
        id,
        account: head.account,
        uid_validity: head.uid_validity,
        form: head.form,
        special_use: head.special_use,
        name: Bytes::copy_from_slice(old.as_str().as_bytes()),
        directory: Bytes::copy_from_slice(from.as_str().as_bytes()),
    });
    let lsn = ledger.append(&[entry]).map_err(io::Error::other)?;
    ledger.note(&[FileNote::DirectoryDone { mailbox: id, lsn }]);
    account.shared.moved_paths.take(from.as_str());
    let (mailbox, taken) = (from.as_str(), to.as_str());
    tracing::error!(
        mailbox,
        taken,
        "another program has made a folder with the new name: this mailbox keeps its old name"
    );
    let mut known = lock(&account.mailboxes);
    known.ids.retain(|_, of| of.0 != id);
    known.ids.insert(old.clone(), MailboxId(id));
    if let Some(mailbox) = known.by_id.get(&MailboxId(id)) {
        *lock(&mailbox.core().name) = old;
        *lock(&mailbox.core().path) = from.clone();
    }
    Ok(())
}

fn remove(account: &MaildirAccount, id: u32, folder: &PendingFolder) -> io::Result<()> {
    if !folder.is_forgotten {
        // Mail that was added to it and has no file yet gets none.
        account.shared.appender.forget(&folder.from)?;
        if let Some(folder) = lock(&account.mailboxes).pending.by_id.get_mut(&id) {
            folder.is_forgotten = true;
        }
    }
    match account.shared.root.remove_folder(&account.inbox, &folder_at(&folder.from)?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    account.shared.root.sync_dir(&account.inbox)
}

fn folder_at(path: &MailboxPath) -> io::Result<FolderName> {
    let last = path.components().last().and_then(|last| last.strip_prefix('.'));
    let folder = last.and_then(|folder| FolderName::parse(folder).ok());
    folder.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}
