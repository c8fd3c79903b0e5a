//! Rebuilds a mailbox from its files, if its rows are damaged or its UIDs are used up.
//!
//! The new mailbox has its own id. Its last batch removes the old mailbox and takes its name, so a kill leaves the old
//! one or the new one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MaildirReader, UidList};

use super::answers::{refusal, unavailable};
use super::core::MailboxCore;
use super::file::{MailFile, own_part};
use super::folder_changes::{FolderChanges, wait_for_delivery};
use super::keywords::MailboxKeywords;
use super::listed::Listed;
use super::locks::lock;
use super::looking::look_once;
use super::names_out::write_names_now;
use super::opening::load;
use super::scan::{facts_of, name_of};
use super::state::MailboxState;
use super::takeover::{LISTED_MAX, Numbered, Takeover, UIDS_LEFT_MIN, files};
use super::told::Oddities;
use crate::entry::{MailEntry, MessageFacts, StateGroup};
use crate::error::MailstoreError;
use crate::ledger::{MailLedger, StoredMailbox, StoredMessage, UIDS_KEPT_MIN};
use crate::name::SpecialUse;
use crate::row::{MailboxId, NumberRange, RebuiltMailbox, Uid, UidValidity};
use crate::table::{SKIPPED_UIDS, flag_bits};

impl FolderChanges<'_> {
    /// Rebuilds a mailbox from its files. UIDs stay if they are known, unless `renews`; flags stay if rows or names
    /// have them. Sessions that have selected it end. Blocks.
    pub fn rebuild(&mut self, core: &Arc<MailboxCore>, renews: bool) -> Result<RebuiltMailbox, MailstoreError> {
        // Flags go into names, and files of expunged messages leave. New files may find no UIDs any more.
        let _ = look_once(core);
        let _nothing_is_added = core.adding.blocking_write();
        let _one = lock(&core.changing);
        let reader = core.reader().map_err(|error| core.failed(&error))?;
        load(core, Some(&reader), &mut Oddities::default())?;
        let ledger = &core.shared.ledger;
        // Mail for INBOX that comes meanwhile has no UID: a look at the new mailbox finds its file. Mail for a folder gets
        // 451, as during a RENAME.
        let withheld = WithheldUids::new(ledger, core.id);
        wait_for_delivery(core)?;
        write_names_now(core, &reader);
        let mut stored = ledger.mailbox(core.id).map_err(unavailable)?.ok_or(MailstoreError::NoMailbox)?;
        let special_use = self.special_use_of(core.id)?;
        stored.head.special_use = SpecialUse::number(special_use);
        let numbering = Numbering::new(core, &reader, &stored, renews)?;
        let (id, rebuilt) = numbering.append(core, &reader, &stored)?;
        withheld.keep();
        self.replace(core, id);
        let (mailbox, messages) = (lock(&core.path).to_string(), rebuilt.messages);
        let (uid_validity, keeps_uids) = (rebuilt.uid_validity.get(), rebuilt.keeps_uids);
        tracing::warn!(mailbox, messages, uid_validity, keeps_uids, "a mailbox was rebuilt from its files");
        Ok(rebuilt)
    }

    /// Ends the old mailbox for its users; the next look-up of the name returns the new one.
    fn replace(&self, core: &MailboxCore, id: u32) {
        core.is_spent.store(true, Ordering::Relaxed);
        core.is_deleted.store(true, Ordering::Relaxed);
        *lock(&core.state) = None;
        core.shared.ledger.unfollow(core.id);
        {
            let (name, path) = (lock(&core.name).clone(), lock(&core.path).clone());
            let mut known = lock(&self.account.mailboxes);
            known.by_id.remove(&MailboxId(core.id));
            known.ids.insert(name.clone(), MailboxId(id));
            self.account.id_of(&mut known, &core.owner, name, path);
        }
        core.shared.replaced.fetch_add(1, Ordering::Release);
        core.looked.send_modify(|looked| looked.error = Some(MailstoreError::NoMailbox));
    }
}

/// Stops the assignment of UIDs in a mailbox. Resumes it when dropped after an error.
struct WithheldUids<'a> {
    ledger: &'a MailLedger,
    mailbox: u32,
    next_uid: Option<u32>,
}

impl<'a> WithheldUids<'a> {
    fn new(ledger: &'a MailLedger, mailbox: u32) -> Self {
        Self { ledger, mailbox, next_uid: ledger.withhold_uids(mailbox) }
    }

    /// Withholds UIDs for good.
    fn keep(mut self) {
        self.next_uid = None;
    }
}

impl Drop for WithheldUids<'_> {
    fn drop(&mut self) {
        if let Some(next_uid) = self.next_uid {
            self.ledger.give_uids_from(self.mailbox, next_uid);
        }
    }
}

/// UIDs for the files of a rebuilt mailbox.
struct Numbering {
    keeps_uids: bool,
    next_uid: u32,
    /// UIDs by key, or by the known part of a file name.
    uids: HashMap<String, u32>,
    /// Files of expunged messages.
    leaving: HashSet<String>,
}

