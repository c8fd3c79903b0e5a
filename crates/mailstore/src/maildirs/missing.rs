//! Folders that another program has removed: one that comes back within a week continues its UIDs (decision 60).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use posthaste_maildir::MailboxPath;

use super::account::MaildirAccount;
use super::answers::refusal;
use super::core::MailboxCore;
use super::known_mailboxes::{KnownMailboxes, MissingFolder};
use super::locks::{lock, try_lock};
use crate::entry::{MailEntry, MailboxFields};
use crate::error::MailstoreError;
use crate::ledger::MailLedgerError;
use crate::name::MailboxName;
use crate::row::MailboxId;
use crate::table::FileNote;

/// Whole days for which the UIDs of a missing folder are kept.
const KEPT_DAYS: u16 = 7;

impl MaildirAccount {
    /// Notes which mailboxes have no directory, and forgets those that had none for a week. Without the directory of
    /// INBOX nothing is missing: its disk may not be mounted. Blocks.
    pub(super) fn note_missing(&self, found: &BTreeMap<MailboxName, MailboxId>, now: Instant) {
        let expired = match self.expired(found, now) {
            Ok(expired) => expired,
            Err(error) => {
                tracing::error!(error = error.to_string(), "the table of mailboxes cannot be read");
                return;
            }
        };
        // During a change of names the next list does it.
        let Some(_one) = try_lock(&self.folders) else { return };
        for id in expired {
            if let Err(error) = self.missing_core(id).and_then(|core| self.forget_missing(&core)) {
                let (mailbox, error) = (self.inbox.as_str(), error.to_string());
                tracing::warn!(mailbox, error, "a folder that is gone cannot be forgotten now; retrying");
            }
        }
    }

    /// Notes that a mailbox has a directory.
    pub(super) fn is_not_missing(&self, id: MailboxId) {
        let mut known = lock(&self.mailboxes);
        if known.missing.0.as_mut().is_some_and(|days| days.remove(&id).is_some()) {
            self.shared.ledger.note(&[FileNote::Missing { mailbox: id.0, day: 0 }]);
        }
    }

    /// The mailbox of an id, which no list has shown in this opening.
    fn missing_core(&self, id: MailboxId) -> Result<Arc<MailboxCore>, MailstoreError> {
        let owner = self.load()?;
        let mut known = lock(&self.mailboxes);
        let name = known.ids.iter().find(|(_, of)| **of == id).map(|(name, _)| name.clone());
        let head = self.shared.ledger.head_without_tail(id.0).map_err(|error| refusal(&error))?;
        let directory = head.and_then(|head| String::from_utf8(head.directory.to_vec()).ok());
        let path = directory.and_then(|directory| MailboxPath::parse(&directory).ok());
        let (Some(name), Some(path)) = (name, path) else { return Err(MailstoreError::NoMailbox) };
        let id = self.id_of(&mut known, owner, name, path);
        known.by_id.get(&id).map(|mailbox| Arc::clone(mailbox.core())).ok_or(MailstoreError::NoMailbox)
    }

    /// Mailboxes that have been missing for longer than UIDs are kept.
    fn expired(
        &self,
        found: &BTreeMap<MailboxName, MailboxId>,
        now: Instant,
    ) -> Result<Vec<MailboxId>, MailLedgerError> {
        let there: HashSet<MailboxId> = found.values().copied().collect();
        if !self.has_missing(there.len(), now)? {
            return Ok(Vec::new());
        }
        // Not while the mailboxes are locked: it may hang.
        let is_mounted = self.shared.root.reader(&self.inbox).is_ok();
        let mut known = lock(&self.mailboxes);
        let ledger = &self.shared.ledger;
        let KnownMailboxes { ids, pending, missing, .. } = &mut *known;
        let missing = missing.0.get_or_insert_default();
        let all: HashSet<MailboxId> = ids.values().copied().collect();
        let mut notes = Vec::new();
        missing.retain(|id, folder| {
            let is_back = there.contains(id);
            if is_back {
                notes.push(FileNote::Missing { mailbox: id.0, day: 0 });
            } else if !is_mounted {
                // Nobody knows if it is there.
                folder.begun = now;
            } else if folder.count(now) {
                notes.push(FileNote::Missing { mailbox: id.0, day: folder.day });
            }
            !is_back && all.contains(id)
        });
        for id in all.iter().filter(|id| is_mounted && !there.contains(id)) {
            if !missing.contains_key(id) && !pending.has(*id) && ledger.head_without_tail(id.0)?.is_some() {
                notes.push(FileNote::Missing { mailbox: id.0, day: 1 });
                missing.insert(*id, MissingFolder { day: 1, begun: now });
            }
        }
        ledger.note(&notes);
        let expired = missing.iter().filter(|(_, folder)| is_mounted && folder.day > KEPT_DAYS);
        Ok(expired.map(|(id, _)| *id).collect())
    }

    /// True if mailboxes are or were missing. Reads from the ledger, once, for how long.
    fn has_missing(&self, there: usize, now: Instant) -> Result<bool, MailLedgerError> {
        let mut known = lock(&self.mailboxes);
        if known.missing.0.is_none() {
            let mut missing = HashMap::new();
            for id in known.ids.values() {
                let day = self.shared.ledger.head_without_tail(id.0)?.map_or(0, |head| head.missing_day);
                missing.extend((day != 0).then_some((*id, MissingFolder { day, begun: now })));
            }
            known.missing.0 = Some(missing);
        }
        Ok(there != known.ids.len() || known.missing.0.as_ref().is_some_and(|days| !days.is_empty()))
    }

    /// Forgets a mailbox whose directory is gone. `folders` is locked.
    fn forget_missing(&self, core: &MailboxCore) -> Result<(), MailstoreError> {
        let ledger = &self.shared.ledger;
        let (path, name) = (lock(&core.path).clone(), lock(&core.name).clone());
        let lsn = {
            let _nothing_is_added = core.adding.blocking_write();
            let _one = lock(&core.changing);
            match self.shared.root.reader(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => return Ok(()),
            }
            let head = ledger.head_without_tail(core.id).map_err(|error| refusal(&error))?;
            let Some(head) = head else { return Ok(()) };
            // Without a directory: one that comes back is another mailbox, and must not be removed.
            let renamed = MailEntry::Mailbox(MailboxFields {
                id: core.id,
                account: head.account,
                uid_validity: head.uid_validity,
                form: head.form,
                special_use: head.special_use,
                name: Bytes::copy_from_slice(name.as_str().as_bytes()),
                directory: Bytes::new(),
            });
            let lsn = ledger.append(&[renamed, MailEntry::MailboxGone { id: core.id }]);
            let lsn = lsn.map_err(|error| refusal(&error))?;
            core.is_spent.store(true, Ordering::Relaxed);
            core.is_deleted.store(true, Ordering::Relaxed);
            *lock(&core.state) = None;
            ledger.unfollow(core.id);
            lsn
        };
        ledger.note(&[FileNote::DirectoryDone { mailbox: core.id, lsn }]);
        {
            let mut known = lock(&self.mailboxes);
            known.ids.retain(|_, of| of.0 != core.id);
            known.by_id.remove(&MailboxId(core.id));
            if let Some(days) = &mut known.missing.0 {
                days.remove(&MailboxId(core.id));
            }
        }
        core.looked.send_modify(|looked| looked.error = Some(MailstoreError::NoMailbox));
        tracing::info!(mailbox = path.as_str(), "a folder that was removed a week ago is forgotten, with its UIDs");
        Ok(())
    }
}
