//! Converts entries of the stream to rows of the table.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::changes::{RowChanges, rows_of};
use super::columns::{FixedMessage, StateMessage, flag_bits};
use super::error::MetaError;
use super::heads::{count, is_deleted, is_unseen, stored_head};
use super::lookups::Lookups;
use super::numbers::StoreNumbers;
use super::reader::TableReader;
use super::row_set::RowSet;
use super::table_name::TableName;
use super::values::{
    AccountRow, GoneRow, LeavingRow, MailboxHead, NameRow, OpeningRow, PendingRow, key_of, key_of_octets, key_of_two,
};
use crate::entry::{
    AccountFields, BodyKind, BodyPlace, GoneReason, MailEntry, MailboxFields, MessageFacts, NewMessage, StateGroup,
    WireSize,
};
use crate::name::MailboxName;
use crate::row::NumberRange;

/// Applies entries to a reader's rows. An entry may be applied twice: its values are absolute, and assigned UIDs are
/// not assigned again.
#[derive(Debug)]
pub struct Applier<'a> {
    pub(super) reader: &'a TableReader,
    pub(super) changes: RowChanges,
    /// The store's numbers after the applied entries.
    pub numbers: StoreNumbers,
    pub(super) heads: BTreeMap<u32, MailboxHead>,
    accounts: BTreeMap<u32, AccountRow>,
    fixed: HashMap<u32, RowSet<FixedMessage>>,
    state: HashMap<u32, RowSet<StateMessage>>,
    /// LSN of the last entry, and number of messages found in that batch.
    batch: (u64, u32),
    lookups: Lookups,
}

/// A suspended [`Applier`] without its reader.
#[derive(Debug, Clone)]
pub(crate) struct ParkedApplier {
    changes: RowChanges,
    numbers: StoreNumbers,
    heads: BTreeMap<u32, MailboxHead>,
    accounts: BTreeMap<u32, AccountRow>,
    fixed: HashMap<u32, RowSet<FixedMessage>>,
    state: HashMap<u32, RowSet<StateMessage>>,
    batch: (u64, u32),
    lookups: Lookups,
}

impl ParkedApplier {
    /// Continues with a reader of the same commit.
    pub fn resume(self, reader: &TableReader) -> Applier<'_> {
        let Self { changes, numbers, heads, accounts, fixed, state, batch, lookups } = self;
        Applier { reader, changes, numbers, heads, accounts, fixed, state, batch, lookups }
    }
}

impl<'a> Applier<'a> {
    /// Releases the reader.
    pub(crate) fn park(self) -> ParkedApplier {
        let Self { changes, numbers, heads, accounts, fixed, state, batch, lookups, .. } = self;
        ParkedApplier { changes, numbers, heads, accounts, fixed, state, batch, lookups }
    }