impl Numbering {
    fn new(
        core: &MailboxCore,
        reader: &MaildirReader,
        stored: &StoredMailbox,
        renews: bool,
    ) -> Result<Self, MailstoreError> {
        let ledger = &core.shared.ledger;
        let damage = ledger.damage_of(core.id).map_err(unavailable)?;
        let state = MailboxState::of(stored.clone(), ledger);
        let of_rows =
            state.now.messages.iter().map(|message| (key_of_name(&message.file.name).to_owned(), message.uid));
        let mut uids: HashMap<String, u32> = of_rows.collect();
        let leaving = state.leaving.values().map(|file| key_of_name(&file.name).to_owned()).collect();
        let mut next_uid = stored.head.next_uid.max(1);
        let mut has_list = false;
        if damage.head || damage.rows {
            // Of the same UIDVALIDITY: it has UIDs that damaged rows had.
            let has_same = |list: &UidList| list.validity.get() == stored.head.uid_validity;
            let own = reader.own_uid_list(LISTED_MAX).ok().flatten().filter(has_same);
            let list = own.or_else(|| reader.uid_list(LISTED_MAX).ok().flatten().filter(has_same));
            let taken: HashSet<u32> = uids.values().copied().collect();
            for message in list.iter().flat_map(|list| &list.messages) {
                let Ok(name) = std::str::from_utf8(&message.name) else { continue };
                if !taken.contains(&message.uid.get()) {
                    uids.entry(key_of_name(name).to_owned()).or_insert(message.uid.get());
                }
            }
            has_list = list.is_some();
            next_uid = next_uid.max(list.map_or(1, |list| list.next.get()));
        }
        if damage.head {
            next_uid = next_uid.saturating_add(SKIPPED_UIDS);
        }
        let has_uids_left = u32::MAX - next_uid >= UIDS_KEPT_MIN;
        let is_known = !damage.uids && (!damage.head || has_list && u32::MAX - next_uid >= UIDS_LEFT_MIN);
        let keeps_uids = !renews && is_known && has_uids_left;
        Ok(Self { keeps_uids, next_uid: if keeps_uids { next_uid } else { 1 }, uids, leaving })
    }

    fn uid_of(&self, name: &str) -> Option<u32> {
        self.uids.get(key_of_name(name)).or_else(|| self.uids.get(own_part(name)?)).copied()
    }

    /// Makes the new mailbox durable, and returns its id.
    fn append(
        &self,
        core: &MailboxCore,
        reader: &MaildirReader,
        stored: &StoredMailbox,
    ) -> Result<(u32, RebuiltMailbox), MailstoreError> {
        let (ledger, owner, name) = (&*core.shared.ledger, &*core.owner, lock(&core.name).clone());
        let (directory, special_use) = (lock(&core.path).to_string(), SpecialUse::of_number(stored.head.special_use));
        let id = ledger.new_mailbox();
        let takeover = Takeover { ledger, owner, id, name: &name, directory: &directory, special_use };
        let _one = owner.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (keywords, entries) = keywords_of(id, reader, stored);
        let (messages, behind) = self.numbered(reader, stored, &keywords)?;
        let validity = if self.keeps_uids {
            stored.head.uid_validity
        } else {
            takeover.new_validity(stored.head.uid_validity).map_err(|error| refusal(&error))?
        };
        let last_uid = self.next_uid - 1;
        let last_uid = if messages.last().is_some_and(|(uid, ..)| *uid >= last_uid) { 0 } else { last_uid };
        let mut also = Vec::new();
        if !behind.is_empty() {
            also.push(MailEntry::State { mailbox: id, groups: behind });
        }
        also.push(MailEntry::MailboxGone { id: core.id });
        if self.keeps_uids {
            let ids = ledger.unique_ids(core.id).map_err(unavailable)?.into_iter();
            let of_messages = ids.filter(|(uid, _)| messages.binary_search_by_key(uid, |message| message.0).is_ok());
            let octets = |id: Box<str>| Bytes::from(id.into_string().into_bytes());
            let ids: Vec<(u32, Bytes)> = of_messages.map(|(uid, id)| (uid, octets(id))).collect();
            takeover.append_unique_ids(&ids).map_err(|error| refusal(&error))?;
        }
        let appended = takeover.append(entries, &messages, (validity, last_uid), (special_use, also));
        appended.map_err(|error| refusal(&error))?;
        let next_uid = messages.last().map_or(0, |(uid, ..)| *uid).max(last_uid) + 1;
        ledger.pin_at(id, next_uid);
        let uid_validity = UidValidity(Uid::new(validity).ok_or(MailstoreError::Limit)?.0);
        let uid_next = Uid::new(next_uid).ok_or(MailstoreError::Limit)?;
        let messages = u32::try_from(messages.len()).map_err(|_| MailstoreError::Limit)?;
        Ok((id, RebuiltMailbox { uid_validity, uid_next, messages, keeps_uids: self.keeps_uids }))
    }

