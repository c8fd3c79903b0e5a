//! Changes of flags and messages, computed from the visible state: each outcome, and the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::file::MailFile;
use super::keywords::{MailboxKeywords, letters_in};
use super::seconds::now_secs;
use super::state::MailboxState;
use crate::entry::{GoneReason, MailEntry, StateGroup};
use crate::error::MailstoreError;
use crate::flags::{FlagUpdate, FlagUpdateMode, MessageFlags};
use crate::message_list::Message;
use crate::row::{MessageSet, NumberRange, Uid, ranges};
use crate::store::StoredFlags;
use crate::table::flag_bits;

/// Bits of the system flags. The table's own bits and keywords are above.
pub(super) const SYSTEM_BITS: u64 = 0b1_1111;

/// A change requested by a client.
#[derive(Debug)]
pub(super) enum Operation {
    /// New flags for messages of a view.
    Store {
        /// UIDs, ascending.
        uids: Vec<Uid>,
        update: FlagUpdate,
        /// Messages with a higher MODSEQ are not changed.
        unchanged_since: Option<u64>,
    },
    /// Removes messages with `\Deleted`: all, or those among some UIDs.
    Expunge(Option<Vec<NumberRange>>),
    /// Removes messages, whatever their flags.
    Remove(Vec<Uid>),
    /// Assigns bits to keywords.
    Name(Vec<String>),
}

impl Operation {
    /// Keywords that the mailbox must have.
    fn keywords(&self) -> &[String] {
        match self {
            Self::Store { update, .. } if update.mode != FlagUpdateMode::Remove => &update.keywords,
            Self::Name(keywords) => keywords,
            _ => &[],
        }
    }
}

/// Keywords of a mailbox including new ones.
pub(super) struct NewKeywords {
    keywords: MailboxKeywords,
    named: Vec<(u8, Arc<str>)>,
}

impl NewKeywords {
    /// Assigns bits to new keywords: to all of a change or to none, so that a refused change uses up nothing.
    /// `letter_of` returns the bit of a letter, if one is free.
    pub fn of<'a>(
        operations: impl Iterator<Item = &'a Operation>,
        known: MailboxKeywords,
        letter_of: impl Fn(&str) -> Option<u8>,
    ) -> Self {
        let mut new = Self { keywords: known, named: Vec::new() };
        for keywords in operations.map(Operation::keywords) {
            let unknown = keywords.iter().filter(|name| new.keywords.flag(name).is_none());
            let unknown: BTreeSet<String> = unknown.map(|name| name.to_ascii_lowercase()).collect();
            if new.keywords.has_room_for(unknown.len()) {
                keywords.iter().for_each(|name| new.add(name, &letter_of));
            }
        }
        new
    }

    /// Restricts [`of`](Self::of) to some of its operations: bits needed only by others are free again. `known`: as for
    /// `of`.
    pub fn only_of<'a>(self, operations: impl Iterator<Item = &'a Operation>, known: MailboxKeywords) -> Self {
        let bit_of = |name: &str| self.named.iter().find(|(_, named)| named.eq_ignore_ascii_case(name));
        Self::of(operations, known, |name| bit_of(name).map(|(bit, _)| *bit))
    }

    /// Assigns bits to these names, as long as there are free ones.
    pub fn with<'a>(
        names: impl Iterator<Item = &'a str>,
        known: MailboxKeywords,
        letter_of: impl Fn(&str) -> Option<u8>,
    ) -> Self {
        let mut new = Self { keywords: known, named: Vec::new() };
        names.for_each(|name| new.add(name, &letter_of));
        new
    }

    /// The flag of a keyword; `None` if it got no bit.
    pub fn flag(&self, name: &str) -> Option<MessageFlags> {
        self.keywords.flag(name)
    }

    /// Letters for the file name of a message with these flags.
    pub fn letters_of(&self, flags: MessageFlags) -> String {
        self.keywords.letters_of(flags)
    }

    /// Entries of the keywords that are new.
    pub fn entries(&self, mailbox: u32) -> Vec<MailEntry> {
        let entry = |(bit, name): &(u8, Arc<str>)| {
            let name = Bytes::copy_from_slice(name.as_bytes());
            MailEntry::Keyword { mailbox, bit: *bit, name }
        };
        self.named.iter().map(entry).collect()
    }

    fn add(&mut self, name: &str, letter_of: impl Fn(&str) -> Option<u8>) {
        if self.keywords.flag(name).is_some() {
            return;
        }
        let letter = letter_of(name).filter(|bit| self.keywords.is_free_for(*bit, name));
        if let Some(bit) = letter.or_else(|| self.keywords.free_bit()) {
            self.keywords.insert(bit, name.as_bytes());
            self.named.push((bit, name.into()));
        }
    }
}

/// The state of a mailbox after some changes.
pub(super) struct Scratch<'a> {
    state: &'a MailboxState,
    new: NewKeywords,
    /// Flags of messages that have changed.
    flags: BTreeMap<u32, MessageFlags>,
    gone: BTreeSet<u32>,
}

