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
mod gone_dirs;
mod keywords;
mod loaded;
mod looks;
mod mailbox;
mod names;
mod names_out;
mod owner;
mod scan;
mod scratch;
mod state;
mod takeover;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use posthaste_intake::{Destination, Intake};
use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use self::append::AppendDoor;
pub use self::arrivals::MailArrivals;
use self::body::ended;
use self::copies::CopyNames;
use self::gone_dirs::{GoneDirs, sweep_at_times};
use self::loaded::LoadedMailboxes;
use self::mailbox::{MaildirMailbox, lock};
use self::owner::Owner;
use crate::error::MailstoreError;
use crate::ledger::{GrownMailboxes, LedgerError, MailLedger};
use crate::listing::{AccountListing, NamedMailbox, listed};
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{
    AppendRequest, Asked, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore, MessageWriter, SelectMode,
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
}

struct Shared {
    root: Arc<MailRoot>,
    ledger: Arc<MailLedger>,
    is_pending: Box<IsPending>,
    loaded: LoadedMailboxes,
    gone_dirs: Arc<GoneDirs>,
    append_door: AppendDoor,
    copy_names: CopyNames,
    /// By the path of its INBOX; `None` until it is needed.
    account_ids: Mutex<Option<HashMap<String, u32>>>,
}

impl Shared {
    /// The account of an INBOX, if the ledger has it. Blocks.
    fn owner(&self, inbox: &MailboxPath) -> Result<Option<u32>, LedgerError> {
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
        let root = Arc::new(MailRoot::open(root)?);
        let grown = ledger.grown();
        let (loaded, account_ids) = (LoadedMailboxes::default(), Mutex::default());
        let gone_dirs = Arc::new(GoneDirs::of(root.existing_gone_dir()?));
        tokio::spawn(sweep_at_times(Arc::downgrade(&gone_dirs)));
        let (append_door, copy_names) = (AppendDoor::default(), CopyNames::new());
        let shared =
            Arc::new(Shared { root, ledger, is_pending, loaded, gone_dirs, append_door, copy_names, account_ids });
        tokio::spawn(tell_sessions(grown, Arc::downgrade(&shared)));
        Ok(Self { shared, accounts: Mutex::default() })
    }

    /// From now on messages can be added: `intake` makes them durable, and `files` makes their files in the Maildirs.
    pub fn open_for_append(&self, intake: Intake, files: Arc<dyn Destination>) {
        self.shared.append_door.open(intake, files);
    }

    /// The ledger that it keeps UIDs and flags in.
    pub fn ledger(&self) -> &Arc<MailLedger> {
        &self.shared.ledger
    }

    fn account(&self, inbox: &MailboxPath) -> Arc<MaildirAccount> {
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox.clone()).or_insert_with(|| {
            let (shared, inbox) = (Arc::clone(&self.shared), inbox.clone());
            Arc::new(MaildirAccount { shared, inbox, owner: OnceLock::new(), mailboxes: Mutex::default() })
        });
        Arc::clone(account)
    }

    /// The id of an INBOX that the ledger has: from now on it may be given UIDs. `None` if it is to be made. Blocks, and does not look at the mount.
    fn find_inbox(&self, inbox: &MailboxPath) -> Result<Option<u32>, LedgerError> {
        let ledger = &self.shared.ledger;
        // No mail of this opening has a UID before its entry *opening* is there.
        ledger.check_open()?;
        let Some(account) = self.shared.owner(inbox)? else { return Ok(None) };
        let Some(id) = ledger.mailbox_named(account, MailboxName::inbox().as_str().as_bytes())? else {
            return Ok(None);
        };
        Ok(ledger.pin(id)?.then_some(id))
    }

    /// Makes an INBOX, and returns its id: then it may be given UIDs. Blocks.
    fn make_inbox(&self, inbox: &MailboxPath) -> Option<u32> {
        let made = self.account(inbox).make_inbox();
        // One of a hundred thousand accounts whose mail nobody reads.
        let mut accounts = lock(&self.accounts);
        if accounts.get(inbox).is_some_and(MaildirAccount::is_unused) {
            accounts.remove(inbox);
        }
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
        Self { store, find }
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
            let loading = Arc::clone(&account);
            spawn_blocking(move || loading.load().map(drop)).await.map_err(ended)??;
            Ok(account as _)
        })
    }
}

/// The mailboxes of one Maildir with its folders.
struct MaildirAccount {
    shared: Arc<Shared>,
    inbox: MailboxPath,
    owner: OnceLock<Arc<Owner>>,
    mailboxes: Mutex<KnownMailboxes>,
}

