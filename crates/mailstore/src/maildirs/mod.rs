//! Mailboxes over Maildirs: their UIDs and flags are kept by the ledger.
//!
//! A file's UID stays the same while its key (the part of its name before flags and sizes) does, whatever happens to its flags. A UID is never given twice.
//! Files that other programs put there get their UIDs when a session looks, durable before any client sees them.

mod append;
mod arrivals;
mod awaited;
mod body;
mod change_queue;
#[cfg(test)]
mod change_tests;
mod changes;
mod copies;
#[cfg(test)]
mod copies_tests;
mod core;
mod file;
mod first_login;
mod folder_changes;
#[cfg(test)]
mod folder_tests;
mod gathered;
mod gone_dirs;
mod header_cache;
mod hot_dirs;
mod keywords;
mod listed;
mod loaded;
mod looks;
mod mailbox;
mod names;
mod names_out;
mod owner;
mod pending;
mod quota;
#[cfg(test)]
mod quota_tests;
mod rebuild;
#[cfg(test)]
mod rebuild_tests;
mod scan;
mod scratch;
mod state;
mod takeover;
#[cfg(test)]
mod tests;
mod told;
mod uid_lists;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use posthaste_intake::{Intake, MemoryBudget};
use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use self::append::AppendDoor;
pub use self::append::{FileWriter, ForgetMail, SettleFiles};
pub use self::arrivals::MailArrivals;
use self::body::ended;
use self::change_queue::refusal;
use self::copies::CopyNames;
use self::core::MailboxCore;
use self::folder_changes::{FolderChanges, MAILBOXES_MAX};
use self::gone_dirs::{GoneDirs, sweep_at_times};
use self::header_cache::{HEADER_CACHE_FILE, HeaderCache};
use self::hot_dirs::HotDirs;
use self::loaded::LoadedMailboxes;
use self::mailbox::{MaildirMailbox, lock};
pub use self::names::mailbox_of_folder;
use self::owner::Owner;
use self::pending::{PendingFolders, finish_folders};
pub use self::quota::QuotaTable;
use self::quota::Quotas;
pub use self::verify::{Finding, FindingKind, SpoolLook, Verified, VerifiedPlaces, VerifyError, verify_mailboxes};
use crate::entry::MailEntry;
use crate::error::MailstoreError;
use crate::ledger::{GrownMailboxes, MailLedger, MailLedgerError};
use crate::listing::{AccountListing, NamedMailbox, listed};
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{
    AppendRequest, Asked, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore, MessageWriter, QuotaUse,
    RebuiltMailbox, SelectMode,
};

/// Which Maildir a login has: its path below the root of all mail.
pub type FindMaildir = dyn Fn(&str) -> Option<MailboxPath> + Send + Sync;

/// Whether delivery has yet to make files of a batch's mail.
pub type IsPending = dyn Fn(u64) -> bool + Send + Sync;

/// Mailboxes over the Maildirs below one directory.
pub struct MaildirStore {
    shared: Arc<Shared>,
    accounts: Mutex<HashMap<MailboxPath, Arc<MaildirAccount>>>,
}

/// The accounts of logins.
pub struct MaildirLogins {
    store: Arc<MaildirStore>,
    find: Box<FindMaildir>,
    has_usual_folders: bool,
}

struct Shared {
    root: Arc<MailRoot>,
    ledger: Arc<MailLedger>,
    is_pending: Box<IsPending>,
    loaded: LoadedMailboxes,
    gone_dirs: Arc<GoneDirs>,
    append_door: AppendDoor,
    copy_names: CopyNames,
    quotas: Quotas,
    /// Mailboxes that were made anew: paths stand for other ids since.
    replaced: AtomicU64,
    header_cache: HeaderCache,
    hot_dirs: Arc<HotDirs>,
    /// By the path of its INBOX; `None` until it is needed.
    account_ids: Mutex<Option<HashMap<String, u32>>>,
}

impl Shared {
    /// The account of an INBOX, if the ledger has it. Blocks.
    fn owner(&self, inbox: &MailboxPath) -> Result<Option<u32>, MailLedgerError> {
        let mut ids = lock(&self.account_ids);
        if ids.is_none() {
            let rows = self.ledger.accounts()?.into_iter();
            *ids = Some(rows.map(|(id, row)| (String::from_utf8_lossy(&row.name).into_owned(), id)).collect());
        }
        Ok(ids.as_ref().and_then(|ids| ids.get(inbox.as_str()).copied()))
    }

