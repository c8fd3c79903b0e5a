//! CREATE, DELETE and RENAME: names in the ledger, and directories of a Maildir.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_maildir::{FolderName, MailboxPath};

use super::account::{MAILBOXES_MAX, MaildirAccount};
use super::answers::refusal;
use super::copies::copy;
use super::core::MailboxCore;
use super::file_work::FileWork;
use super::known_mailboxes::PendingFolder;
use super::locks::lock;
use super::names::folder_of;
use super::opening::load;
use super::pending::{finish_folders, folder_is_done, move_folder};
use super::takeover::{Begin, new_validity};
use super::told::Oddities;
use crate::entry::{MailEntry, MailboxFields};
use crate::error::MailstoreError;
use crate::name::{LEVELS_MAX, MailboxName, SpecialUse};
use crate::row::{MailboxId, Uid};

/// Timeout of RENAME for delivery to make its files durable.
const DELIVERY_PATIENCE: Duration = Duration::from_secs(10);
const DELIVERY_PAUSE: Duration = Duration::from_millis(20);

/// The mailboxes of an account, while their names are locked. All calls block.
pub(super) struct FolderChanges<'a> {
    pub account: &'a MaildirAccount,
    found: BTreeMap<MailboxName, MailboxId>,
}

impl<'a> FolderChanges<'a> {
    /// `folders` is locked. Fails while an earlier RENAME is unfinished.
    pub fn new(account: &'a MaildirAccount) -> Result<Self, MailstoreError> {
        finish_folders(account);
        if lock(&account.mailboxes).pending.has_moving() {
            return Err(MailstoreError::Unavailable("an earlier RENAME is not finished".to_owned()));
        }
        Ok(Self { account, found: account.listed_now()? })
    }

    /// Names of the existing mailboxes.
    pub fn names(&self) -> impl Iterator<Item = &MailboxName> {
        self.found.keys()
    }

    /// The special use of an existing mailbox.
    pub fn special_use_of(&self, id: u32) -> Result<Option<SpecialUse>, MailstoreError> {
        Ok(self.account.special_uses(&self.found)?.get(&MailboxId(id)).copied())
    }

    /// Makes a mailbox, and missing ones above it. `begin` is called before the first entry of the wanted one: an error
    /// there leaves empty mailboxes.
    pub fn create(
        &mut self,
        wanted: &MailboxName,
        special_use: Option<SpecialUse>,
        begin: Begin<'_>,
    ) -> Result<MailboxId, MailstoreError> {
        if self.found.contains_key(wanted) {
            return Err(MailstoreError::Exists);
        }
        if self.found.len() + LEVELS_MAX > MAILBOXES_MAX {
            return Err(MailstoreError::Limit);
        }
        if special_use.is_some()
            && self.account.special_uses(&self.found)?.into_values().any(|of| Some(of) == special_use)
        {
            return Err(MailstoreError::UseTaken);
        }
        let above = std::iter::successors(wanted.parent(), MailboxName::parent);
        let mut missing: Vec<MailboxName> = above.filter(|name| !self.found.contains_key(name)).collect();
        missing.reverse();
        missing.push(wanted.clone());
        let folders = missing.iter().map(|name| {
            let folder = self.folder(name)?;
            Ok((name, self.free_path(&folder)?, folder))
        });
        // Before anything is made.
        let folders: Vec<_> = folders.collect::<Result<_, MailstoreError>>()?;
        // On a disk that may hang.
        for (_, path, folder) in &folders {
            self.make_directory(path, folder)?;
        }
        let (wanted_path, mut above) = match folders.split_last() {
            Some(((_, path, _), above)) => (path.clone(), above.iter()),
            None => return Err(MailstoreError::Exists),
        };
        above.try_for_each(|(name, path, _)| self.make(name, path.clone(), None, &|| Ok(())).map(drop))?;
        self.make(wanted, wanted_path, special_use, begin)
    }