    /// Messages in UID order, and flags that their names do not show yet.
    fn numbered(
        &self,
        reader: &MaildirReader,
        stored: &StoredMailbox,
        keywords: &MailboxKeywords,
    ) -> Result<(Vec<Numbered>, Vec<StateGroup>), MailstoreError> {
        let (mut known, mut new): (BTreeMap<u32, MailFile>, _) = (BTreeMap::new(), Vec::new());
        let mut keys = HashSet::new();
        let failed = |error: std::io::Error| MailstoreError::Unavailable(error.to_string());
        for Listed { subdir, name, inode } in files(reader, true, &mut Oddities::default())? {
            // A further file of a key gets one of its own at the first look.
            if !keys.insert(key_of_name(&name).to_owned()) {
                continue;
            }
            if self.leaving.contains(key_of_name(&name))
                || own_part(&name).is_some_and(|own| self.leaving.contains(own))
            {
                let why = format!("{name:?} is the file of an expunged message, and cannot be removed now");
                return Err(MailstoreError::Unavailable(why));
            }
            let Some(facts) = reader.facts(subdir, &name).map_err(failed)? else { continue };
            let uid = self.uid_of(&name);
            let file = MailFile::new(subdir, name.into(), inode, facts);
            match uid {
                // A content that the UID does not belong to is another message.
                Some(uid) if !known.contains_key(&uid) && is_of(stored.messages.get(&uid), &file) => {
                    known.insert(uid, file);
                }
                _ => new.push(file),
            }
        }
        new.sort_unstable_by(|a, b| a.age_order().cmp(&b.age_order()));
        let mut messages = Vec::new();
        let mut behind = Vec::new();
        for (at, (old, file)) in (1..).zip(&known) {
            let uid = if self.keeps_uids { *old } else { at };
            let facts = facts_of(reader, file, keywords);
            let facts = match stored.messages.get(old) {
                Some(stored) => {
                    behind.extend(behind_of(uid, stored, facts.flags));
                    kept_facts(stored, facts)
                }
                None => facts,
            };
            messages.push((uid, facts, name_of(file)));
        }
        let first = if self.keeps_uids {
            self.next_uid
        } else {
            u32::try_from(messages.len()).map_err(|_| MailstoreError::Limit)? + 1
        };
        if (u32::MAX - first) < new.len() as u32 {
            return Err(MailstoreError::Limit);
        }
        let new = (first..).zip(&new).map(|(uid, file)| (uid, facts_of(reader, file, keywords), name_of(file)));
        messages.extend(new);
        Ok((messages, behind))
    }
}

/// True if a file has the size of a message in the rows, as far as known.
fn is_of(stored: Option<&StoredMessage>, file: &MailFile) -> bool {
    let Some(StoredMessage { fixed, name: Some(_), .. }) = stored else { return true };
    let expected = fixed.wire_size.known().map(|wire_size| wire_size.saturating_sub(fixed.line_feeds.into()));
    expected.is_none() || file.disk_size() == expected
}

/// Flags and dates from the rows, sizes and place of the file.
fn kept_facts(stored: &StoredMessage, found: MessageFacts) -> MessageFacts {
    let own = flag_bits::BEHIND | flag_bits::IN_NEW | flag_bits::NAMED;
    MessageFacts {
        flags: stored.state.flags & !own | found.flags & flag_bits::IN_NEW,
        internal_date: stored.fixed.internal_date,
        save_date: stored.fixed.save_date,
        ..found
    }
}

/// Keeps the letters last seen in a name as the base of a later merge.
fn behind_of(uid: u32, stored: &StoredMessage, found: u64) -> Option<StateGroup> {
    let own = flag_bits::IN_NEW | flag_bits::NAMED;
    let flags = stored.state.flags & !own | found & flag_bits::IN_NEW;
    let set = vec![NumberRange { first: uid, last: uid }];
    (flags & flag_bits::BEHIND != 0).then_some(StateGroup { set, flags, letters: stored.state.letters })
}

/// Keywords of the old mailbox and of its file, and the entries that add them to the new one.
fn keywords_of(id: u32, reader: &MaildirReader, stored: &StoredMailbox) -> (MailboxKeywords, Vec<MailEntry>) {
    let mut keywords = MailboxKeywords::stored(&stored.keywords);
    let mut named: BTreeMap<u8, Bytes> = stored.keywords.clone();
    if let Ok(file) = reader.keywords() {
        for (bit, name) in keywords.missing(&file) {
            keywords.insert(bit, name.as_bytes());
            named.insert(bit, Bytes::copy_from_slice(name.as_bytes()));
        }
    }
    let entry = |(bit, name)| MailEntry::Keyword { mailbox: id, bit, name };
    (keywords, named.into_iter().map(entry).collect())
}
