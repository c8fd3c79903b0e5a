//! Makes missing folders and subscriptions at a first login. After a failure, or while other changes of names run, the
//! session gets the existing folders: a hanging disk delays no further login. The next login tries again. Blocks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::account::{MAILBOXES_MAX, MaildirAccount};
use super::answers::refusal;
use super::file_work::FileWork;
use super::folder_changes::FolderChanges;
use super::locks::try_lock;
use super::names::subscribed_names;
use crate::entry::MailEntry;
use crate::error::MailstoreError;
use crate::name::{MailboxName, SpecialUse};
use crate::table::NameRow;

impl MaildirAccount {
    /// Makes missing folders and subscriptions at a first login. After a failure the session has the existing folders,
    /// and so has one that finds names being changed: a disk that hangs holds up no further login. The next login tries
    /// again. Blocks.
    pub(super) fn set_up(&self, makes_folders: bool, work: &FileWork<()>) {
        if self.is_set_up.load(Ordering::Relaxed) {
            return;
        }
        let Some(_one) = try_lock(&self.folders) else { return };
        match self.set_up_now(makes_folders, work) {
            Ok(()) => self.is_set_up.store(true, Ordering::Relaxed),
            Err(error) => {
                let (mailbox, error) = (self.inbox.as_str(), error.to_string());
                tracing::warn!(mailbox, error, "the usual folders cannot be created; the next login tries again");
            }
        }
    }

    /// Subscriptions first, in one batch. So a cut leaves names without folders, which the next login makes.
    fn set_up_now(&self, makes_folders: bool, work: &FileWork<()>) -> Result<(), MailstoreError> {
        let mut known = self.known_names()?;
        let is_new = known.keys().all(MailboxName::is_inbox);
        if !is_new && !known.values().any(awaits_folder) {
            return Ok(());
        }
        let mut folders = FolderChanges::new(self)?;
        if is_new {
            let names = self.first_subscriptions(&folders, makes_folders)?;
            if names.is_empty() {
                return Ok(());
            }
            self.subscribe_all(&names)?;
            known = self.known_names()?;
        }
        // Names of other kinds: the account had folders of its own, and a subscription is no wish for a mailbox.
        let usual = self.shared.usual_folders(&self.inbox);
        let is_usual = |name: &MailboxName| name.is_inbox() || usual.special_use(name).is_some();
        if !makes_folders || !known.keys().chain(folders.names()).all(is_usual) {
            return Ok(());
        }
        for special_use in SpecialUse::ALL {
            let name = usual.name(special_use);
            if known.get(name).is_some_and(awaits_folder) && !folders.names().any(|found| found == name) {
                folders.create(name, Some(special_use), &|| work.step())?;
            }
        }
        Ok(())
    }

    fn known_names(&self) -> Result<BTreeMap<MailboxName, NameRow>, MailstoreError> {
        let names = self.shared.ledger.names(self.load()?.id).map_err(|error| refusal(&error))?.1.into_iter();
        let name = |name: &[u8]| MailboxName::parse(std::str::from_utf8(name).ok()?).ok();
        Ok(names.filter_map(|(octets, row)| Some((name(&octets)?, row))).collect())
    }

    /// Initial subscriptions: the usual folders if there are none, else Dovecot's list, else all folders, so that
    /// clients show them.
    fn first_subscriptions(
        &self,
        folders: &FolderChanges<'_>,
        makes_folders: bool,
    ) -> Result<Vec<MailboxName>, MailstoreError> {
        let found: Vec<MailboxName> = folders.names().filter(|name| !name.is_inbox()).cloned().collect();
        if found.is_empty() && makes_folders {
            let usual = self.shared.usual_folders(&self.inbox);
            return Ok(SpecialUse::ALL.map(|special_use| usual.name(special_use).clone()).into());
        }
        let root = &self.shared.root;
        let failed = |error: std::io::Error| MailstoreError::Unavailable(error.to_string());
        let Some(list) = root.subscriptions(&self.inbox).map_err(failed)? else { return Ok(found) };
        let mut names = subscribed_names(&list);
        names.truncate(MAILBOXES_MAX);
        Ok(names)
    }

    fn subscribe_all(&self, names: &[MailboxName]) -> Result<(), MailstoreError> {
        let owner = self.load()?;
        if !owner.is_durable() && self.make_inbox().is_none() {
            return Err(MailstoreError::Unavailable("the account cannot be made now".to_owned()));
        }
        let entry = |name: &MailboxName| {
            let name = Bytes::copy_from_slice(name.as_str().as_bytes());
            MailEntry::Subscription { account: owner.id, name, is_on: true }
        };
        let entries: Vec<MailEntry> = names.iter().map(entry).collect();
        self.shared.ledger.append(&entries).map(drop).map_err(|error| refusal(&error))
    }
}

/// True if a name is subscribed and never had a mailbox.
fn awaits_folder(row: &NameRow) -> bool {
    row.is_subscribed && row.mailbox == 0 && row.last_validity == 0
}
