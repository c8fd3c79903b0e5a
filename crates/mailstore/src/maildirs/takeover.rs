//! Takes over a Maildir that is not in the ledger, with Dovecot's UIDs.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{Keywords, MaildirReader, UidList};

use super::file::MailFile;
use super::keywords::MailboxKeywords;
use super::listed::{Listed, Listing};
use super::owner::Owner;
use super::scan::{batch_len, facts_of, name_of};
use super::seconds::now_secs;
use super::told::Oddities;
use crate::entry::{AccountFields, FOUND_MAX, GoneReason, MailEntry, MailboxFields, MessageFacts};
use crate::error::MailstoreError;
use crate::ledger::{MailLedger, MailLedgerError};
use crate::name::{MailboxName, SpecialUse};
use crate::row::NumberRange;
use crate::table::SKIPPED_UIDS;

/// Maximum messages of a UID list.
pub(super) const LISTED_MAX: usize = 4_000_000;
/// Maximum octets of a unique-id (RFC 1939 section 7).
const UNIQUE_ID_BYTES_MAX: usize = 70;
/// Maximum listings of a directory until it is unchanged.
const LISTINGS_MAX: usize = 20;
const LISTING_PAUSE: Duration = Duration::from_millis(100);
/// Maximum entries of one batch: a UID list with gaps has an entry for each run.
const ENTRIES_MAX: usize = 32_768;
/// UIDVALIDITY of an account begins above this (2026), and at most 30 years beyond the last one, whatever the clock.
const VALIDITY_FROM: u32 = 1_767_225_600;
const VALIDITY_STEP_MAX: u32 = 30 * 366 * 86_400;
/// Offset of UIDVALIDITY ahead of the clock after a loss that may have taken mailboxes: mailboxes made in a burst
/// have values ahead of it.
const VALIDITY_SKIPPED: u32 = 1 << 16;
/// Minimum free UIDs of a list. A list with fewer is used up.
pub(super) const UIDS_LEFT_MIN: u32 = SKIPPED_UIDS;

/// A mailbox to create from an existing Maildir.
pub(super) struct Takeover<'a> {
    pub ledger: &'a MailLedger,
    pub owner: &'a Owner,
    pub id: u32,
    pub name: &'a MailboxName,
    pub directory: &'a str,
    /// `None`: the use implied by the name, unless another mailbox has it.
    pub special_use: Option<SpecialUse>,
}

/// Called before the first entry of a mailbox.
pub(super) type Begin<'b> = &'b dyn Fn() -> Result<(), MailstoreError>;

/// A message with the UID that it gets.
pub(super) type Numbered = (u32, MessageFacts, Bytes);

/// Contents of a directory.
#[derive(Default)]
struct Readings {
    list: Option<UidList>,
    keywords: MailboxKeywords,
    messages: Vec<Numbered>,
    /// Unique-ids of POP3 by UID.
    unique_ids: Vec<(u32, Bytes)>,
    /// UIDVALIDITY of a used-up list.
    last_validity: u32,
    /// Entries of the keywords.
    entries: Vec<MailEntry>,
}

