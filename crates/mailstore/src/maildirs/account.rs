//! The mailboxes of one Maildir with its folders.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use posthaste_maildir::MailboxPath;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answers::{PATIENCE, ended, no_answer, refusal};
use super::core::MailboxCore;
use super::file_work::{FileWork, run, turn};
use super::folder_changes::{FolderChanges, MAILBOXES_MAX};
use super::loaded::LoadedMailboxes;
use super::locks::lock;
use super::looking::look_once;
use super::mailbox::MaildirMailbox;
use super::missing::MissingFolders;
use super::owner::Owner;
use super::pending::{PendingFolders, finish_folders};
use super::shared::Shared;
use super::{append, names};
use crate::entry::MailEntry;
use crate::error::{Asked, MailstoreError};
use crate::ledger::MailLedgerError;
use crate::listing::{AccountListing, NamedMailbox, listed};
use crate::name::{MailboxName, SpecialUse};
use crate::opening_view::OpeningView;
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus, RebuiltMailbox};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{
    AppendRequest, ListOptions, MailAccount, MailboxListing, MailboxView, MessageWriter, QuotaUse, SelectMode,
};

/// Maximum threads that list the folders of one account: a hanging disk blocks no more.
pub(super) const LISTINGS_MAX: usize = 4;

/// The mailboxes of one Maildir with its folders.
pub(super) struct MaildirAccount {
    pub me: Weak<Self>,
    pub shared: Arc<Shared>,
    pub loaded: Arc<LoadedMailboxes<MaildirMailbox>>,
    pub inbox: MailboxPath,
    pub owner: OnceLock<Arc<Owner>>,
    pub mailboxes: Mutex<KnownMailboxes>,
    /// Locked while names of mailboxes, or pending directories, change.
    pub folders: Mutex<()>,
    /// True if the first login has nothing left to do.
    pub is_set_up: AtomicBool,
    /// Permits to list the directories of folders.
    pub listing: Arc<Semaphore>,
    /// Permit to change names: its holder is the only one that waits for `folders`.
    pub renaming: Arc<Semaphore>,
}

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

impl MaildirAccount {
    /// Reads ids from the ledger, once. Blocks.
    pub fn load(&self) -> Result<&Arc<Owner>, MailstoreError> {
        if let Some(owner) = self.owner.get() {
            return Ok(owner);
        }
        let mut mailboxes = lock(&self.mailboxes);
        if let Some(owner) = self.owner.get() {
            return Ok(owner);
        }
        let ledger = &self.shared.ledger;
        let read = || {
            let known = self.shared.owner(&self.inbox)?;
            let names = known.map(|id| ledger.names(id)).transpose()?.unwrap_or_default().1;
            Ok::<_, MailLedgerError>((known, names, ledger.pending_directories()?))
        };
        let (known, names, pending) = read().map_err(|error| {
            tracing::error!(error = error.to_string(), "the table of mailboxes cannot be read");
            MailstoreError::Unavailable(error.to_string())
        })?;
        let named = names.iter().filter(|(_, row)| row.mailbox != 0).filter_map(|(name, row)| {
            Some((MailboxName::parse(std::str::from_utf8(name).ok()?).ok()?, MailboxId(row.mailbox)))
        });
        mailboxes.ids = named.collect();
        mailboxes.pending.load(&pending, &self.inbox);
        let id = known.unwrap_or_else(|| ledger.new_account());
        Ok(self.owner.get_or_init(|| Arc::new(Owner::new(id, self.inbox.clone(), known.is_some()))))
    }

    /// True if the mailbox ids are read, and the first login has nothing left to do.
    pub fn is_ready(&self) -> bool {
        self.owner.get().is_some() && self.is_set_up.load(Ordering::Relaxed)
    }

    /// True if nobody else refers to the account or a mailbox of it. Two objects of one mailbox would assign UIDs
    /// twice.
    pub fn is_unused(self: &Arc<Self>) -> bool {
        // Whoever has its mailboxes locked uses it, and may wait for a disk: no other account does.
        let Ok(known) = self.mailboxes.try_lock() else { return false };
        Arc::strong_count(self) == 1 && known.by_id.values().all(MaildirMailbox::is_unused)
    }

    /// The id of its INBOX, if UIDs can be assigned there now. Blocks.
    pub fn make_inbox(&self) -> Option<u32> {
        let owner = self.load().ok()?;
        let (name, path) = (MailboxName::inbox(), self.inbox.clone());
        let id = self.id_of(&mut lock(&self.mailboxes), owner, name, path);
        self.mailbox(id).ok()?.make().then_some(id.0)
    }

    /// An existing folder, if UIDs can be assigned there now. Blocks.
    pub fn open_folder(&self, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
        self.load().ok()?;
        let ids = self.names_now().ok()?.into_values();
        let mut all = ids.filter_map(|id| self.mailbox(id).ok());
        let found = all.find(|mailbox| mailbox.path() == *path)?;
        found.make().then(|| Arc::clone(found.core()))
    }

