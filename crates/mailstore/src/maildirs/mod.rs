//! Mailboxes over Maildirs: their UIDs and flags are kept by the ledger.
//!
//! A file's UID stays the same while its key (the part of its name before flags and sizes) does, whatever happens to its flags. A UID is never given twice.
//! Files that other programs put there get their UIDs when a session looks, durable before any client sees them.

mod body;
mod file;
mod keywords;
mod mailbox;
mod names;
mod scan;
mod state;
mod takeover;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use self::body::ended;
use self::mailbox::{MaildirMailbox, Owner, lock};
use crate::error::MailstoreError;
use crate::ledger::{LedgerError, MailLedger};
use crate::listing::{AccountListing, listed};
use crate::name::MailboxName;
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{Asked, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore};

/// Which Maildir a login has: its path below the root of all mail.
pub type FindMaildir = dyn Fn(&str) -> Option<MailboxPath> + Send + Sync;

/// Mailboxes over the Maildirs below one directory.
pub struct MaildirStore {
    shared: Arc<Shared>,
    find: Box<FindMaildir>,
    accounts: Mutex<HashMap<MailboxPath, Arc<MaildirAccount>>>,
}

struct Shared {
    root: Arc<MailRoot>,
    ledger: Arc<MailLedger>,
    /// By the path of its INBOX; `None` until it is needed.
    account_ids: Mutex<Option<HashMap<String, u32>>>,
}

impl Shared {
    /// The account of an INBOX, and whether the ledger has it. Blocks.
    fn owner(&self, inbox: &MailboxPath) -> Result<Owner, LedgerError> {
        let mut ids = lock(&self.account_ids);
        if ids.is_none() {
            let rows = self.ledger.accounts()?.into_iter();
            *ids = Some(rows.map(|(id, row)| (String::from_utf8_lossy(&row.name).into_owned(), id)).collect());
        }
        let known = ids.as_ref().and_then(|ids| ids.get(inbox.as_str()).copied());
        Ok(Owner::new(known.unwrap_or_else(|| self.ledger.new_account()), inbox.clone(), known.is_some()))
    }
}

impl MaildirStore {
    /// Opens the directory that all Maildirs are below. `find` knows the Maildir of each login, and must not block.
    ///
    /// # Errors
    /// Those of `open`; see [`MailRoot::open`].
    pub fn open(root: &Path, ledger: Arc<MailLedger>, find: Box<FindMaildir>) -> io::Result<Self> {
        let root = Arc::new(MailRoot::open(root)?);
        let shared = Arc::new(Shared { root, ledger, account_ids: Mutex::default() });
        Ok(Self { shared, find, accounts: Mutex::default() })
    }

    fn find_account(&self, login: &str) -> Option<Arc<MaildirAccount>> {
        let inbox = (self.find)(login)?;
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox).or_insert_with_key(|inbox| {
            let (shared, inbox) = (Arc::clone(&self.shared), inbox.clone());
            Arc::new(MaildirAccount { shared, inbox, owner: OnceCell::new(), mailboxes: Mutex::default() })
        });
        Some(Arc::clone(account))
    }
}

impl fmt::Debug for MaildirStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaildirStore").finish_non_exhaustive()
    }
}

impl Mailstore for MaildirStore {
    fn account<'a>(&'a self, login: &'a str) -> Asked<'a, Arc<dyn MailAccount>> {
        Box::pin(async move {
            let account = self.find_account(login).ok_or(MailstoreError::NoMailbox)?;
            account.load().await?;
            Ok(account as _)
        })
    }
}

/// The mailboxes of one Maildir with its folders.
struct MaildirAccount {
    shared: Arc<Shared>,
    inbox: MailboxPath,
    owner: OnceCell<Arc<Owner>>,
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
    /// Reads ids from the ledger, once.
    async fn load(&self) -> Result<&Arc<Owner>, MailstoreError> {
        let load = async || {
            let (shared, inbox) = (Arc::clone(&self.shared), self.inbox.clone());
            let read = move || {
                let owner = shared.owner(&inbox)?;
                let names = if owner.is_durable() { shared.ledger.names(owner.id)?.1 } else { BTreeMap::new() };
                Ok::<_, LedgerError>((owner, names))
            };
            let (owner, names) = spawn_blocking(read).await.map_err(ended)?.map_err(|error| {
                tracing::error!(error = error.to_string(), "the table of mailboxes cannot be read");
                MailstoreError::Unavailable(error.to_string())
            })?;
            let named = names.iter().filter(|(_, row)| row.mailbox != 0).filter_map(|(name, row)| {
                Some((MailboxName::parse(std::str::from_utf8(name).ok()?).ok()?, MailboxId(row.mailbox)))
            });
            lock(&self.mailboxes).ids = named.collect();
            Ok(Arc::new(owner))
        };
        self.owner.get_or_try_init(load).await
    }

    /// Lists the folders that are there now.
    async fn names(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        let owner = Arc::clone(self.load().await?);
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
        Ok(named.map(|(name, path)| (name.clone(), self.id_of(&mut known, &owner, name, path))).collect())
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
                let shared = (Arc::clone(&self.shared.root), Arc::clone(ledger));
                let mailbox = MaildirMailbox::new(shared, Arc::clone(owner), id, name, path);
                known.by_id.insert(id, Arc::new(mailbox));
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
            let names = self.names().await?;
            Ok(Box::new(AccountListing::new(self, options, listed(&names, patterns))) as _)
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

    fn select(&self, mailbox: MailboxId, read_only: bool) -> Asked<'_, Box<dyn MailboxView>> {
        Box::pin(async move {
            let view = SnapshotView::select(self.mailbox(mailbox)?, !read_only).await?;
            Ok(Box::new(view) as _)
        })
    }
}
