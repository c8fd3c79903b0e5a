//! Mailboxes over Maildirs: their UIDs and flags are kept by the ledger.
//!
//! A file keeps its UID as long as its key (the part of its name before flags and sizes) is the same. A UID is never
//! reused. Files of other programs get UIDs at the next look, durable before any client sees them.

mod account;
mod answers;
mod append;
mod arrivals;
mod as_listed;
#[cfg(test)]
mod as_listed_tests;
mod awaited;
mod body;
mod boot;
mod change_queue;
#[cfg(test)]
mod change_tests;
mod changes;
mod copies;
#[cfg(test)]
mod copies_tests;
mod core;
mod file;
mod file_work;
mod first_login;
mod folder_changes;
#[cfg(test)]
mod folder_tests;
mod gathered;
mod gone_dirs;
mod header_cache;
mod hot_dirs;
mod keywords;
mod known_files;
mod layout;
mod listed;
mod loaded;
mod locks;
mod looks;
mod mailbox;
mod missing;
mod moved_paths;
mod names;
mod names_out;
mod opening;
mod owner;
mod pending;
mod quota;
#[cfg(test)]
mod quota_tests;
mod read_turns;
mod reading;
mod rebuild;
#[cfg(test)]
mod rebuild_tests;
mod rekeyed;
mod scan;
mod scratch;
mod seconds;
mod stamp;
mod state;
mod takeover;
#[cfg(test)]
mod tests;
mod told;
mod uid_lists;
mod unchanged;
mod verify;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use posthaste_intake::{Intake, MemoryBudget};
use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use self::account::{LISTINGS_MAX, MaildirAccount};
use self::append::MailAppender;
pub use self::append::{FileWriter, ForgetMail, SettleFiles};
pub use self::arrivals::MailArrivals;
use self::copies::CopyNames;
use self::core::MailboxCore;
use self::file_work::{FileWork, run, turn};
use self::gone_dirs::{GoneDirs, sweep_at_times};
use self::header_cache::{HEADER_CACHE_FILE, HeaderCache};
use self::hot_dirs::HotDirs;
use self::loaded::LoadedMailboxes;
use self::locks::lock;
use self::moved_paths::MovedPaths;
pub use self::names::mailbox_of_folder;
use self::owner::Owner;
use self::quota::Quotas;
use self::read_turns::ReadTurns;
pub use self::verify::{Finding, FindingKind, SpoolLook, Verified, VerifiedPlaces, VerifyError, verify_mailboxes};
use crate::error::{Asked, MailstoreError};
use crate::ledger::{GrownMailboxes, MailLedger, MailLedgerError};
use crate::name::{FolderTable, MailboxName, UsualFolders};
use crate::store::{MailAccount, Mailstore};

/// Finds the Maildir of a login: its path below the root of all mail.
pub type FindMaildir = dyn Fn(&str) -> Option<MailboxPath> + Send + Sync;

/// True while delivery has not made all files of a batch.
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
    appender: MailAppender,
    copy_names: CopyNames,
    quotas: Quotas,
    /// Number of rebuilt mailboxes: since then paths stand for other ids.
    replaced: AtomicU64,
    header_cache: HeaderCache,
    hot_dirs: Arc<HotDirs>,
    /// Permits for threads that read messages, shared by all mailboxes.
    read_turns: Arc<Semaphore>,
    /// Folders of new accounts.
    usual_folders: RwLock<FolderTable>,
    moved_paths: MovedPaths,
    /// Accounts by path of their INBOX; `None` until needed.
    account_ids: Mutex<Option<HashMap<String, u32>>>,
}

impl Shared {
    /// Names of the folders that the first login of the account with this INBOX makes.
    fn usual_folders(&self, inbox: &MailboxPath) -> Arc<UsualFolders> {
        let folders = self.usual_folders.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(folders.of(inbox.as_str()))
    }

    /// The account of an INBOX, if it is in the ledger. Blocks.
    fn owner(&self, inbox: &MailboxPath) -> Result<Option<u32>, MailLedgerError> {
        let mut ids = lock(&self.account_ids);
        if ids.is_none() {
            let rows = self.ledger.accounts()?.into_iter();
            *ids = Some(rows.map(|(id, row)| (String::from_utf8_lossy(&row.name).into_owned(), id)).collect());
        }
        Ok(ids.as_ref().and_then(|ids| ids.get(inbox.as_str()).copied()))
    }

    /// Records that the ledger has an account.
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
    /// Errors of `open`; see [`MailRoot::open`].
    pub fn open(root: &Path, ledger: Arc<MailLedger>, is_pending: Box<IsPending>) -> io::Result<Self> {
        Self::open_with(root, ledger, is_pending, HeaderCache::none())
    }