    /// Looks at a mailbox, which places copies left in `tmp/`, if the ledger has the mailbox. Blocks.
    pub fn place_copies(&self, path: &MailboxPath) -> Result<(), MailstoreError> {
        self.load()?;
        self.names_now()?;
        let core = {
            let known = lock(&self.mailboxes);
            if known.pending.hides(path) {
                return Err(MailstoreError::Unavailable("its directory is yet to be renamed or removed".to_owned()));
            }
            let found = known.by_id.values().find(|mailbox| mailbox.path() == *path);
            found.map(|mailbox| Arc::clone(mailbox.core()))
        };
        match core {
            Some(core) if self.shared.ledger.pin(core.id).map_err(|error| refusal(&error))? => look_once(&core),
            _ => Ok(()),
        }
    }

    /// Runs blocking `work` on a thread, once it has a permit. Gives up after five minutes on a hanging disk.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let me = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
        run(turn(&self.listing), move |_| work(&me)).await
    }

    /// Runs `change` with the permit for names. Gives up after five minutes on a hanging disk, unless the batch has
    /// begun.
    pub async fn change_names<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut FolderChanges<'_>, &FileWork<T>) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let account = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
        let change = move |work: &FileWork<T>| {
            let _one = lock(&account.folders);
            work.check()?;
            let mut names = FolderChanges::new(&account)?;
            work.check()?;
            change(&mut names, work)
        };
        run(turn(&self.renaming), change).await
    }

    /// Rebuilds a mailbox, however long reading its files takes. Waits at most five minutes for a permit.
    async fn rebuild_patiently(&self, core: Arc<MailboxCore>, renews: bool) -> Result<RebuiltMailbox, MailstoreError> {
        let account = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
        let one = timeout(PATIENCE, turn(&self.renaming)).await.map_err(|_| no_answer())?;
        let rebuild = move || {
            let _turn = one;
            let _one = lock(&account.folders);
            FolderChanges::new(&account)?.rebuild(&core, renews)
        };
        spawn_blocking(rebuild).await.map_err(ended)?
    }

    /// All names of mailboxes and subscriptions. Blocks.
    pub fn all_names(&self) -> Result<BTreeMap<MailboxName, NamedMailbox>, MailstoreError> {
        let mut all: BTreeMap<MailboxName, NamedMailbox> = BTreeMap::new();
        let found = self.names_now()?;
        let uses = self.special_uses(&found)?;
        for (name, id) in found {
            // What the ledger does not know is not subscribed to, but for INBOX.
            let (special_use, subscribed) = (uses.get(&id).copied(), name.is_inbox());
            all.insert(name, NamedMailbox { id: Some(id), special_use, subscribed });
        }
        let owner = self.load()?;
        let names = self.shared.ledger.names(owner.id).map_err(|error| refusal(&error))?.1;
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

    /// Special uses: those given at creation, else those implied by names. Blocks.
    pub fn special_uses(
        &self,
        found: &BTreeMap<MailboxName, MailboxId>,
    ) -> Result<BTreeMap<MailboxId, SpecialUse>, MailstoreError> {
        let made = self.shared.ledger.special_uses(self.load()?.id).map_err(|error| refusal(&error))?;
        let used = made.iter().filter_map(|(id, special_use)| Some((MailboxId(*id), (*special_use)?)));
        let mut uses: BTreeMap<MailboxId, SpecialUse> =
            used.filter(|(id, _)| found.values().any(|of| of == id)).collect();
        let usual_folders = self.shared.usual_folders(&self.inbox);
        for (name, id) in found.iter().filter(|(_, id)| !made.contains_key(&id.0)) {
            if let Some(usual) =
                usual_folders.special_use(name).filter(|usual| !uses.values().any(|taken| taken == usual))
            {
                uses.insert(*id, usual);
            }
        }
        Ok(uses)
    }

    /// Subscribes or unsubscribes a name. Blocks.
    pub fn set_subscribed(&self, name: &MailboxName, is_on: bool, work: &FileWork<()>) -> Result<(), MailstoreError> {
        let (owner, ledger) = (self.load()?, &self.shared.ledger);
        if !owner.is_durable() && self.make_inbox().is_none() {
            return Err(MailstoreError::Unavailable("the account cannot be made now".to_owned()));
        }
        let known = ledger.names(owner.id).map_err(|error| refusal(&error))?.1;
        let name = Bytes::copy_from_slice(name.as_str().as_bytes());
        if known.len() >= MAILBOXES_MAX && !known.contains_key(&name) {
            return Err(MailstoreError::Limit);
        }
        work.begin()?;
        let entry = MailEntry::Subscription { account: owner.id, name, is_on };
        ledger.append(&[entry]).map(drop).map_err(|error| refusal(&error))
    }

    /// Lists the present folders.
    pub async fn names(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        self.blocking(Self::names_now).await
    }

    /// Like [`names`](Self::names). Blocks.
    pub fn names_now(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        if lock(&self.mailboxes).pending.is_due() {
            let _one = lock(&self.folders);
            finish_folders(self);
        }
        let found = self.listed_now()?;
        self.note_missing(&found, Instant::now());
        Ok(found)
    }

    /// Like [`names_now`](Self::names_now), without retrying pending changes.
    pub fn listed_now(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        let owner = self.owner.get().ok_or(MailstoreError::NoMailbox)?;
        let (found, mut known) = loop {
            let changes = lock(&self.mailboxes).pending.changes;
            let found = names::folders(&self.shared.root, &self.inbox);
            let found = found.map_err(|error| {
                tracing::warn!(mailbox = self.inbox.as_str(), error = error.to_string(), "cannot list folders");
                MailstoreError::Unavailable(error.to_string())
            })?;
            let known = lock(&self.mailboxes);
            // Else it may show a directory that a change has taken away since.
            if known.pending.changes == changes {
                break (found, known);
            }
        };
        if let Some(folder) = found.left_out.filter(|_| !std::mem::replace(&mut known.has_told_left_out, true)) {
            tracing::warn!(
                mailbox = self.inbox.as_str(),
                folder,
                "this folder's name is invalid as a mailbox name, or taken; it is left out, and further ones are not logged"
            );
        }
        known.is_utf7 = found.is_utf7;
        let named: Vec<_> = found.named.into_iter().filter(|(_, path)| !known.pending.hides(path)).collect();
        let named = named.into_iter();
        Ok(named.map(|(name, path)| (name.clone(), self.id_of(&mut known, owner, name, path))).collect())
    }

    /// The id of a mailbox. The first look makes one that the ledger lacks.
    pub fn id_of(
        &self,
        known: &mut KnownMailboxes,
        owner: &Arc<Owner>,
        name: MailboxName,
        path: MailboxPath,
    ) -> MailboxId {
        let ledger = &self.shared.ledger;
        if let Some(id) = known.ids.get(&name).copied()
            && known.by_id.get(&id).is_some_and(|mailbox| mailbox.is_broken())
        {
            known.ids.remove(&name);
            known.by_id.remove(&id);
        }
        let id = *known.ids.entry(name.clone()).or_insert_with(|| MailboxId(ledger.new_mailbox()));
        match known.by_id.get(&id) {
            Some(mailbox) => mailbox.set_path(path),
            None => {
                let mailbox = MaildirMailbox::new(
                    Arc::clone(&self.shared),
                    Arc::clone(&self.loaded),
                    Arc::clone(owner),
                    id,
                    name,
                    path,
                );
                let mailbox = Arc::new(mailbox);
                self.loaded.add(id.0, &mailbox);
                known.by_id.insert(id, mailbox);
            }
        }
        id
    }

    /// Rebuilds a mailbox with few UIDs left, under a new UIDVALIDITY, before it is selected.
    pub async fn renewed(&self, name: &MailboxName, found: Option<MailboxId>) -> Option<MailboxId> {
        let used_up = found.filter(|id| self.shared.ledger.are_uids_used_up(id.0));
        let Some(id) = used_up else { return found };
        if let Err(error) = self.rebuild(id, true).await {
            let (mailbox, error) = (name.as_str(), error.to_string());
            tracing::error!(mailbox, error, "the UIDs of a mailbox are used up, and it cannot be rebuilt now");
        }
        lock(&self.mailboxes).ids.get(name).copied()
    }

    pub fn mailbox(&self, id: MailboxId) -> Result<Arc<MaildirMailbox>, MailstoreError> {
        lock(&self.mailboxes).by_id.get(&id).cloned().ok_or(MailstoreError::NoMailbox)
    }
}

