//! A store of mailboxes over Maildirs, and its logins.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use posthaste_intake::{Intake, MemoryBudget};
use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::time::{Instant, sleep, timeout};

use super::account::{LISTINGS_MAX, MaildirAccount};
use super::appender::FileWriter;
use super::core::MailboxCore;
use super::file_work::{FileWork, run, turn, turns};
use super::gone_dirs::sweep_at_times;
use super::header_cache::{HEADER_CACHE_FILE, HeaderCache};
use super::loaded::LoadedMailboxes;
use super::locks::lock;
use super::mail_account::{names_now, open_folder, place_copies};
use super::mailbox::MaildirMailbox;
use super::quota::inbox_of;
use super::shared::{IsPending, Shared};
use super::upkeep::{note_listings, write_uid_lists, write_when_idle};
use crate::error::{Asked, MailstoreError};
use crate::ledger::{GrownMailboxes, MailLedger, MailLedgerError};
use crate::name::{FolderTable, MailboxName};
use crate::snapshot::Source;
use crate::store::{MailAccount, Mailstore, QuotaLimits, QuotaTable};

/// Timeout of RCPT for a look at a full account.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Finds the Maildir of a login: its path below the root of all mail.
pub type FindMaildir = dyn Fn(&str) -> Option<MailboxPath> + Send + Sync;

/// Mailboxes over the Maildirs below one directory.
pub struct MaildirStore {
    pub(super) shared: Arc<Shared>,
    /// Mailboxes that sessions have asked for.
    pub(super) loaded: Arc<LoadedMailboxes<MaildirMailbox>>,
    accounts: Mutex<HashMap<MailboxPath, Arc<MaildirAccount>>>,
}

/// The accounts of logins.
pub struct MaildirLogins {
    store: Arc<MaildirStore>,
    find: Box<FindMaildir>,
    has_usual_folders: bool,
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
        let grown = ledger.grown();
        let shared = Shared::new(root, MailRoot::open(root)?, ledger, is_pending, header_cache);
        let shared = Arc::new(shared.map_err(io::Error::other)?);
        let loaded = Arc::new(LoadedMailboxes::new());
        tokio::spawn(sweep_at_times(Arc::downgrade(&shared.gone_dirs)));
        tokio::spawn(tell_sessions(grown, Arc::downgrade(&loaded)));
        tokio::spawn(write_when_idle(Arc::downgrade(&shared), Arc::downgrade(&loaded)));
        Ok(Self { shared, loaded, accounts: Mutex::default() })
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
        self.shared.name_usual_folders(folders);
    }

    /// The ledger of its UIDs and flags.
    pub fn ledger(&self) -> &Arc<MailLedger> {
        &self.shared.ledger
    }

    pub(super) fn account(&self, inbox: &MailboxPath) -> Arc<MaildirAccount> {
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox.clone()).or_insert_with(|| {
            let shared = Arc::clone(&self.shared);
            let loaded = Arc::clone(&self.loaded);
            let inbox = inbox.clone();
            let (owner, mailboxes, folders) = (OnceLock::new(), Mutex::default(), Mutex::default());
            let (is_set_up, listing) = (AtomicBool::new(false), turns(LISTINGS_MAX));
            let renaming = turns(1);
            Arc::new_cyclic(|me| MaildirAccount {
                me: me.clone(),
                shared,
                loaded,
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
        let placed = place_copies(&account, path);
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
    pub(super) fn find_inbox(&self, inbox: &MailboxPath) -> Result<Option<u32>, MailLedgerError> {
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
    pub(super) fn open_folder(&self, path: &MailboxPath) -> Option<Arc<MailboxCore>> {
        self.shared.ledger.check_open().ok()?;
        let inbox = MailboxPath::parse(path.as_str().rsplit_once("/.")?.0).ok()?;
        let opened = open_folder(&self.account(&inbox), path);
        self.forget_unused(&inbox);
        opened
    }

    /// Makes an INBOX, and returns its id, with UIDs enabled. Blocks.
    pub(super) fn make_inbox(&self, inbox: &MailboxPath) -> Option<u32> {
        let made = self.account(inbox).make_inbox();
        self.forget_unused(inbox);
        made
    }

    /// Sets the limits. Existing mail stays.
    pub fn limit(&self, table: QuotaTable) {
        self.shared.quotas.limit(table);
    }

    /// Limits of the account that a Maildir belongs to.
    pub(super) fn limits_of(&self, path: &str) -> QuotaLimits {
        self.shared.quotas.limits_of(inbox_of(path))
    }

    /// Looks at the mailboxes of a full account. False if that was done a moment ago.
    pub(super) async fn look_at_account(&self, path: &str) -> bool {
        let Ok(inbox) = MailboxPath::parse(inbox_of(path)) else { return false };
        let account = self.account(&inbox);
        let all = account.blocking(|account| {
            let owner = account.load()?.id;
            if !account.shared.quotas.begin_look(owner) {
                return Err(MailstoreError::Limit);
            }
            let ids = names_now(account)?.into_values();
            Ok((owner, ids.filter_map(|id| account.mailbox(id).ok()).collect::<Vec<_>>()))
        });
        let is_done = match all.await {
            Ok((owner, mailboxes)) => {
                let looks = async {
                    for mailbox in &mailboxes {
                        // One that cannot be read has the mail that is known.
                        let _ = mailbox.look().await;
                    }
                };
                // A slow one goes on, and is known to the next who asks.
                let _ = timeout(LOOK_PATIENCE, looks).await;
                self.shared.quotas.forget(owner);
                true
            }
            Err(_) => false,
        };
        drop(account);
        self.forget_unused(&inbox);
        is_done
    }

    /// True if the account of a Maildir has room for `bytes` more. Mail of the last second may not be counted.
    /// Blocks.
    pub(super) fn has_room(&self, path: &str, bytes: u64) -> bool {
        let inbox = inbox_of(path);
        let limits = self.limits_of(path);
        if limits.is_none() {
            return true;
        }
        // Mail is not refused because nobody knows.
        let Ok(inbox) = MailboxPath::parse(inbox) else { return true };
        let used = match self.shared.owner(&inbox) {
            Ok(Some(account)) => self.shared.quotas.known_use(&self.shared.ledger, account, &limits, inbox.as_str()),
            Ok(None) => Ok((0, 0)),
            Err(error) => Err(error),
        };
        used.map_or(true, |(used, messages)| limits.allow((used.saturating_add(bytes), messages + 1)))
    }

    /// Records the last listing of each mailbox's directories, so that first sessions after the next start need not
    /// wait. Call it before the ledger ends.
    pub fn note_listings(&self) {
        note_listings(&self.shared.ledger, &self.loaded);
    }

    /// Writes changed UID lists at the end of the server. Blocks.
    pub fn write_uid_lists(&self) {
        write_uid_lists(&self.loaded, true);
    }
}

/// Wakes the sessions of mailboxes that have new entries.
async fn tell_sessions(grown: GrownMailboxes, loaded: Weak<LoadedMailboxes<MaildirMailbox>>) {
    while let Some(mailboxes) = grown.next().await {
        let begun = Instant::now();
        let Some(loaded) = loaded.upgrade() else { return };
        for id in mailboxes {
            // Without a session the next one takes the entries in. A mailbox that was left behind is read again by its next look.
            if let Some(mailbox) = loaded.find(id).filter(LoadedMailboxes::has_session) {
                let _ = mailbox.catch_up();
            }
        }
        drop(loaded);
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