    fn folder(&self, name: &MailboxName) -> Result<FolderName, MailstoreError> {
        // Folders were listed when this change began.
        let is_utf7 = lock(&self.account.mailboxes).is_utf7;
        folder_of(name, is_utf7).ok_or(MailstoreError::Cannot("This cannot be the name of a folder here"))
    }

    /// A free path for a new folder. A directory awaiting removal would take new mail along.
    fn free_path(&self, folder: &FolderName) -> Result<MailboxPath, MailstoreError> {
        let path = folder.path_in(&self.account.inbox);
        let path = path.map_err(|_| MailstoreError::Cannot("The name is too long"))?;
        if lock(&self.account.mailboxes).pending.hides(&path) {
            Err(MailstoreError::Unavailable("the directory of a deleted mailbox is still there".to_owned()))
        } else {
            Ok(path)
        }
    }

    fn make_directory(&self, path: &MailboxPath, folder: &FolderName) -> Result<(), MailstoreError> {
        let (root, inbox) = (&self.account.shared.root, &self.account.inbox);
        let made = root.mailbox(inbox).and_then(|_| root.folder(inbox, folder));
        let synced = made.and_then(|_| root.sync_path(path));
        synced.map_err(|error| failed(self.account, &error))
    }

    /// Makes a mailbox of an empty directory. A crash between the two leaves an empty mailbox.
    fn make(
        &mut self,
        name: &MailboxName,
        path: MailboxPath,
        special_use: Option<SpecialUse>,
        begin: Begin<'_>,
    ) -> Result<MailboxId, MailstoreError> {
        let account = self.account;
        let owner = account.owner.get().ok_or(MailstoreError::NoMailbox)?;
        let id = account.id_of(&mut lock(&account.mailboxes), owner, name.clone(), path);
        let core = Arc::clone(account.mailbox(id)?.core());
        account.shared.moved_paths.take(lock(&core.path).as_str());
        core.make(core.reader().ok().as_ref(), &mut Oddities::default(), special_use, begin)?;
        self.found.insert(name.clone(), id);
        Ok(id)
    }

    /// Removes a mailbox with its mail.
    pub fn delete(&self, core: &MailboxCore, work: &FileWork<()>) -> Result<(), MailstoreError> {
        if core.is_inbox() {
            return Err(MailstoreError::Cannot("INBOX cannot be deleted"));
        }
        let (account, id) = (self.account, core.id);
        let mut lsn = 0;
        {
            let _nothing_is_added = core.adding.blocking_write();
            let _one = lock(&core.changing);
            // The entry says which directory is to be removed. Without it the next opening would show a directory that stays.
            let _ = core.make(core.reader().ok().as_ref(), &mut Oddities::default(), None, &|| Ok(()));
            let is_made = account.shared.ledger.pin(id).map_err(|error| refusal(&error))?;
            work.begin()?;
            if is_made {
                lsn =
                    account.shared.ledger.append(&[MailEntry::MailboxGone { id }]).map_err(|error| refusal(&error))?;
            }
            core.is_spent.store(true, Ordering::Relaxed);
            core.is_deleted.store(true, Ordering::Relaxed);
            account.shared.moved_paths.leave(lock(&core.path).as_str());
            *lock(&core.state) = None;
            account.shared.ledger.unfollow(id);
        }
        {
            let mut known = lock(&account.mailboxes);
            known.ids.retain(|_, of| of.0 != id);
            known.by_id.remove(&MailboxId(id));
            known.pending.insert(id, PendingFolder::new(lsn, lock(&core.path).clone(), None));
        }
        core.looked.send_modify(|looked| looked.error = Some(MailstoreError::NoMailbox));
        // The directory follows.
        work.is_durable(());
        finish_folders(account);
        Ok(())
    }