impl<'a> Scratch<'a> {
    pub fn new(state: &'a MailboxState, new: NewKeywords) -> Self {
        Self { state, new, flags: BTreeMap::new(), gone: BTreeSet::new() }
    }

    /// Makes one change.
    ///
    /// # Errors
    /// [`MailstoreError::Limit`]: a keyword has no bit. Nothing is changed.
    pub fn apply(&mut self, operation: &Operation) -> Result<StoredFlags, MailstoreError> {
        match operation {
            Operation::Store { uids, update, unchanged_since } => self.store(uids, update, *unchanged_since),
            Operation::Expunge(among) => {
                let among = among.as_ref().map(|ranges| MessageSet::merged(ranges));
                let is_among = |uid: u32| {
                    let within = |ranges: &Vec<NumberRange>| {
                        let at = ranges.partition_point(|range| range.last < uid);
                        ranges.get(at).is_some_and(|range| range.first <= uid)
                    };
                    among.as_ref().is_none_or(within)
                };
                let messages = self.state.now.messages.iter();
                let deleted = messages.filter(|message| self.flags_of(message).contains(MessageFlags::DELETED));
                let deleted: Vec<u32> = deleted.map(|message| message.uid).filter(|uid| is_among(*uid)).collect();
                self.gone.extend(deleted);
                Ok(StoredFlags::default())
            }
            Operation::Name(names) => {
                if names.iter().all(|name| self.new.flag(name).is_some()) {
                    Ok(StoredFlags::default())
                } else {
                    Err(MailstoreError::Limit)
                }
            }
            Operation::Remove(uids) => {
                let there: Vec<u32> = uids.iter().filter_map(|uid| Some(self.find(*uid)?.uid)).collect();
                self.gone.extend(there);
                Ok(StoredFlags::default())
            }
        }
    }

    fn find(&self, uid: Uid) -> Option<&'a Message<Arc<MailFile>>> {
        self.state.now.find(uid).filter(|message| !self.gone.contains(&message.uid))
    }

    fn flags_of(&self, message: &Message<Arc<MailFile>>) -> MessageFlags {
        self.flags.get(&message.uid).copied().unwrap_or(message.flags)
    }

    fn store(
        &mut self,
        uids: &[Uid],
        update: &FlagUpdate,
        unchanged_since: Option<u64>,
    ) -> Result<StoredFlags, MailstoreError> {
        let mut these = MessageFlags(update.flags.0 & SYSTEM_BITS);
        for name in &update.keywords {
            match self.new.flag(name) {
                Some(flag) => these = these.with(flag),
                None if update.mode == FlagUpdateMode::Remove => {}
                None => return Err(MailstoreError::Limit),
            }
        }
        let mut outcome = StoredFlags::default();
        for uid in uids {
            let Some(message) = self.find(*uid) else {
                outcome.gone = true;
                continue;
            };
            // What this batch has changed gets its MODSEQ, which is higher than any that a client knows.
            let is_late = |since| message.modseq > since || self.flags.contains_key(&message.uid);
            if unchanged_since.is_some_and(is_late) {
                outcome.modified.push(*uid);
                continue;
            }
            let old = self.flags_of(message);
            let new = update.mode.apply(old, these);
            if new != old {
                self.flags.insert(message.uid, new);
            }
        }
        Ok(outcome)
    }

    /// All changes as entries.
    pub fn entries(self, mailbox: u32) -> Vec<MailEntry> {
        let Self { state, new, flags, gone } = self;
        let mut entries = new.entries(mailbox);
        let mut groups: BTreeMap<(u64, u32), Vec<u32>> = BTreeMap::new();
        for (uid, flags) in flags.into_iter().filter(|(uid, _)| !gone.contains(uid)) {
            let message = Uid::new(uid).and_then(|uid| state.now.find(uid));
            if let Some(message) = message.filter(|message| message.flags != flags) {
                let base = state.behind.get(&uid).copied();
                groups.entry(stored(&new.keywords, &message.file, base, flags)).or_default().push(uid);
            }
        }
        if !groups.is_empty() {
            let group = |((flags, letters), uids): ((u64, u32), Vec<u32>)| StateGroup {
                set: ranges(uids.into_iter()),
                flags,
                letters,
            };
            entries.push(MailEntry::State { mailbox, groups: groups.into_iter().map(group).collect() });
        }
        if !gone.is_empty() {
            let set = ranges(gone.into_iter());
            entries.push(MailEntry::Gone { mailbox, set, reason: GoneReason::Expunged, when: now_secs() });
        }
        entries
    }
}

/// Flags with the table's own bits, and letters last seen. `base`: letters of a name that already lags.
fn stored(keywords: &MailboxKeywords, file: &MailFile, base: Option<u32>, flags: MessageFlags) -> (u64, u32) {
    let place = if file.is_new() { flag_bits::IN_NEW } else { 0 };
    if keywords.shows(&file.name, flags) {
        (flags.0 | place, 0)
    } else {
        (flags.0 | place | flag_bits::BEHIND, base.unwrap_or_else(|| letters_in(&file.name)))
    }
}