    /// Starts from the reader's rows.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub fn new(reader: &'a TableReader) -> Result<Self, MetaError> {
        Ok(Self {
            numbers: StoreNumbers::read(reader)?,
            reader,
            changes: RowChanges::default(),
            heads: BTreeMap::new(),
            accounts: BTreeMap::new(),
            fixed: HashMap::new(),
            state: HashMap::new(),
            batch: (0, 0),
            lookups: Lookups::default(),
        })
    }

    /// Applies an entry. Entries come in the order of their LSNs.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub fn apply(&mut self, lsn: u64, entry: &MailEntry) -> Result<(), MetaError> {
        if self.batch.0 != lsn {
            self.batch = (lsn, 0);
        }
        self.numbers.applied = self.numbers.applied.max(lsn);
        // The one place for all kinds: a session has been told the LSN of each entry that it sees, and a later opening must tell no lower one.
        if let Some(mailbox) = entry.seen_in() {
            let head = self.head(mailbox)?;
            head.highest_modseq = head.highest_modseq.max(lsn);
        }
        match entry {
            MailEntry::Opening { nonce, host } => {
                let row = OpeningRow { nonce: *nonce, host: host.clone() };
                self.changes.put(TableName::Openings, &lsn.to_be_bytes(), row.encode());
            }
            MailEntry::Account(fields) => self.account_fields(fields)?,
            MailEntry::Mailbox(fields) => self.mailbox(lsn, fields)?,
            MailEntry::Keyword { mailbox, bit, name } => {
                let key = key_of_octets(*mailbox, &[*bit]);
                self.changes.put(TableName::Keywords, &key, name.to_vec());
            }
            MailEntry::Found { mailbox, first_uid, messages } => self.found(lsn, *mailbox, *first_uid, messages)?,
            MailEntry::State { mailbox, groups } => {
                groups.iter().try_for_each(|group| self.state(lsn, *mailbox, group))?;
            }
            MailEntry::Gone { mailbox, set, reason, when } => {
                set.iter().try_for_each(|range| self.gone(lsn, *mailbox, *range, (*reason, *when)))?;
            }
            MailEntry::Name { mailbox, uid, name } => {
                self.changes.put(TableName::Foreign, &key_of_two(*mailbox, *uid), name.to_vec());
                let range = NumberRange { first: *uid, last: *uid };
                let reader = self.reader;
                self.state_rows(*mailbox).change(reader, range, |message| {
                    message.flags |= flag_bits::NAMED;
                    true
                })?;
            }
            MailEntry::Size { mailbox, uid, wire_size, line_feeds } => {
                self.size((*mailbox, *uid), *wire_size, *line_feeds)?;
            }
            MailEntry::New { mailbox, first_uid, messages } => {
                self.new_messages(lsn, *mailbox, *first_uid, messages)?
            }
            MailEntry::MailboxGone { id } => self.mailbox_gone(lsn, *id)?,
            MailEntry::Subscription { account, name, is_on } => {
                let key = key_of_octets(*account, name);
                let row = NameRow { is_subscribed: *is_on, ..self.name_row(&key)?.unwrap_or_default() };
                self.changes.put(TableName::Names, &key, row.encode());
            }
            MailEntry::UniqueIds { mailbox, ids } => {
                for (uid, id) in ids {
                    self.changes.put(TableName::UniqueIds, &key_of_two(*mailbox, *uid), id.to_vec());
                }
            }
        }
        Ok(())
    }

    /// All changes, for a commit.
    ///
    /// # Errors
    /// Errors of reading the table.
    pub fn finish(mut self) -> Result<RowChanges, MetaError> {
        for rows in std::mem::take(&mut self.fixed).into_values() {
            rows.flush(self.reader, &mut self.changes)?;
        }
        for rows in std::mem::take(&mut self.state).into_values() {
            rows.flush(self.reader, &mut self.changes)?;
        }
        for (id, head) in &self.heads {
            self.changes.put(TableName::Mailboxes, &key_of(*id), head.encode());
        }
        for (id, account) in &self.accounts {
            self.changes.put(TableName::Accounts, &key_of(*id), account.encode());
        }
        self.numbers.put(&mut self.changes);
        Ok(self.changes)
    }

    fn fixed_rows(&mut self, mailbox: u32) -> &mut RowSet<FixedMessage> {
        self.fixed.entry(mailbox).or_insert_with(|| RowSet::new(TableName::Fixed, mailbox))
    }

    pub(super) fn state_rows(&mut self, mailbox: u32) -> &mut RowSet<StateMessage> {
        self.state.entry(mailbox).or_insert_with(|| RowSet::new(TableName::State, mailbox))
    }

    fn account(&mut self, id: u32) -> Result<&mut AccountRow, MetaError> {
        if !self.accounts.contains_key(&id) {
            let stored = self.reader.get(TableName::Accounts, &key_of(id))?;
            let row = stored.and_then(|value| AccountRow::decode(&value)).unwrap_or_default();
            self.accounts.insert(id, row);
        }
        Ok(self.accounts.get_mut(&id).expect("it was put there"))
    }

    fn account_fields(&mut self, fields: &AccountFields) -> Result<(), MetaError> {
        let AccountFields { id, name, quota_bytes, quota_messages, is_gone } = fields.clone();
        let row = self.account(id)?;
        *row = AccountRow { name, quota_bytes, quota_messages, is_gone, ..row.clone() };
        self.numbers.next_account = self.numbers.next_account.max(id.saturating_add(1));
        Ok(())
    }

    /// The head of a mailbox; empty for one not made yet. A takeover appends the messages first, so that a crash
    /// leaves them in no account.
    pub(super) fn head(&mut self, mailbox: u32) -> Result<&mut MailboxHead, MetaError> {
        if !self.heads.contains_key(&mailbox) {
            let head = stored_head(self.reader, mailbox, &self.numbers)?;
            let new = || MailboxHead { next_uid: 1, skip: self.numbers.skip, recent_from: 1, ..Default::default() };
            self.heads.insert(mailbox, head.unwrap_or_else(new));
            self.numbers.next_mailbox = self.numbers.next_mailbox.max(mailbox.saturating_add(1));
        }
        Ok(self.heads.get_mut(&mailbox).expect("it was put there"))
    }

    fn mailbox(&mut self, lsn: u64, fields: &MailboxFields) -> Result<(), MetaError> {
        let MailboxFields { id, account, uid_validity, form, special_use, name, directory } = fields.clone();
        let head = self.head(id)?;
        let was_made = head.account != 0;
        let before = head.directory.clone();
        *head = MailboxHead { account, uid_validity, form, special_use, directory: directory.clone(), ..head.clone() };
        head.highest_modseq = head.highest_modseq.max(lsn);
        if !was_made {
            head.gone_from = lsn;
        }
        let (exists, bytes) = (head.exists, head.bytes);
        self.directory_used(&directory)?;
        if was_made {
            if before != directory {
                self.lookups.note_pending(&before, &key_of(id));
                let row = PendingRow { lsn, directory: before };
                self.changes.put(TableName::Pending, &key_of(id), row.encode());
            }
            self.forget_name_of(account, id)?;
        } else {
            // Those that a takeover gave it before it was made.
            let row = self.account(account)?;
            (row.messages, row.bytes) = (row.messages + u64::from(exists), row.bytes + bytes);
        }
        let key = key_of_octets(account, &name);
        // A subscription is to the name. INBOX begins with one.
        let is_inbox = name == MailboxName::inbox().as_str().as_bytes();
        let is_subscribed = self.name_row(&key)?.map_or(is_inbox, |row| row.is_subscribed);
        let row = NameRow { mailbox: id, is_subscribed, last_validity: uid_validity };
        self.changes.put(TableName::Names, &key, row.encode());
        self.lookups.note_name(account, id, &key);
        let row = self.account(account)?;
        row.last_validity = row.last_validity.max(uid_validity);
        Ok(())
    }

    /// Notes that a directory belongs to a mailbox now: earlier pending changes of it are done.
    fn directory_used(&mut self, directory: &[u8]) -> Result<(), MetaError> {
        let all = || rows_of(self.reader, &self.changes, TableName::Pending, &[]);
        for key in self.lookups.take_pending(directory, all)? {
            let row = self.row(TableName::Pending, &key)?;
            if row.is_some_and(|row| PendingRow::decode(&row).is_none_or(|row| row.directory == directory)) {
                self.changes.remove(TableName::Pending, &key);
            }
        }
        Ok(())
    }

    fn name_row(&self, key: &[u8]) -> Result<Option<NameRow>, MetaError> {
        Ok(self.row(TableName::Names, key)?.and_then(|row| NameRow::decode(&row)))
    }

    /// The new state of a row; a damaged one counts as missing.
    fn row(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        match self.changes.of(table, key).find(|(found, _)| *found == key) {
            Some((_, row)) => Ok(row.map(<[u8]>::to_vec)),
            None => match self.reader.get(table, key) {
                Err(MetaError::Value(_)) => Ok(None),
                row => row,
            },
        }
    }

    /// Removes a mailbox with all its messages. Its name and subscription stay; its directory becomes pending for
    /// removal.
    fn mailbox_gone(&mut self, lsn: u64, id: u32) -> Result<(), MetaError> {
        let MailboxHead { account, exists, bytes, directory, .. } = self.head(id)?.clone();
        if account == 0 {
            // Applied before.
            self.heads.remove(&id);
            return Ok(());
        }
        self.forget_name_of(account, id)?;
        let row = self.account(account)?;
        (row.messages, row.bytes) = (row.messages.saturating_sub(exists.into()), row.bytes.saturating_sub(bytes));
        self.fixed.remove(&id);
        self.state.remove(&id);
        for table in [
            TableName::Fixed,
            TableName::State,
            TableName::Gone,
            TableName::Foreign,
            TableName::Keywords,
            TableName::Leaving,
            TableName::UniqueIds,
        ] {
            // Damaged ones as well.
            let mut keys: Vec<Vec<u8>> = Vec::new();
            self.reader.for_each(table, &key_of(id), &mut |key, _| {
                keys.push(key.to_vec());
                Ok(())
            })?;
            keys.extend(self.changes.of(table, &key_of(id)).map(|(key, _)| key.to_vec()));
            keys.iter().for_each(|key| self.changes.remove(table, key));
        }
        self.lookups.note_pending(&directory, &key_of(id));
        self.changes.put(TableName::Pending, &key_of(id), PendingRow { lsn, directory }.encode());
        self.heads.remove(&id);
        self.changes.remove(TableName::Mailboxes, &key_of(id));
        Ok(())
    }

    /// Removes the old name: a mailbox has one name.
    fn forget_name_of(&mut self, account: u32, mailbox: u32) -> Result<(), MetaError> {
        let all = || rows_of(self.reader, &self.changes, TableName::Names, &key_of(account));
        for key in self.lookups.take_names(account, mailbox, all)? {
            if let Some(row) = self.name_row(&key)?.filter(|row| row.mailbox == mailbox) {
                self.changes.put(TableName::Names, &key, NameRow { mailbox: 0, ..row }.encode());
            }
        }
        Ok(())
    }

    fn found(
        &mut self,
        lsn: u64,
        mailbox: u32,
        first_uid: u32,
        messages: &[(MessageFacts, Bytes)],
    ) -> Result<(), MetaError> {
        for (uid, (facts, name)) in (first_uid..u32::MAX).zip(messages) {
            let body = (lsn, self.batch.1 as u16, BodyKind::Foreign);
            self.batch.1 += 1;
            self.message(lsn, (mailbox, uid), facts, body, Some(name))?;
        }
        Ok(())
    }

    fn new_messages(
        &mut self,
        lsn: u64,
        mailbox: u32,
        first_uid: u32,
        messages: &[NewMessage],
    ) -> Result<(), MetaError> {
        // 0: there was no UID left.
        for (uid, message) in (first_uid..u32::MAX).zip(messages).filter(|(uid, _)| *uid > 0) {
            let (body, name) = match &message.place {
                BodyPlace::Batch { .. } => ((lsn, message.target, message.kind), None),
                BodyPlace::Copied(origin) => ((origin.lsn, message.target, message.kind), Some(&origin.name)),
            };
            self.message(lsn, (mailbox, uid), &message.facts, body, name)?;
        }
        Ok(())
    }

    /// A message that a mailbox has not had.
    fn message(
        &mut self,
        lsn: u64,
        (mailbox, uid): (u32, u32),
        facts: &MessageFacts,
        (body, target, kind): (u64, u16, BodyKind),
        name: Option<&Bytes>,
    ) -> Result<(), MetaError> {
        let head = self.head(mailbox)?;
        if uid < head.next_uid {
            return Ok(());
        }
        let MessageFacts { flags, internal_date, save_date, wire_size, line_feeds } = *facts;
        let fixed = FixedMessage { uid, wire_size, internal_date, save_date, lsn: body, target, line_feeds, kind };
        let named = if name.is_some() { flag_bits::NAMED } else { 0 };
        let flags = flags & !flag_bits::NAMED | named;
        (head.next_uid, head.exists) = (uid + 1, head.exists + 1);
        head.bytes += wire_size.counted();
        count(head, 0, flags, true);
        let account = head.account;
        self.counted(account, wire_size.counted(), true)?;
        let reader = self.reader;
        self.fixed_rows(mailbox).push(reader, fixed)?;
        self.state_rows(mailbox).push(reader, StateMessage { uid, flags, modseq: lsn, letters: 0 })?;
        if let Some(name) = name {
            self.changes.put(TableName::Foreign, &key_of_two(mailbox, uid), name.to_vec());
        }
        Ok(())
    }

    /// Other sizes of a message.
    fn size(&mut self, (mailbox, uid): (u32, u32), wire_size: WireSize, line_feeds: u32) -> Result<(), MetaError> {
        let (reader, mut before) = (self.reader, None);
        self.fixed_rows(mailbox).change(reader, NumberRange { first: uid, last: uid }, |message| {
            before = Some(message.wire_size.counted());
            (message.wire_size, message.line_feeds) = (wire_size, line_feeds);
            true
        })?;
        let Some(before) = before else { return Ok(()) };
        let head = self.head(mailbox)?;
        head.bytes = head.bytes.saturating_sub(before) + wire_size.counted();
        let account = head.account;
        self.counted(account, before, false)?;
        self.counted(account, wire_size.counted(), true)
    }

    /// The stored name of a message's file.
    fn name_of(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        let name = match self.changes.of(TableName::Foreign, key).next() {
            Some((_, name)) => name.map(<[u8]>::to_vec),
            None => match self.reader.get(TableName::Foreign, key) {
                // Its file is not known any more, and will be found as another message.
                Err(MetaError::Value(_)) => None,
                name => name?,
            },
        };
        Ok(name.map(Bytes::from))
    }

    /// Adds a message to an account's counters, or removes it.
    fn counted(&mut self, account: u32, bytes: u64, is_there: bool) -> Result<(), MetaError> {
        if account == 0 {
            return Ok(());
        }
        let row = self.account(account)?;
        (row.messages, row.bytes) = if is_there {
            (row.messages + 1, row.bytes + bytes)
        } else {
            (row.messages.saturating_sub(1), row.bytes.saturating_sub(bytes))
        };
        Ok(())
    }

    fn state(&mut self, lsn: u64, mailbox: u32, group: &StateGroup) -> Result<(), MetaError> {
        let (reader, StateGroup { set, flags, letters }) = (self.reader, group);
        let mut changed = Vec::new();
        for range in set {
            self.state_rows(mailbox).change(reader, *range, |message| {
                // Applied before, and followed by another change.
                if message.modseq > lsn {
                    return true;
                }
                let now = flags & !flag_bits::NAMED | message.flags & flag_bits::NAMED;
                changed.push((message.flags, now));
                *message = StateMessage { flags: now, modseq: lsn, letters: *letters, ..*message };
                true
            })?;
        }
        let head = self.head(mailbox)?;
        changed.into_iter().for_each(|(before, now)| count(head, before, now, false));
        Ok(())
    }

    fn gone(
        &mut self,
        lsn: u64,
        mailbox: u32,
        range: NumberRange,
        (reason, when): (GoneReason, u32),
    ) -> Result<(), MetaError> {
        let reader = self.reader;
        let (mut removed, mut flags) = (Vec::new(), Vec::new());
        self.fixed_rows(mailbox).change(reader, range, |message| {
            removed.push(*message);
            false
        })?;
        self.state_rows(mailbox).change(reader, range, |message| {
            flags.push(message.flags);
            false
        })?;
        let head = self.head(mailbox)?;
        head.next_uid = head.next_uid.max(range.last.saturating_add(1));
        head.exists = head.exists.saturating_sub(removed.len() as u32);
        head.bytes = head.bytes.saturating_sub(removed.iter().map(|message| message.wire_size.counted()).sum());
        flags.into_iter().for_each(|flags| {
            head.unseen = head.unseen.saturating_sub(u32::from(is_unseen(flags)));
            head.deleted = head.deleted.saturating_sub(u32::from(is_deleted(flags)));
        });
        let account = head.account;
        // Whoever removed the files himself leaves none behind.
        let leaves_files = matches!(reason, GoneReason::Expunged | GoneReason::Moved);
        for message in removed {
            self.counted(account, message.wire_size.counted(), false)?;
            let key = key_of_two(mailbox, message.uid);
            if leaves_files {
                let name = self.name_of(&key)?;
                let FixedMessage { lsn, target, wire_size, line_feeds, .. } = message;
                let row = LeavingRow { body: (lsn, target), wire_size, line_feeds, name };
                self.changes.put(TableName::Leaving, &key, row.encode());
            }
            self.changes.remove(TableName::Foreign, &key);
            // Few messages have one.
            if self.row(TableName::UniqueIds, &key)?.is_some() {
                self.changes.remove(TableName::UniqueIds, &key);
            }
        }
        let row = GoneRow { last: range.last, when, reason };
        self.put_gone(mailbox, (lsn, range.first), row)
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
