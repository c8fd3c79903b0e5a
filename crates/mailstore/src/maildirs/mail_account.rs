//! An account as sessions use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use posthaste_maildir::MailboxPath;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::account::MaildirAccount;
use super::answers::{PATIENCE, ended, no_answer, refusal};
use super::append;
use super::core::MailboxCore;
use super::file_work::{FileWork, run, turn};
use super::folder_changes::FolderChanges;
use super::locks::lock;
use super::looking::look_once;
use super::pending::finish_folders;
use crate::error::{Asked, MailstoreError};
use crate::listing::{AccountListing, NamedMailbox, listed};
use crate::name::{MailboxName, SpecialUse};
use crate::opening_view::OpeningView;
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus, RebuiltMailbox};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{
    AppendRequest, ListOptions, MailAccount, MailboxListing, MailboxView, MessageWriter, QuotaUse, SelectMode,
};

impl MailAccount for MaildirAccount {
    fn list<'a>(
        &'a self,
        patterns: &'a [NamePattern],
        options: ListOptions,
    ) -> Asked<'a, Box<dyn MailboxListing + 'a>> {
        Box::pin(async move {
            let named = self.blocking(all_names).await?;
            Ok(Box::new(AccountListing::new(self, options, listed(&named, patterns))) as _)
        })
    }

    fn find<'a>(&'a self, name: &'a MailboxName) -> Asked<'a, Option<MailboxId>> {
        Box::pin(async move {
            let known = lock(&self.mailboxes).ids.get(name).copied();
            if let Some(mailbox) = known.and_then(|id| self.mailbox(id).ok()).filter(|mailbox| !mailbox.is_broken())
                && (name.is_inbox()
                    || mailbox.unchanged().is_some()
                    || run(turn(&self.listing), move |_| Ok(mailbox.is_there())).await?)
            {
                known.into_iter().for_each(|id| self.is_not_missing(id));
                return Ok(renewed(self, name, known).await);
            }
            let found = names(self).await?.get(name).copied();
            Ok(renewed(self, name, found).await)
        })
    }

    fn status(&self, mailbox: MailboxId) -> Asked<'_, MailboxStatus> {
        Box::pin(async move {
            let mailbox = self.mailbox(mailbox)?;
            if !mailbox.core().needs_look() {
                let asked = Arc::clone(&mailbox);
                let known = move || {
                    let core = asked.core();
                    core.stored_status().or_else(|| core.before_listing().map(|now| status(&*asked, &now)))
                };
                if let Some(known) = run(turn(&self.listing), move |_| Ok(known())).await? {
                    return Ok(known);
                }
            }
            let now = mailbox.look().await?;
            Ok(status(&*mailbox, &now))
        })
    }

    fn select(&self, mailbox: MailboxId, mode: SelectMode) -> Asked<'_, Box<dyn MailboxView>> {
        Box::pin(async move {
            let mailbox = self.mailbox(mailbox)?;
            if let Some(opening) = mailbox.opening().await?
                && let Some(view) = OpeningView::select(Arc::clone(&mailbox), mode, opening)
            {
                return Ok(Box::new(view) as _);
            }
            let view = SnapshotView::select(mailbox, mode).await?;
            Ok(Box::new(view) as _)
        })
    }

    fn create<'a>(&'a self, name: &'a MailboxName, special_use: Option<SpecialUse>) -> Asked<'a, MailboxId> {
        let name = name.clone();
        Box::pin(change_names(self, move |names, work| names.create(&name, special_use, &|| work.begin())))
    }

    fn delete(&self, mailbox: MailboxId) -> Asked<'_, ()> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            change_names(self, move |names, work| names.delete(&core, work)).await
        })
    }

    fn rename<'a>(&'a self, mailbox: MailboxId, to: &'a MailboxName) -> Asked<'a, ()> {
        let to = to.clone();
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            let change = move |names: &mut FolderChanges<'_>, work: &FileWork<()>| {
                if core.is_inbox() { names.empty_inbox(&core, &to, work) } else { names.rename(&core, &to, work) }
            };
            change_names(self, change).await
        })
    }

    fn rebuild(&self, mailbox: MailboxId, renews: bool) -> Asked<'_, RebuiltMailbox> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            rebuild_patiently(self, core, renews).await
        })
    }

    fn subscribe<'a>(&'a self, name: &'a MailboxName, on: bool) -> Asked<'a, ()> {
        let name = name.clone();
        Box::pin(async move {
            let me = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
            run(turn(&self.listing), move |work| me.set_subscribed(&name, on, work)).await
        })
    }

    fn quota(&self) -> Asked<'_, Option<QuotaUse>> {
        Box::pin(self.blocking(|account| account.shared.quotas.usage(&account.shared.ledger, account.load()?)))
    }

    fn append(&self, mailbox: MailboxId, message: AppendRequest) -> Asked<'_, Box<dyn MessageWriter>> {
        Box::pin(async move { append::begin(Arc::clone(self.mailbox(mailbox)?.core()), message).await })
    }
}

