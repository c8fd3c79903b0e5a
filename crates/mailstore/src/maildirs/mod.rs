//! Mailboxes over existing Maildirs, read only: UIDs are kept in memory and are of one run.
//!
//! A file's UID stays the same while its key (the part of its name before flags and sizes), inode, size and time do, whatever happens to its flags.
//! A UID is never given twice. UIDVALIDITY is the time of the start.

mod body;
mod file;
mod mailbox;
mod names;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use self::body::ended;
use self::mailbox::{MaildirMailbox, lock};
use crate::error::MailstoreError;
use crate::listing::{AccountListing, listed};
use crate::name::MailboxName;
use crate::pattern::NamePattern;
use crate::row::{MailboxId, MailboxStatus, Uid, UidValidity};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{Asked, ListOptions, MailAccount, MailboxListing, MailboxView, Mailstore};

/// Which Maildir a login has: its path below the root of all mail.
pub type FindMaildir = dyn Fn(&str) -> Option<MailboxPath> + Send + Sync;

/// Mailboxes over the Maildirs below one directory.
pub struct MaildirStore {
    root: Arc<MailRoot>,
    find: Box<FindMaildir>,
    uid_validity: UidValidity,
    /// Until then a start before this one may have the same UIDVALIDITY.
    from: Instant,
    accounts: Mutex<HashMap<MailboxPath, Arc<MaildirAccount>>>,
}

impl MaildirStore {
    /// Opens the directory that all Maildirs are below. `find` knows the Maildir of each login, and must not block.
    ///
    /// # Errors
    /// Those of `open`; see [`MailRoot::open`].
    pub fn open(root: &Path, find: Box<FindMaildir>) -> io::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let secs = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        // UIDs are given once this second is over, so the next start has another one.
        let from = Instant::now() + Duration::from_secs(1) - Duration::from_nanos(since.subsec_nanos().into());
        Ok(Self {
            root: Arc::new(MailRoot::open(root)?),
            find,
            uid_validity: UidValidity(Uid::new(secs).or(Uid::new(1)).expect("it is not 0").0),
            from,
            accounts: Mutex::default(),
        })
    }

    /// UIDVALIDITY of all mailboxes, until the next start.
    pub fn uid_validity(&self) -> UidValidity {
        self.uid_validity
    }

    fn find_account(&self, login: &str) -> Option<Arc<MaildirAccount>> {
        let inbox = (self.find)(login)?;
        let mut accounts = lock(&self.accounts);
        let account = accounts.entry(inbox).or_insert_with_key(|inbox| {
            Arc::new(MaildirAccount {
                root: Arc::clone(&self.root),
                inbox: inbox.clone(),
                uid_validity: self.uid_validity,
                mailboxes: Mutex::default(),
            })
        });
        Some(Arc::clone(account))
    }
}

impl fmt::Debug for MaildirStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaildirStore").field("uid_validity", &self.uid_validity).finish_non_exhaustive()
    }
}

impl Mailstore for MaildirStore {
    fn account<'a>(&'a self, login: &'a str) -> Asked<'a, Arc<dyn MailAccount>> {
        Box::pin(async move {
            let account = self.find_account(login).ok_or(MailstoreError::NoMailbox)?;
            sleep_until(self.from).await;
            Ok(account as _)
        })
    }
}

/// The mailboxes of one Maildir with its folders.
struct MaildirAccount {
    root: Arc<MailRoot>,
    inbox: MailboxPath,
    uid_validity: UidValidity,
    mailboxes: Mutex<KnownMailboxes>,
}

/// All mailboxes seen in this run: one that is removed and comes back goes on with its UIDs.
#[derive(Default)]
struct KnownMailboxes {
    by_name: HashMap<MailboxName, MailboxId>,
    /// That of id 1 first.
    all: Vec<Arc<MaildirMailbox>>,
    has_told_left_out: bool,
}

impl MaildirAccount {
    /// Lists the folders that are there now.
    async fn names(&self) -> Result<BTreeMap<MailboxName, MailboxId>, MailstoreError> {
        let (root, inbox) = (Arc::clone(&self.root), self.inbox.clone());
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
        Ok(found.named.into_iter().map(|(name, path)| (name.clone(), self.id_of(&mut known, name, path))).collect())
    }

    fn id_of(&self, known: &mut KnownMailboxes, name: MailboxName, path: MailboxPath) -> MailboxId {
        if let Some(id) = known.by_name.get(&name) {
            let mailbox = &known.all[id.0 as usize - 1];
            if mailbox.path() != path {
                mailbox.set_path(path);
            }
            return *id;
        }
        let id = MailboxId(known.all.len() as u32 + 1);
        let mailbox = MaildirMailbox::new(Arc::clone(&self.root), id, path, name.is_inbox(), self.uid_validity);
        known.all.push(Arc::new(mailbox));
        known.by_name.insert(name, id);
        id
    }

    fn mailbox(&self, id: MailboxId) -> Result<Arc<MaildirMailbox>, MailstoreError> {
        let at = (id.0 as usize).checked_sub(1).ok_or(MailstoreError::NoMailbox)?;
        lock(&self.mailboxes).all.get(at).cloned().ok_or(MailstoreError::NoMailbox)
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
            let known = lock(&self.mailboxes).by_name.get(name).copied();
            if let Some(id) = known {
                let mailbox = self.mailbox(id)?;
                if spawn_blocking(move || mailbox.is_there()).await.map_err(ended)? {
                    return Ok(known);
                }
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