impl Takeover<'_> {
    /// Makes the mailbox durable with all its messages, unless it exists; without a directory it is empty. After a kill
    /// before the end nothing is visible. Blocks.
    ///
    /// `is_spent` becomes true once an entry uses the id: after an error, another attempt then needs a new one. `begin`
    /// is called before that, after the directory was read; its error ends the takeover.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: an unknown UID list, a directory that keeps changing, a failing disk.
    pub fn run(
        &self,
        reader: Option<&MaildirReader>,
        is_spent: &AtomicBool,
        odd: &mut Oddities,
        begin: Begin<'_>,
    ) -> Result<(), MailstoreError> {
        let failed = |error: &dyn std::fmt::Display| MailstoreError::Unavailable(error.to_string());
        if self.is_made().map_err(|error| failed(&error))? {
            return Ok(());
        }
        // Before the lock: a directory that hangs holds up no other mailbox of the account.
        let Readings { list, messages, unique_ids, last_validity, mut entries, .. } = self.read(reader, odd)?;
        // One at a time: each mailbox of an account has its own UIDVALIDITY.
        let _one = self.owner.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.is_made().map_err(|error| failed(&error))? {
            return Ok(());
        }
        // What entries say of an id is a part of its mailbox: a second attempt must not add to it.
        if is_spent.load(Ordering::Relaxed) {
            return Err(MailstoreError::Unavailable("taking over the mailbox failed".to_owned()));
        }
        if !self.owner.is_durable() {
            let name = Bytes::copy_from_slice(self.owner.path.as_str().as_bytes());
            entries.insert(0, MailEntry::Account(AccountFields { id: self.owner.id, name, ..Default::default() }));
        }
        let validity = match &list {
            Some(list) => list.validity.get(),
            None => self.new_validity(last_validity).map_err(|error| failed(&error))?,
        };
        let last_uid = self.next_uid(list.as_ref()) - 1;
        let last_uid = if messages.last().is_some_and(|(uid, ..)| *uid >= last_uid) { 0 } else { last_uid };
        let special_use = self.special_use_now().map_err(|error| failed(&error))?;
        begin()?;
        is_spent.store(true, Ordering::Relaxed);
        self.append_unique_ids(&unique_ids).map_err(|error| failed(&error))?;
        self.append(entries, &messages, (validity, last_uid), (special_use, Vec::new()))
            .map_err(|error| failed(&error))?;
        self.owner.set_durable();
        let next_uid = messages.last().map_or(0, |(uid, ..)| *uid).max(last_uid) + 1;
        self.ledger.pin_at(self.id, next_uid);
        let (taken_over, messages) = (list.is_some(), messages.len());
        tracing::info!(mailbox = self.directory, messages, uid_validity = validity, taken_over, "mailbox has its UIDs");
        Ok(())
    }

    /// True if the ledger has the mailbox.
    fn is_made(&self) -> Result<bool, MailLedgerError> {
        Ok(self.ledger.mailbox_named(self.owner.id, self.name.as_str().as_bytes())?.is_some())
    }

    /// Reads the directory.
    fn read(&self, reader: Option<&MaildirReader>, odd: &mut Oddities) -> Result<Readings, MailstoreError> {
        let failed = |error: &dyn std::fmt::Display| MailstoreError::Unavailable(error.to_string());
        let mut found = Readings::default();
        let Some(reader) = reader else { return Ok(found) };
        let mut list = reader.uid_list(LISTED_MAX).map_err(|error| failed(&error))?;
        let file = reader.keywords().unwrap_or_else(|error| {
            odd.keywords = Some(error.to_string());
            Keywords::default()
        });
        for (bit, name) in found.keywords.missing(&file) {
            found.keywords.insert(bit, name.as_bytes());
            let name = Bytes::copy_from_slice(name.as_bytes());
            found.entries.push(MailEntry::Keyword { mailbox: self.id, bit, name });
        }
        if let Some(used_up) = list.take_if(|list| u32::MAX - self.next_uid(Some(list)) < UIDS_LEFT_MIN) {
            let (mailbox, next) = (self.directory, used_up.next.get());
            tracing::error!(
                mailbox,
                next,
                "its UIDs are used up: it gets a new UIDVALIDITY, and clients download its mail again"
            );
            found.last_validity = used_up.validity.get();
        }
        let files = files(reader, list.is_some(), odd)?;
        let numbering = (list.as_ref(), self.next_uid(list.as_ref()));
        found.messages = numbered(reader, files, numbering, &found.keywords, odd);
        if let Some(list) = list.as_ref().filter(|_| self.name.is_inbox()) {
            found.unique_ids = unique_ids(list, &found.messages);
        }
        found.list = list;
        Ok(found)
    }

    /// The UID of the first new message. This server may have given UIDs above those of the list, if it lost its own
    /// table since.
    fn next_uid(&self, list: Option<&UidList>) -> u32 {
        let skipped = self.ledger.skip().saturating_mul(SKIPPED_UIDS);
        list.map_or(1, |list| list.next.get().saturating_add(skipped))
    }

    /// Appends unique-ids in their own batches, before that of the mailbox.
    pub fn append_unique_ids(&self, ids: &[(u32, Bytes)]) -> Result<(), MailLedgerError> {
        for ids in ids.chunks(FOUND_MAX) {
            self.ledger.append(&[MailEntry::UniqueIds { mailbox: self.id, ids: ids.to_vec() }])?;
        }
        Ok(())
    }

    /// Appends `entries` and `left` in batches; the last one contains the mailbox itself, after `also`.
    pub fn append(
        &self,
        mut entries: Vec<MailEntry>,
        mut left: &[Numbered],
        (uid_validity, last_uid): (u32, u32),
        (special_use, also): (Option<SpecialUse>, Vec<MailEntry>),
    ) -> Result<(), MailLedgerError> {
        loop {
            let (now, later) = left.split_at(batch_len(left.iter().map(|(_, _, name)| name.len())));
            let (found, taken) = self.found(now);
            entries.extend(found);
            left = if taken < now.len() { &left[taken..] } else { later };
            if left.is_empty() {
                break;
            }
            self.ledger.append(&std::mem::take(&mut entries))?;
        }
        if last_uid > 0 {
            // The next UID is above all that were given.
            let set = vec![NumberRange { first: last_uid, last: last_uid }];
            entries.push(MailEntry::Gone { mailbox: self.id, set, reason: GoneReason::Missing, when: now_secs() });
        }
        entries.extend(also);
        entries.push(MailEntry::Mailbox(MailboxFields {
            id: self.id,
            account: self.owner.id,
            uid_validity,
            form: 0,
            special_use: SpecialUse::number(special_use),
            name: Bytes::copy_from_slice(self.name.as_str().as_bytes()),
            directory: Bytes::copy_from_slice(self.directory.as_bytes()),
        }));
        self.ledger.append(&entries).map(drop)
    }

    /// Entries of messages, one for each run of UIDs, and the number of messages.
    fn found(&self, messages: &[Numbered]) -> (Vec<MailEntry>, usize) {
        let (mut entries, mut taken) = (Vec::new(), 0);
        for run in messages.chunk_by(|one, next| one.0 + 1 == next.0).take(ENTRIES_MAX) {
            let messages = run.iter().map(|(_, facts, name)| (*facts, name.clone())).collect();
            entries.push(MailEntry::Found { mailbox: self.id, first_uid: run[0].0, messages });
            taken += run.len();
        }
        (entries, taken)
    }

    fn special_use_now(&self) -> Result<Option<SpecialUse>, MailLedgerError> {
        let Some(usual) = self.special_use else { return Ok(None) };
        let is_taken =
            self.ledger.special_uses(self.owner.id)?.into_values().any(|special_use| special_use == Some(usual));
        Ok(Some(usual).filter(|_| !is_taken))
    }

    /// See [`new_validity`].
    pub fn new_validity(&self, above: u32) -> Result<u32, MailLedgerError> {
        Ok(new_validity(self.ledger, self.ledger.names(self.owner.id)?.0, above))
    }
}