    /// The ledger has an account now.
    fn note_account(&self, owner: &Owner) {
        if let Some(ids) = &mut *lock(&self.account_ids) {
            ids.entry(owner.path.as_str().to_owned()).or_insert(owner.id);
        }
    }
}

impl MaildirStore {
    /// Opens the directory that all Maildirs are below. Needs a tokio runtime.
    ///
    /// # Errors
    /// Those of `open`; see [`MailRoot::open`].
    pub fn open(root: &Path, ledger: Arc<MailLedger>, is_pending: Box<IsPending>) -> io::Result<Self> {
        Self::open_with(root, ledger, is_pending, HeaderCache::none())
    }

    /// Like [`open`](Self::open), with a cache of header fields in the directory `cache`. It holds nothing that the mail does not have.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_cached(
        root: &Path,
        ledger: Arc<MailLedger>,
        is_pending: Box<IsPending>,
        cache: &Path,
    ) -> io::Result<Self> {
        let of_mail = Arc::clone(&ledger);
        // The cache has its least size while nobody can say how much mail there is.
        let mail_bytes = Box::new(move || of_mail.mail_bytes().unwrap_or(0));
        Self::open_with(root, ledger, is_pending, HeaderCache::open(cache.join(HEADER_CACHE_FILE), mail_bytes))
    }

    fn open_with(
        root: &Path,
        ledger: Arc<MailLedger>,
        is_pending: Box<IsPending>,
        header_cache: HeaderCache,
    ) -> io::Result<Self> {
        let (root_path, root) = (root, Arc::new(MailRoot::open(root)?));
        let grown = ledger.grown();
        let (loaded, account_ids) = (LoadedMailboxes::default(), Mutex::default());
        let gone_dirs = Arc::new(GoneDirs::new(Arc::clone(&root), root_path));
        tokio::spawn(sweep_at_times(Arc::downgrade(&gone_dirs)));
        let (append_door, copy_names, quotas) = (AppendDoor::default(), CopyNames::new(), Quotas::default());
        let shared = Arc::new(Shared {
            root,
            ledger,
            is_pending,
            loaded,
            gone_dirs,
            append_door,
            copy_names,
            quotas,
            replaced: AtomicU64::new(0),
            header_cache,
            hot_dirs: HotDirs::new(root_path),
            account_ids,
        });
        tokio::spawn(tell_sessions(grown, Arc::downgrade(&shared)));
        tokio::spawn(uid_lists::write_when_idle(Arc::downgrade(&shared)));
        Ok(Self { shared, accounts: Mutex::default() })
    }

    /// From now on messages can be added: `intake` makes them durable, and `writer` makes their files in the Maildirs. Their memory is that of all mail on its
    /// way in.
    pub fn open_for_append(&self, intake: Intake, writer: FileWriter, memory: MemoryBudget) {
        self.shared.append_door.open(intake, writer, memory);
    }

    /// The ledger that it keeps UIDs and flags in.
    pub fn ledger(&self) -> &Arc<MailLedger> {
        &self.shared.ledger
    }

    fn account(&self, inbox: &MailboxPath) -> Arc<MaildirAccount> {
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox.clone()).or_insert_with(|| {
            let (shared, inbox) = (Arc::clone(&self.shared), inbox.clone());
            let (owner, mailboxes, folders) = (OnceLock::new(), Mutex::default(), Mutex::default());
            let is_set_up = AtomicBool::new(false);
            Arc::new_cyclic(|me| MaildirAccount { me: me.clone(), shared, inbox, owner, mailboxes, folders, is_set_up })
        });
        Arc::clone(account)
    }

    /// Places copies that a kill left in `tmp/` of a mailbox, where they would be taken for unfinished files. A Maildir without UIDs has none. Blocks.
    ///
    /// # Errors
    /// The mailbox cannot be read now.
    pub fn place_copies(&self, path: &MailboxPath) -> Result<(), MailstoreError> {
        let above = path.as_str().rsplit_once("/.").map(|(inbox, _)| MailboxPath::parse(inbox));
        let inbox = above.and_then(Result::ok).unwrap_or_else(|| path.clone());
        let account = self.account(&inbox);
        let placed = account.place_copies(path);
        drop(account);
        self.forget_unused(&inbox);
        placed
    }

    /// Forgets one of a hundred thousand accounts whose mail nobody reads.
    fn forget_unused(&self, inbox: &MailboxPath) {
        let mut accounts = lock(&self.accounts);
        if accounts.get(inbox).is_some_and(MaildirAccount::is_unused) {
            accounts.remove(inbox);
        }
    }

    /// The id of an INBOX that the ledger has: from now on it may be given UIDs. `None` if it is to be made. Blocks, and does not look at the mount.
    fn find_inbox(&self, inbox: &MailboxPath) -> Result<Option<u32>, MailLedgerError> {
        let ledger = &self.shared.ledger;
        // No mail of this opening has a UID before its entry *opening* is there.
        ledger.check_open()?;
        let Some(account) = self.shared.owner(inbox)? else { return Ok(None) };
        let Some(id) = ledger.mailbox_named(account, MailboxName::inbox().as_str().as_bytes())? else {
            return Ok(None);
        };
        Ok(ledger.pin(id)?.then_some(id))
    }

    /// The folder of a path, if its directory is there: then it may be given UIDs. Blocks.
    fn open_folder(&self, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
        self.shared.ledger.check_open().ok()?;
        let inbox = MailboxPath::parse(path.as_str().rsplit_once("/.")?.0).ok()?;
        let opened = self.account(&inbox).open_folder(path);
        self.forget_unused(&inbox);
        opened
    }

    /// Makes an INBOX, and returns its id: then it may be given UIDs. Blocks.
    fn make_inbox(&self, inbox: &MailboxPath) -> Option<u32> {
        let made = self.account(inbox).make_inbox();
        self.forget_unused(inbox);
        made
    }
}