    /// Like [`open`](Self::open), with a cache of header fields in the directory `cache`, which can be rebuilt from the
    /// mail.
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
        // A kill came between their batch and their directories.
        let pending = ledger.pending_directories().map_err(io::Error::other)?.into_iter();
        let leaving = pending.filter_map(|pending| String::from_utf8(pending.from.into()).ok());
        let (moved_paths, grown) = (MovedPaths::of(leaving), ledger.grown());
        let (loaded, account_ids) = (LoadedMailboxes::default(), Mutex::default());
        let gone_dirs = Arc::new(GoneDirs::new(Arc::clone(&root), root_path));
        tokio::spawn(sweep_at_times(Arc::downgrade(&gone_dirs)));
        let (appender, copy_names, quotas) = (MailAppender::default(), CopyNames::new(), Quotas::default());
        let shared = Arc::new(Shared {
            root,
            ledger,
            is_pending,
            loaded,
            gone_dirs,
            appender,
            copy_names,
            quotas,
            replaced: AtomicU64::new(0),
            header_cache,
            hot_dirs: HotDirs::new(root_path),
            read_turns: ReadTurns::of_all(),
            usual_folders: RwLock::default(),
            moved_paths,
            account_ids,
        });
        tokio::spawn(tell_sessions(grown, Arc::downgrade(&shared)));
        tokio::spawn(uid_lists::write_when_idle(Arc::downgrade(&shared)));
        Ok(Self { shared, accounts: Mutex::default() })
    }

    /// Enables APPEND: `intake` makes messages durable, and `writer` makes their files in the Maildirs. They share the
    /// memory of arriving mail. Blocks for a sync of the spool.
    pub fn open_for_append(&self, intake: Intake, writer: FileWriter, memory: MemoryBudget) {
        // The first mail waits only briefly for its mailbox. A spool that accepts nothing now refuses that mail, too.
        let _ = self.ledger().check_open();
        self.shared.appender.open(intake, writer, memory);
    }

    /// Sets the names of the folders that first logins make. Existing folders stay.
    pub fn name_usual_folders(&self, folders: FolderTable) {
        *self.shared.usual_folders.write().unwrap_or_else(PoisonError::into_inner) = folders;
    }

    /// The ledger of its UIDs and flags.
    pub fn ledger(&self) -> &Arc<MailLedger> {
        &self.shared.ledger
    }

    fn account(&self, inbox: &MailboxPath) -> Arc<MaildirAccount> {
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox.clone()).or_insert_with(|| {
            let (shared, inbox) = (Arc::clone(&self.shared), inbox.clone());
            let (owner, mailboxes, folders) = (OnceLock::new(), Mutex::default(), Mutex::default());
            let (is_set_up, listing) = (AtomicBool::new(false), file_work::turns(LISTINGS_MAX));
            let renaming = file_work::turns(1);
            Arc::new_cyclic(|me| MaildirAccount {
                me: me.clone(),
                shared,
                inbox,
                owner,
                mailboxes,
                folders,
                is_set_up,
                listing,
                renaming,
            })
        });
        Arc::clone(account)
    }

    /// Places copies that a kill left in `tmp/` of a mailbox, before a cleanup mistakes them for unfinished files. A
    /// Maildir without UIDs has none. Blocks.
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

    /// Drops one unused account when there are a hundred thousand.
    fn forget_unused(&self, inbox: &MailboxPath) {
        let mut accounts = lock(&self.accounts);
        if accounts.get(inbox).is_some_and(MaildirAccount::is_unused) {
            accounts.remove(inbox);
        }
    }

    /// The id of an INBOX in the ledger, with UIDs enabled. `None` if it must be made. Blocks, without access to the
    /// mount.
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

    /// The folder of a path, if its directory exists; UIDs are enabled then. Blocks.
    fn open_folder(&self, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
        self.shared.ledger.check_open().ok()?;
        let inbox = MailboxPath::parse(path.as_str().rsplit_once("/.")?.0).ok()?;
        let opened = self.account(&inbox).open_folder(path);
        self.forget_unused(&inbox);
        opened
    }

    /// Makes an INBOX, and returns its id, with UIDs enabled. Blocks.
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
    /// `find` maps logins to Maildirs, and must not block.
    pub fn new(store: Arc<MaildirStore>, find: Box<FindMaildir>) -> Self {
        Self { store, find, has_usual_folders: false }
    }

    /// An account without folders gets the usual ones at its first login.
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
            if !account.is_ready() {
                let (loading, makes_folders) = (Arc::clone(&account), self.has_usual_folders);
                let load = move |work: &FileWork<()>| {
                    loading.load()?;
                    loading.set_up(makes_folders, work);
                    Ok(())
                };
                run(turn(&account.listing), load).await?;
            }
            Ok(account as _)
        })
    }
}
