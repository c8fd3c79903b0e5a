//! Directories follow the ledger: renamed or removed after the batch is durable, with retries.
//!
//! Until then nobody uses the names. A later entry for a directory implies that earlier ones are done.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{FolderName, MailboxPath, Subdir};

use super::account::MaildirAccount;
use super::file::own_part;
use super::known_mailboxes::PendingFolder;
use super::locks::lock;
use super::names::mailbox_of_folder;
use super::state::MailboxState;
use crate::entry::{MailEntry, MailboxFields};
use crate::row::MailboxId;
use crate::table::FileNote;

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