/// Wakes the sessions of mailboxes that have new entries.
async fn tell_sessions(grown: GrownMailboxes, shared: Weak<Shared>) {
    while let Some(mailboxes) = grown.next().await {
        let begun = Instant::now();
        let Some(shared) = shared.upgrade() else { return };
        for id in mailboxes {
            // Without a session the next one takes the entries in. A mailbox that was left behind is read again by its next look.
            if let Some(mailbox) = shared.loaded.find(id).filter(LoadedMailboxes::has_session) {
                let _ = mailbox.catch_up();
            }
        }
        drop(shared);
        // Each entry copies the list of its mailbox: a mailbox with many messages is told of several at once.
        sleep(begun.elapsed()).await;
    }
}

impl MaildirLogins {
    /// `find` knows the Maildir of each login, and must not block.
    pub fn new(store: Arc<MaildirStore>, find: Box<FindMaildir>) -> Self {
        Self { store, find, has_usual_folders: false }
    }

    /// An account without folders gets the usual ones at its first login: Drafts, Sent, Junk, Trash and Archive.
    #[must_use]
    pub fn with_usual_folders(mut self) -> Self {
        self.has_usual_folders = true;
        self
    }
}

impl fmt::Debug for MaildirLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaildirLogins").finish_non_exhaustive()
    }
}

impl fmt::Debug for MaildirStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaildirStore").finish_non_exhaustive()
    }
}

impl Mailstore for MaildirLogins {
    fn account<'a>(&'a self, login: &'a str) -> Asked<'a, Arc<dyn MailAccount>> {
        Box::pin(async move {
            let account = self.store.account(&(self.find)(login).ok_or(MailstoreError::NoMailbox)?);
            let (loading, makes_folders) = (Arc::clone(&account), self.has_usual_folders);
            let load = move || {
                loading.load()?;
                loading.set_up(makes_folders);
                Ok(())
            };
            spawn_blocking(load).await.map_err(ended)??;
            Ok(account as _)
        })
    }
}

/// The mailboxes of one Maildir with its folders.
struct MaildirAccount {
    me: Weak<Self>,
    shared: Arc<Shared>,
    inbox: MailboxPath,
    owner: OnceLock<Arc<Owner>>,
    mailboxes: Mutex<KnownMailboxes>,
    /// Held by who changes names of mailboxes, or the directories of pending changes.
    folders: Mutex<()>,
    /// The first login has left nothing to do.
    is_set_up: AtomicBool,
}

/// All mailboxes that the ledger has, and those seen since: one that is removed and comes back goes on with its UIDs.
#[derive(Default)]
struct KnownMailboxes {
    ids: HashMap<MailboxName, MailboxId>,
    by_id: HashMap<MailboxId, Arc<MaildirMailbox>>,
    pending: PendingFolders,
    has_told_left_out: bool,
    /// Folders are named in modified UTF-7, by the last list.
    is_utf7: bool,
}