/// A UIDVALIDITY above `above` and above the account's last one (RFC 9051 section 2.3.1.1), whatever the clock.
pub(super) fn new_validity(ledger: &MailLedger, last: u32, above: u32) -> u32 {
    let last = last.max(VALIDITY_FROM).max(above);
    let now = now_secs().saturating_add(ledger.skip().saturating_mul(VALIDITY_SKIPPED));
    now.min(last.saturating_add(VALIDITY_STEP_MAX)).max(last.saturating_add(1))
}

/// All files of a Maildir. With a UID list, a missed name would get another UID, so the directory must be unchanged.
pub(super) fn files(reader: &MaildirReader, has_list: bool, odd: &mut Oddities) -> Result<Vec<Listed>, MailstoreError> {
    let failed = |error: std::io::Error| MailstoreError::Unavailable(error.to_string());
    for _ in 0..LISTINGS_MAX {
        let listing = Listing::new(reader, odd).map_err(failed)?;
        if !has_list || listing.is_quiet(reader).map_err(failed)? {
            return Ok(listing.listed);
        }
        std::thread::sleep(LISTING_PAUSE);
    }
    Err(MailstoreError::Unavailable("the Maildir changes all the time".to_owned()))
}

/// The list's unique-ids of these messages, ascending. Invalid (RFC 1939 section 7) and repeated ones are left out:
/// their messages have the default.
fn unique_ids(list: &UidList, messages: &[Numbered]) -> Vec<(u32, Bytes)> {
    let mut listed = list.messages.iter().peekable();
    let mut taken = HashSet::new();
    let of = |uid: u32| {
        while listed.next_if(|message| message.uid.get() < uid).is_some() {}
        let id = listed.next_if(|message| message.uid.get() == uid)?.uidl.as_deref()?;
        let is_one = id.len() <= UNIQUE_ID_BYTES_MAX && id.iter().all(|octet| (0x21..=0x7E).contains(octet));
        (is_one && taken.insert(id)).then(|| (uid, Bytes::copy_from_slice(id)))
    };
    messages.iter().map(|(uid, ..)| *uid).filter_map(of).collect()
}

/// Assigns UIDs: files in the list keep theirs; the others follow, ordered by time and name.
fn numbered(
    reader: &MaildirReader,
    files: Vec<Listed>,
    (list, next): (Option<&UidList>, u32),
    keywords: &MailboxKeywords,
    odd: &mut Oddities,
) -> Vec<Numbered> {
    let listed = list.iter().flat_map(|list| &list.messages);
    let listed = listed.filter_map(|message| Some((key_of_name(std::str::from_utf8(&message.name).ok()?), message)));
    let mut uids: HashMap<&str, u32> = HashMap::new();
    for (key, message) in listed {
        uids.entry(key).or_insert(message.uid.get());
    }
    let (mut known, mut new) = (Vec::new(), Vec::new());
    let mut keys = HashSet::new();
    for Listed { subdir, name, inode } in files {
        // A further file of a key gets one of its own at the first look.
        if !keys.insert(key_of_name(&name).to_owned()) {
            continue;
        }
        let facts = match reader.facts(subdir, &name) {
            Ok(Some(facts)) => facts,
            Ok(None) => continue,
            Err(error) => {
                odd.no_file = Some(format!("{name:?}: {error}"));
                continue;
            }
        };
        let uid = uids.get(key_of_name(&name)).copied();
        let file = MailFile::new(subdir, name.into(), inode, facts);
        match uid {
            Some(uid) => known.push((uid, file)),
            None => new.push(file),
        }
    }
    known.sort_unstable_by_key(|(uid, _)| *uid);
    new.sort_unstable_by(|a, b| a.age_order().cmp(&b.age_order()));
    odd.out_of_uids |= (u32::MAX - next) < new.len() as u32;
    let new = (next..u32::MAX).zip(new);
    known.into_iter().chain(new).map(|(uid, file)| (uid, facts_of(reader, &file, keywords), name_of(&file))).collect()
}