    /// INBOX stays, and its mail moves to a new mailbox.
    pub fn empty_inbox(
        &mut self,
        inbox: &Arc<MailboxCore>,
        to: &MailboxName,
        work: &FileWork<()>,
    ) -> Result<(), MailstoreError> {
        let id = self.create(to, None, &|| work.step())?;
        let to = Arc::clone(self.account.mailbox(id)?.core());
        let now = {
            let _one = lock(&inbox.changing);
            load(inbox, inbox.reader().ok().as_ref(), &mut Oddities::default())?;
            inbox.now().ok_or(MailstoreError::NoMailbox)?
        };
        let uids: Vec<Uid> = now.messages.iter().filter_map(|message| Uid::new(message.uid)).collect();
        copy((inbox, &to), &uids, true, &work.of_part(())).map(drop)
    }

    /// The mailbox with this name and those below it.
    fn tree(&self, of: &MailboxName) -> Vec<(MailboxName, Arc<MailboxCore>)> {
        let names = self.found.iter().filter(|(name, _)| *name == of || is_below(name, of));
        let core = |id: &MailboxId| Some(Arc::clone(self.account.mailbox(*id).ok()?.core()));
        names.filter_map(|(name, id)| Some((name.clone(), core(id)?))).collect()
    }

    /// Renames a mailbox and those below it.
    pub fn rename(&mut self, core: &MailboxCore, to: &MailboxName, work: &FileWork<()>) -> Result<(), MailstoreError> {
        let from = lock(&core.name).clone();
        if self.found.contains_key(to) {
            return Err(MailstoreError::Exists);
        }
        if is_below(to, &from) {
            return Err(MailstoreError::Cannot("A mailbox cannot be moved below itself"));
        }
        let moves = self.moves(&from, to)?;
        if moves.iter().any(|step| self.found.contains_key(&step.name)) {
            return Err(MailstoreError::Exists);
        }
        if let Some(parent) = to.parent().filter(|parent| !self.found.contains_key(parent)) {
            self.create(&parent, None, &|| work.step())?;
        }
        let mut in_order: Vec<&Arc<MailboxCore>> = moves.iter().map(|step| &step.core).collect();
        in_order.sort_by_key(|core| core.id);
        let _nothing_is_added: Vec<_> = in_order.iter().map(|core| core.adding.blocking_write()).collect();
        let _held: Vec<_> = in_order.iter().map(|core| lock(&core.changing)).collect();
        for core in &in_order {
            wait_for_delivery(core)?;
            work.step()?;
        }
        self.carry_out(&moves, work)
    }

    /// A mailbox and those below it, with their new names.
    fn moves(&self, old: &MailboxName, new: &MailboxName) -> Result<Vec<Move>, MailstoreError> {
        let moves = self.tree(old).into_iter().map(|(before, core)| {
            let name = format!("{new}{}", &before.as_str()[old.as_str().len()..]);
            let name = MailboxName::parse(&name).map_err(|_| MailstoreError::Cannot("A name would be too long"))?;
            let to = self.free_path(&self.folder(&name)?)?;
            // Never while the account's mailboxes are being locked: a list takes these first.
            let from = lock(&core.path).clone();
            Ok(Move { core, before, name, from, to })
        });
        moves.collect()
    }

