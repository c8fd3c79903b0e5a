//! The mailboxes of one Maildir with its folders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use posthaste_maildir::MailboxPath;
use tokio::sync::Semaphore;

use super::answers::refusal;
use super::file_work::{FileWork, run, turn};
use super::known_mailboxes::KnownMailboxes;
use super::loaded::LoadedMailboxes;
use super::locks::lock;
use super::mailbox::MaildirMailbox;
use super::names;
use super::owner::Owner;
use super::shared::Shared;
use crate::entry::MailEntry;
use crate::error::MailstoreError;
use crate::ledger::MailLedgerError;
use crate::name::{MailboxName, SpecialUse};
use crate::row::MailboxId;

/// Maximum threads that list the folders of one account: a hanging disk blocks no more.
pub(super) const LISTINGS_MAX: usize = 4;
/// Maximum mailboxes and subscribed names of an account.
pub(super) const MAILBOXES_MAX: usize = 10_000;

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

    /// Runs blocking `work` on a thread, once it has a permit. Gives up after five minutes on a hanging disk.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, MailstoreError> + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let me = self.me.upgrade().ok_or(MailstoreError::NoMailbox)?;
        run(turn(&self.listing), move |_| work(&me)).await
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

    /// Lists the present folders, without retrying pending changes. Blocks.
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

    pub fn mailbox(&self, id: MailboxId) -> Result<Arc<MaildirMailbox>, MailstoreError> {
        lock(&self.mailboxes).by_id.get(&id).cloned().ok_or(MailstoreError::NoMailbox)
    }
}