impl MaildirAccount {
    /// Reads ids from the ledger, once. Blocks.
    fn load(&self) -> Result<&Arc<Owner>, MailstoreError> {
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

    /// True if nobody else has the account or a mailbox of it. Two objects of one mailbox would give its files UIDs twice.
    fn is_unused(self: &Arc<Self>) -> bool {
        // Whoever has its mailboxes locked uses it, and may wait for a disk: no other account does.
        let Ok(known) = self.mailboxes.try_lock() else { return false };
        Arc::strong_count(self) == 1 && known.by_id.values().all(MaildirMailbox::is_unused)
    }

    /// The id of its INBOX, if that may be given UIDs now. Blocks.
    fn make_inbox(&self) -> Option<u32> {
        let owner = self.load().ok()?;
        let (name, path) = (MailboxName::inbox(), self.inbox.clone());
        let id = self.id_of(&mut lock(&self.mailboxes), owner, name, path);
        self.mailbox(id).ok()?.make().then_some(id.0)
    }

    /// A folder that is there, if it may be given UIDs now. Blocks.
    fn open_folder(&self, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
        self.load().ok()?;
        let ids = self.names_now().ok()?.into_values();
        let mut all = ids.filter_map(|id| self.mailbox(id).ok());
        let found = all.find(|mailbox| mailbox.path() == *path)?;
        found.make().then(|| Arc::clone(found.core()))
    }

    /// A look at a mailbox that the ledger has places what is in `tmp/`. Blocks.
    fn place_copies(&self, path: &MailboxPath) -> Result<(), MailstoreError> {
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
            Some(core) if self.shared.ledger.pin(core.id).map_err(|error| refusal(&error))? => core.look_once(),
            _ => Ok(()),
        }
    }