    /// The entry first: from then on the directories follow, if necessary at the next opening.
    fn carry_out(&self, moves: &[Move], work: &FileWork<()>) -> Result<(), MailstoreError> {
        let account = self.account;
        let renewed = self.renewed_validities(moves)?;
        work.begin()?;
        let lsn = self.append(moves.iter().map(|step| (&*step.core, &step.name, &step.to)), &renewed)?;
        for step in moves {
            if let Some(validity) = renewed.get(&step.core.id) {
                step.core.uid_validity.store(*validity, Ordering::Relaxed);
            }
        }
        {
            let mut known = lock(&account.mailboxes);
            for step in moves {
                step.rename((&step.before, &step.name), &mut known.ids);
                known.pending.insert(step.core.id, PendingFolder::new(lsn, step.from.clone(), Some(step.to.clone())));
            }
        }
        let paths = &account.shared.moved_paths;
        for step in moves {
            paths.leave(step.from.as_str());
            paths.take(step.to.as_str());
        }
        work.is_durable(());
        let Err((error, is_undone)) = move_all(account, moves) else {
            match account.shared.root.sync_dir(&account.inbox) {
                Ok(()) => moves.iter().for_each(|step| folder_is_done(account, step.core.id, lsn)),
                // The next opening finds out which names they have.
                Err(error) => {
                    failed(account, &error);
                    let mut known = lock(&account.mailboxes);
                    for step in moves {
                        known.pending.remove(step.core.id);
                        paths.is_done(step.from.as_str());
                    }
                }
            }
            return Ok(());
        };
        let refused = failed(account, &error);
        if !is_undone || !work.undo() {
            // The batch stands. The next change of names, or list, renames them.
            return Ok(());
        }
        let lsn = self.append(moves.iter().map(|step| (&*step.core, &step.before, &step.from)), &HashMap::new())?;
        {
            let mut known = lock(&account.mailboxes);
            moves.iter().for_each(|step| step.rename((&step.name, &step.before), &mut known.ids));
            moves.iter().for_each(|step| paths.take(step.from.as_str()));
        }
        moves.iter().for_each(|step| folder_is_done(account, step.core.id, lsn));
        Err(refused)
    }

    /// New UIDVALIDITYs by mailbox, if the last mailbox with the new name had the same or a higher one: a rename must
    /// raise the UIDVALIDITY of a name (RFC 9051 section 2.3.1.1). Dovecot gives the same to all mailboxes made in one
    /// second, and a client would confuse their messages.
    fn renewed_validities(&self, moves: &[Move]) -> Result<HashMap<u32, u32>, MailstoreError> {
        let (ledger, mut renewed) = (&self.account.shared.ledger, HashMap::new());
        let Some(owner) = self.account.owner.get() else { return Ok(renewed) };
        let (mut last, names) = ledger.names(owner.id).map_err(|error| refusal(&error))?;
        for step in moves {
            let head = ledger.head_without_tail(step.core.id).map_err(|error| refusal(&error))?;
            let before = names.get(step.name.as_str().as_bytes()).map(|row| row.last_validity);
            if head.is_some_and(|head| before >= Some(head.uid_validity)) {
                last = new_validity(ledger, last, 0);
                renewed.insert(step.core.id, last);
            }
        }
        Ok(renewed)
    }

    /// Appends names and directories of mailboxes, in one batch. `renewed`: new UIDVALIDITYs.
    fn append<'b>(
        &self,
        named: impl Iterator<Item = (&'b MailboxCore, &'b MailboxName, &'b MailboxPath)>,
        renewed: &HashMap<u32, u32>,
    ) -> Result<u64, MailstoreError> {
        let uses = self.account.special_uses(&self.found)?;
        let entries = named.filter_map(|(core, name, path)| self.entry(core, name, path, &uses).transpose());
        let mut entries: Vec<MailboxFields> = entries.collect::<Result<_, _>>()?;
        for fields in &mut entries {
            fields.uid_validity = renewed.get(&fields.id).copied().unwrap_or(fields.uid_validity);
        }
        let entries: Vec<MailEntry> = entries.into_iter().map(MailEntry::Mailbox).collect();
        self.account.shared.ledger.append(&entries).map_err(|error| refusal(&error))
    }

    /// Entry of a mailbox; `None` if it is not in the ledger yet.
    fn entry(
        &self,
        core: &MailboxCore,
        name: &MailboxName,
        path: &MailboxPath,
        uses: &BTreeMap<MailboxId, SpecialUse>,
    ) -> Result<Option<MailboxFields>, MailstoreError> {
        // It keeps its use under another name; without one it takes that of the new name, if that is free.
        let free = |wanted: &SpecialUse| !uses.values().any(|taken| taken == wanted);
        let implied = self.account.shared.usual_folders(&self.account.inbox).special_use(name);
        let special_use = uses.get(&MailboxId(core.id)).copied().or(implied.filter(free));
        let head = self.account.shared.ledger.head_without_tail(core.id).map_err(|error| refusal(&error))?;
        Ok(head.map(|head| MailboxFields {
            id: core.id,
            account: head.account,
            uid_validity: head.uid_validity,
            form: head.form,
            special_use: SpecialUse::number(special_use),
            name: Bytes::copy_from_slice(name.as_str().as_bytes()),
            directory: Bytes::copy_from_slice(path.as_str().as_bytes()),
        }))
    }
}