/// Lists the present folders.
async fn names(account: &MaildirAccount) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
    account.blocking(names_now).await
}

/// Like [`names`]. Blocks.
pub(super) fn names_now(account: &MaildirAccount) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
    if lock(&account.mailboxes).pending.is_due() {
        let _one = lock(&account.folders);
        finish_folders(account);
    }
    let found = account.listed_now()?;
    account.note_missing(&found, Instant::now());
    Ok(found)
}

/// All names of mailboxes and subscriptions. Blocks.
fn all_names(account: &MaildirAccount) -> Result<BTreeMap<MailboxName, NamedMailbox>, MailstoreError> {
    let mut all: BTreeMap<MailboxName, NamedMailbox> = BTreeMap::new();
    let found = names_now(account)?;
    let uses = account.special_uses(&found)?;
    for (name, id) in found {
        // What the ledger does not know is not subscribed to, but for INBOX.
        let (special_use, subscribed) = (uses.get(&id).copied(), name.is_inbox());
        all.insert(name, NamedMailbox { id: Some(id), special_use, subscribed });
    }
    let owner = account.load()?;
    let names = account.shared.ledger.names(owner.id).map_err(|error| refusal(&error))?.1;
    for (name, row) in names {
        let Some(name) = std::str::from_utf8(&name).ok().and_then(|name| MailboxName::parse(name).ok()) else {
            continue;
        };
        if row.is_subscribed || all.contains_key(&name) {
            all.entry(name).or_default().subscribed = row.is_subscribed;
        }
    }
    Ok(all)
}

/// An existing folder, if UIDs can be assigned there now. Blocks.
pub(super) fn open_folder(account: &MaildirAccount, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
    account.load().ok()?;
    let ids = names_now(account).ok()?.into_values();
    let mut all = ids.filter_map(|id| account.mailbox(id).ok());
    let found = all.find(|mailbox| mailbox.path() == *path)?;
    found.make().then(|| Arc::clone(found.core()))
}

/// Looks at a mailbox, which places copies left in `tmp/`, if the ledger has the mailbox. Blocks.
pub(super) fn place_copies(account: &MaildirAccount, path: &MailboxPath) -> Result<(), MailstoreError> {
    account.load()?;
    names_now(account)?;
    let core = {
        let known = lock(&account.mailboxes);
        if known.pending.hides(path) {
            return Err(MailstoreError::Unavailable("its directory is yet to be renamed or removed".to_owned()));
        }
        let found = known.by_id.values().find(|mailbox| mailbox.path() == *path);
        found.map(|mailbox| Arc::clone(mailbox.core()))
    };
    match core {
        Some(core) if account.shared.ledger.pin(core.id).map_err(|error| refusal(&error))? => look_once(&core),
        _ => Ok(()),
    }
}

/// Runs `change` with the permit for names. Gives up after five minutes on a hanging disk, unless the batch has
/// begun.
async fn change_names<T: Send + 'static>(
    account: &MaildirAccount,
    change: impl FnOnce(&mut FolderChanges<'_>, &FileWork<T>) -> Result<T, MailstoreError> + Send + 'static,
) -> Result<T, MailstoreError> {
    let me = account.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
    let change = move |work: &FileWork<T>| {
        let _one = lock(&me.folders);
        work.check()?;
        let mut names = FolderChanges::new(&me)?;
        work.check()?;
        change(&mut names, work)
    };
    run(turn(&account.renaming), change).await
}

/// Rebuilds a mailbox, however long reading its files takes. Waits at most five minutes for a permit.
async fn rebuild_patiently(
    account: &MaildirAccount,
    core: Arc<MailboxCore>,
    renews: bool,
) -> Result<RebuiltMailbox, MailstoreError> {
    let me = account.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
    let one = timeout(PATIENCE, turn(&account.renaming)).await.map_err(|_| no_answer())?;
    let rebuild = move || {
        let _turn = one;
        let _one = lock(&me.folders);
        FolderChanges::new(&me)?.rebuild(&core, renews)
    };
    spawn_blocking(rebuild).await.map_err(ended)?
}

/// Rebuilds a mailbox with few UIDs left, under a new UIDVALIDITY, before it is selected.
async fn renewed(account: &MaildirAccount, name: &MailboxName, found: Option<MailboxId>) -> Option<MailboxId> {
    let used_up = found.filter(|id| account.shared.ledger.are_uids_used_up(id.0));
    let Some(id) = used_up else { return found };
    if let Err(error) = account.rebuild(id, true).await {
        let (mailbox, error) = (name.as_str(), error.to_string());
        tracing::error!(mailbox, error, "the UIDs of a mailbox are used up, and it cannot be rebuilt now");
    }
    lock(&account.mailboxes).ids.get(name).copied()
}