impl MailAccount for MaildirAccount {
    fn list<'a>(
        &'a self,
        patterns: &'a [NamePattern],
        options: ListOptions,
    ) -> Asked<'a, Box<dyn MailboxListing + 'a>> {
        Box::pin(async move {
            let named = self.blocking(Self::all_names).await?;
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
                return Ok(self.renewed(name, known).await);
            }
            let found = self.names().await?.get(name).copied();
            Ok(self.renewed(name, found).await)
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
        Box::pin(self.change_names(move |names, work| names.create(&name, special_use, &|| work.begin())))
    }

    fn delete(&self, mailbox: MailboxId) -> Asked<'_, ()> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            self.change_names(move |names, work| names.delete(&core, work)).await
        })
    }

    fn rename<'a>(&'a self, mailbox: MailboxId, to: &'a MailboxName) -> Asked<'a, ()> {
        let to = to.clone();
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            let change = move |names: &mut FolderChanges<'_>, work: &FileWork<()>| {
                if core.is_inbox() { names.empty_inbox(&core, &to, work) } else { names.rename(&core, &to, work) }
            };
            self.change_names(change).await
        })
    }

    fn rebuild(&self, mailbox: MailboxId, renews: bool) -> Asked<'_, RebuiltMailbox> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            self.rebuild_patiently(core, renews).await
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