/// True for the name of a mailbox below another.
pub(super) fn is_below(name: &MailboxName, above: &MailboxName) -> bool {
    name.as_str().strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with(crate::name::SEPARATOR))
}

/// Waits until delivery has finished under the old path. `changing` is held.
pub(super) fn wait_for_delivery(core: &MailboxCore) -> Result<(), MailstoreError> {
    load(core, core.reader().ok().as_ref(), &mut Oddities::default())?;
    // Delivery syncs at times: that need not be waited for. One mount that fails says nothing of the others.
    let pending = |core: &MailboxCore| -> Result<bool, MailstoreError> {
        let guard = lock(&core.state);
        let state = guard.as_ref().ok_or(MailstoreError::NoMailbox)?;
        // Delivery makes files of expunged mail as well.
        let files = state.now.messages.iter().map(|message| &message.file).chain(state.leaving.values());
        Ok(files.filter_map(|file| file.body()).any(|(lsn, _)| core.is_pending(lsn)))
    };
    if pending(core)?
        && let Err(error) = core.shared.appender.settle()
    {
        let (mailbox, error) = (lock(&core.path).to_string(), error.to_string());
        tracing::warn!(mailbox, error, "RENAME waits for mail whose files cannot be made durable now");
    }
    let deadline = Instant::now() + DELIVERY_PATIENCE;
    loop {
        if !pending(core)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(MailstoreError::Unavailable("mail is being delivered to the mailbox".to_owned()));
        }
        sleep(DELIVERY_PAUSE);
    }
}

/// A mailbox that gets another name.
struct Move {
    core: Arc<MailboxCore>,
    before: MailboxName,
    name: MailboxName,
    from: MailboxPath,
    to: MailboxPath,
}

impl Move {
    fn rename(&self, (old, new): (&MailboxName, &MailboxName), ids: &mut HashMap<MailboxName, MailboxId>) {
        ids.remove(old);
        ids.insert(new.clone(), MailboxId(self.core.id));
        *lock(&self.core.name) = new.clone();
    }
}

/// Renames all directories or none. Look-ups of these paths wait meanwhile. Not synced.
///
/// # Errors
/// The error of `rename`, with true if all directories have their old names again; otherwise the next change finishes
/// the rename.
fn move_all(account: &MaildirAccount, moves: &[Move]) -> Result<(), (io::Error, bool)> {
    let mut in_order: Vec<&Move> = moves.iter().collect();
    in_order.sort_by_key(|step| step.core.id);
    let mut paths: Vec<(&Move, MutexGuard<'_, MailboxPath>)> =
        in_order.into_iter().map(|step| (step, lock(&step.core.path))).collect();
    for (at, step) in moves.iter().enumerate() {
        if let Err(error) = move_folder(account, &step.from, &step.to) {
            let undone = moves[..at].iter().rev().try_for_each(|done| move_folder(account, &done.to, &done.from));
            return Err((error, undone.is_ok()));
        }
    }
    paths.iter_mut().for_each(|(step, path)| **path = step.to.clone());
    Ok(())
}

fn failed(account: &MaildirAccount, error: &io::Error) -> MailstoreError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => MailstoreError::NoSpace,
        io::ErrorKind::PermissionDenied => MailstoreError::NoPermission,
        io::ErrorKind::AlreadyExists => MailstoreError::Exists,
        _ => {
            let (mailbox, error) = (account.inbox.as_str(), error.to_string());
            tracing::warn!(mailbox, error, "a folder cannot be changed");
            MailstoreError::Unavailable(error)
        }
    }
}