    /// Runs `work` where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let me = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
        spawn_blocking(move || work(&me)).await.map_err(ended)?
    }

    /// Runs `change` while nobody else changes names.
    async fn change_names<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut FolderChanges<'_>) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let work = |account: &Self| {
            let _one = lock(&account.folders);
            change(&mut FolderChanges::new(account)?)
        };
        self.blocking(work).await
    }

    /// All names: of mailboxes, and those that are subscribed to. Blocks.
    fn all_names(&self) -> Result<BTreeMap<MailboxName, NamedMailbox>, MailstoreError> {
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

    /// Special uses: those with which mailboxes were made and, of others, those of their names. Blocks.
    fn special_uses(
        &self,
        found: &BTreeMap<MailboxName, MailboxId>,
    ) -> Result<BTreeMap<MailboxId, SpecialUse>, MailstoreError> {
        let made = self.shared.ledger.special_uses(self.load()?.id).map_err(|error| refusal(&error))?;
        let used = made.iter().filter_map(|(id, special_use)| Some((MailboxId(*id), (*special_use)?)));
        let mut uses: BTreeMap<MailboxId, SpecialUse> =
            used.filter(|(id, _)| found.values().any(|of| of == id)).collect();
        for (name, id) in found.iter().filter(|(_, id)| !made.contains_key(&id.0)) {
            if let Some(usual) = SpecialUse::of_name(name).filter(|usual| !uses.values().any(|taken| taken == usual)) {
                uses.insert(*id, usual);
            }
        }
        Ok(uses)
    }

    /// Subscribes to a name, or ends that. Blocks.
    fn set_subscribed(&self, name: &MailboxName, is_on: bool) -> Result<(), MailstoreError> {
        let (owner, ledger) = (self.load()?, &self.shared.ledger);
        if !owner.is_durable() && self.make_inbox().is_none() {
            return Err(MailstoreError::Unavailable("the account cannot be made now".to_owned()));
        }
        let known = ledger.names(owner.id).map_err(|error| refusal(&error))?.1;
        let name = Bytes::copy_from_slice(name.as_str().as_bytes());
        if known.len() >= MAILBOXES_MAX && !known.contains_key(&name) {
            return Err(MailstoreError::Limit);
        }
        let entry = MailEntry::Subscription { account: owner.id, name, is_on };
        ledger.append(&[entry]).map(drop).map_err(|error| refusal(&error))
    }

    /// Lists the folders that are there now.
    async fn names(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        self.blocking(Self::names_now).await
    }

    /// As [`names`](Self::names). Blocks.
    fn names_now(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        if lock(&self.mailboxes).pending.is_due() {
            let _one = lock(&self.folders);
            finish_folders(self);
        }
        self.listed_now()
    }

    /// As [`names_now`](Self::names_now), without pending changes being tried.
    fn listed_now(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
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
                "this folder's name is no mailbox name, or taken; it is left out, further ones are not logged"
            );
        }
        known.is_utf7 = found.is_utf7;
        let named: Vec<_> = found.named.into_iter().filter(|(_, path)| !known.pending.hides(path)).collect();
        let named = named.into_iter();
        Ok(named.map(|(name, path)| (name.clone(), self.id_of(&mut known, owner, name, path))).collect())
    }

    /// The id of a mailbox. One that the ledger does not know is made by its first look.
    fn id_of(&self, known: &mut KnownMailboxes, owner: &Arc<Owner>, name: MailboxName, path: MailboxPath) -> MailboxId {
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
                let mailbox = MaildirMailbox::new(Arc::clone(&self.shared), Arc::clone(owner), id, name, path);
                let mailbox = Arc::new(mailbox);
                self.shared.loaded.add(id.0, &mailbox);
                known.by_id.insert(id, mailbox);
            }
        }
        id
    }

    /// A mailbox whose UIDs are nearly used up is made anew, under a new UIDVALIDITY, before somebody selects it.
    async fn renewed(&self, name: &MailboxName, found: Option<MailboxId>) -> Option<MailboxId> {
        let used_up = found.filter(|id| self.shared.ledger.are_uids_used_up(id.0));
        let Some(id) = used_up else { return found };
        if let Err(error) = self.rebuild(id, true).await {
            let (mailbox, error) = (name.as_str(), error.to_string());
            tracing::error!(mailbox, error, "the UIDs of a mailbox are used up, and it cannot be made anew now");
        }
        lock(&self.mailboxes).ids.get(name).copied()
    }

    fn mailbox(&self, id: MailboxId) -> Result<Arc<MaildirMailbox>, MailstoreError> {
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
                && spawn_blocking(move || mailbox.is_there()).await.map_err(ended)?
            {
                return Ok(self.renewed(name, known).await);
            }
            let found = self.names().await?.get(name).copied();
            Ok(self.renewed(name, found).await)
        })
    }

    fn status(&self, mailbox: MailboxId) -> Asked<'_, MailboxStatus> {
        Box::pin(async move {
            let mailbox = self.mailbox(mailbox)?;
            let now = mailbox.look().await?;
            Ok(status(&*mailbox, &now))
        })
    }

    fn select(&self, mailbox: MailboxId, mode: SelectMode) -> Asked<'_, Box<dyn MailboxView>> {
        Box::pin(async move {
            let view = SnapshotView::select(self.mailbox(mailbox)?, mode).await?;
            Ok(Box::new(view) as _)
        })
    }

    fn create<'a>(&'a self, name: &'a MailboxName, special_use: Option<SpecialUse>) -> Asked<'a, MailboxId> {
        let name = name.clone();
        Box::pin(self.change_names(move |names| names.create(&name, special_use)))
    }

    fn delete(&self, mailbox: MailboxId) -> Asked<'_, ()> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            self.change_names(move |names| names.delete(&core)).await
        })
    }

    fn rename<'a>(&'a self, mailbox: MailboxId, to: &'a MailboxName) -> Asked<'a, ()> {
        let to = to.clone();
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            let change = move |names: &mut FolderChanges<'_>| match core.is_inbox() {
                true => names.empty_inbox(&core, &to),
                false => names.rename(&core, &to),
            };
            self.change_names(change).await
        })
    }

    fn rebuild(&self, mailbox: MailboxId, renews: bool) -> Asked<'_, RebuiltMailbox> {
        Box::pin(async move {
            let core = Arc::clone(self.mailbox(mailbox)?.core());
            self.change_names(move |names| names.rebuild(&core, renews)).await
        })
    }

    fn subscribe<'a>(&'a self, name: &'a MailboxName, on: bool) -> Asked<'a, ()> {
        let name = name.clone();
        Box::pin(self.blocking(move |account| account.set_subscribed(&name, on)))
    }

    fn quota(&self) -> Asked<'_, Option<QuotaUse>> {
        Box::pin(self.blocking(|account| account.shared.quota(account.load()?)))
    }

    fn append(&self, mailbox: MailboxId, message: AppendRequest) -> Asked<'_, Box<dyn MessageWriter>> {
        Box::pin(async move { append::begin(Arc::clone(self.mailbox(mailbox)?.core()), message).await })
    }
}