/// All mailboxes that the ledger has, and those seen since: one that is removed and comes back goes on with its UIDs.
#[derive(Default)]
struct KnownMailboxes {
    ids: HashMap<MailboxName, MailboxId>,
    by_id: HashMap<MailboxId, Arc<MaildirMailbox>>,
    has_told_left_out: bool,
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
            Ok::<_, LedgerError>((known, known.map(|id| ledger.names(id)).transpose()?.unwrap_or_default().1))
        };
        let (known, names) = read().map_err(|error| {
            tracing::error!(error = error.to_string(), "the table of mailboxes cannot be read");
            MailstoreError::Unavailable(error.to_string())
        })?;
        let named = names.iter().filter(|(_, row)| row.mailbox != 0).filter_map(|(name, row)| {
            Some((MailboxName::parse(std::str::from_utf8(name).ok()?).ok()?, MailboxId(row.mailbox)))
        });
        mailboxes.ids = named.collect();
        let id = known.unwrap_or_else(|| ledger.new_account());
        Ok(self.owner.get_or_init(|| Arc::new(Owner::new(id, self.inbox.clone(), known.is_some()))))
    }

    /// True if nobody else has the account or a mailbox of it. Two objects of one mailbox would give its files UIDs twice.
    fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && lock(&self.mailboxes).by_id.values().all(MaildirMailbox::is_unused)
    }

    /// The id of its INBOX, if that may be given UIDs now. Blocks.
    fn make_inbox(&self) -> Option<u32> {
        let owner = self.load().ok()?;
        let (name, path) = (MailboxName::inbox(), self.inbox.clone());
        let id = self.id_of(&mut lock(&self.mailboxes), owner, name, path);
        self.mailbox(id).ok()?.make().then_some(id.0)
    }

    /// Lists the folders that are there now.
    async fn names(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        let owner = self.owner.get().ok_or(MailstoreError::NoMailbox)?;
        let (root, inbox) = (Arc::clone(&self.shared.root), self.inbox.clone());
        let found = spawn_blocking(move || names::folders(&root, &inbox)).await.map_err(ended)?;
        let found = found.map_err(|error| {
            tracing::warn!(mailbox = self.inbox.as_str(), error = error.to_string(), "cannot list folders");
            MailstoreError::Unavailable(error.to_string())
        })?;
        let mut known = lock(&self.mailboxes);
        if let Some(folder) = found.left_out.filter(|_| !std::mem::replace(&mut known.has_told_left_out, true)) {
            tracing::warn!(
                mailbox = self.inbox.as_str(),
                folder,
                "this folder's name is no mailbox name, or taken; it is left out, further ones are not logged"
            );
        }
        let named = found.named.into_iter();
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
            Some(mailbox) if mailbox.path() == path => {}
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
            let named = self.names().await?.into_iter().map(|(name, id)| {
                let special_use = SpecialUse::of_name(&name);
                (name, NamedMailbox { id: Some(id), special_use, subscribed: true })
            });
            Ok(Box::new(AccountListing::new(self, options, listed(&named.collect(), patterns))) as _)
        })
    }

    fn find<'a>(&'a self, name: &'a MailboxName) -> Asked<'a, Option<MailboxId>> {
        Box::pin(async move {
            let known = lock(&self.mailboxes).ids.get(name).copied();
            if let Some(mailbox) = known.and_then(|id| self.mailbox(id).ok()).filter(|mailbox| !mailbox.is_broken())
                && spawn_blocking(move || mailbox.is_there()).await.map_err(ended)?
            {
                return Ok(known);
            }
            Ok(self.names().await?.get(name).copied())
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

    fn create<'a>(&'a self, _: &'a MailboxName, _: Option<SpecialUse>) -> Asked<'a, MailboxId> {
        changes::impossible()
    }

    fn delete(&self, _: MailboxId) -> Asked<'_, ()> {
        changes::impossible()
    }

    fn rename<'a>(&'a self, _: MailboxId, _: &'a MailboxName) -> Asked<'a, ()> {
        changes::impossible()
    }

    fn subscribe<'a>(&'a self, _: &'a MailboxName, _: bool) -> Asked<'a, ()> {
        changes::impossible()
    }

    fn append(&self, mailbox: MailboxId, message: AppendRequest) -> Asked<'_, Box<dyn MessageWriter>> {
        Box::pin(async move { append::begin(Arc::clone(self.mailbox(mailbox)?.core()), message).await })
    }
}
