//! The visible state of a mailbox: the ledger's rows and each entry since.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::Subdir;

use super::file::{MailFile, name_with_letters};
use super::keywords::{MailboxKeywords, letters_text};
use crate::entry::{BodyPlace, GoneReason, MailEntry, MessageFacts, NewMessage, WireSize};
use crate::flags::MessageFlags;
use crate::ledger::{MailLedger, StoredMailbox, StoredMessage};
use crate::message_list::Message;
use crate::row::{Uid, UidValidity};
use crate::snapshot::Snapshot;
use crate::table::{FixedMessage, LeavingRow, MailboxHead, flag_bits};

pub(super) type Messages = Snapshot<Arc<MailFile>>;
/// Examined files whose entries are in flight, by name.
pub(super) type LookedAt = HashMap<Box<str>, Arc<MailFile>>;

/// A mailbox as its sessions see it.
#[derive(Debug)]
pub(super) struct MailboxState {
    pub uid_validity: UidValidity,
    pub keywords: MailboxKeywords,
    pub now: Arc<Messages>,
    /// Files whose entries are being appended, so that applying an entry finds the examined file.
    pub looked_at: LookedAt,
    /// Messages with flags that their file names do not show yet, with the letters last seen there.
    pub behind: BTreeMap<u32, u32>,
    /// Files of expunged messages that may still exist, by UID.
    pub leaving: BTreeMap<u32, Arc<MailFile>>,
    /// UIDs in `leaving` whose files are gone, according to the page cache.
    pub absent: BTreeSet<u32>,
    /// The last batch with found files, and their number so far.
    found: (u64, u16),
    /// Stamps in the head that was read.
    pub stamps: [(i64, u64); 2],
    /// The lowest UID in `new/`, by the rows read.
    pub recent_from: u32,
}

impl MailboxState {
    pub fn of(stored: StoredMailbox, ledger: &MailLedger) -> Self {
        let StoredMailbox { head, messages, keywords, leaving } = stored;
        let keywords = MailboxKeywords::stored(&keywords);
        let is_behind = |message: &&StoredMessage| message.state.flags & flag_bits::BEHIND != 0;
        let behind = messages.values().filter(is_behind).map(|message| (message.state.uid, message.state.letters));
        let behind = behind.collect();
        let leaving = leaving.into_iter().filter_map(|(uid, row)| Some((uid, leaving_file(row, ledger)?))).collect();
        let is_new = |message: &&StoredMessage| message.state.flags & flag_bits::IN_NEW != 0;
        let recent_from = messages.values().find(is_new).map_or(head.next_uid.max(1), |message| message.fixed.uid);
        let (stamps, found) = (head.stamps, (0, 0));
        // Few messages have flags that no other has.
        let mut letters: HashMap<u64, String> = HashMap::new();
        let loaded = |message: StoredMessage| {
            let flags = visible(message.state.flags);
            let letters = letters.entry(flags.0).or_insert_with(|| keywords.letters_of(flags));
            loaded(message, letters, &head, ledger)
        };
        let messages = messages.into_values().filter_map(loaded).collect();
        let now = Snapshot {
            messages,
            uid_next: head.next_uid.max(1),
            highest_modseq: head.highest_modseq.max(head.modseq_floor).max(1),
            keywords: keywords.table(),
        };
        let uid_validity = UidValidity(Uid::new(head.uid_validity).or(Uid::new(1)).expect("it is not 0").0);
        let (looked_at, absent) = (LookedAt::default(), BTreeSet::new());
        let now = Arc::new(now);
        Self { uid_validity, keywords, now, looked_at, behind, leaving, absent, found, stamps, recent_from }
    }

    /// Applies entries published since the last call. False if there were too many: read the mailbox again.
    pub fn catch_up(&mut self, ledger: &MailLedger, mailbox: u32) -> bool {
        let Some(tail) = ledger.take_tail(mailbox) else { return false };
        if tail.is_empty() {
            return true;
        }
        let mut now = Snapshot::clone(&self.now);
        for (lsn, payload) in tail {
            if let Some(entry) = MailEntry::decode(&payload) {
                self.apply(&mut now, lsn, entry, ledger);
                now.highest_modseq = now.highest_modseq.max(lsn);
            }
        }
        now.keywords = self.keywords.table();
        self.now = Arc::new(now);
        true
    }

    fn apply(&mut self, now: &mut Messages, lsn: u64, entry: MailEntry, ledger: &MailLedger) {
        match entry {
            MailEntry::New { first_uid, messages, .. } => {
                for (uid, NewMessage { facts, target, place, .. }) in (first_uid..u32::MAX).zip(messages) {
                    if uid < now.uid_next {
                        continue;
                    }
                    now.uid_next = uid + 1;
                    let (file, body) = match place {
                        BodyPlace::Batch { .. } => (own_file((lsn, target), facts.wire_size, ledger), lsn),
                        BodyPlace::Copied(origin) => (found_file(&facts, &origin.name, &self.looked_at), origin.lsn),
                    };
                    let Some(file) = file else { continue };
                    if facts.flags & flag_bits::BEHIND != 0 {
                        self.behind.insert(uid, 0);
                    }
                    now.messages.push(added((uid, lsn), &facts, (body, target), file));
                }
            }
            MailEntry::Found { first_uid, messages, .. } => {
                for (uid, (facts, name)) in (first_uid..u32::MAX).zip(messages) {
                    let email_id = self.found_in(lsn);
                    if uid < now.uid_next {
                        continue;
                    }
                    now.uid_next = uid + 1;
                    let Some(file) = found_file(&facts, &name, &self.looked_at) else { continue };
                    now.messages.push(added((uid, lsn), &facts, email_id, file));
                }
            }
            MailEntry::State { groups, .. } => {
                for group in groups {
                    let (behind, is_behind) = (&mut self.behind, group.flags & flag_bits::BEHIND != 0);
                    now.messages.set_flags(&group.set, visible(group.flags), lsn, |uid| {
                        if is_behind {
                            behind.insert(uid, group.letters);
                        } else {
                            behind.remove(&uid);
                        }
                    });
                }
            }
            MailEntry::Gone { set, reason, .. } => {
                let is_gone = |uid: u32| {
                    let at = set.partition_point(|range| range.last < uid);
                    set.get(at).is_some_and(|range| range.first <= uid)
                };
                if matches!(reason, GoneReason::Expunged | GoneReason::Moved) {
                    let leaving = now.messages.iter().filter(|message| is_gone(message.uid));
                    self.leaving.extend(leaving.map(|message| (message.uid, Arc::clone(&message.file))));
                }
                self.behind.retain(|uid, _| !is_gone(*uid));
                now.messages.retain(|message| !is_gone(message.uid));
                let above = set.last().map_or(0, |range| range.last.saturating_add(1));
                now.uid_next = now.uid_next.max(above);
            }
            MailEntry::Keyword { bit, name, .. } => self.keywords.insert(bit, &name),
            MailEntry::Name { uid, name, .. } => {
                let file = std::str::from_utf8(&name).ok().and_then(|name| self.looked_at.get(name));
                if let (Some(file), Some(at)) = (file, now.messages.position(uid)) {
                    now.messages.set_file(at, Arc::clone(file));
                }
            }
            MailEntry::Size { uid, wire_size, .. } => {
                if let Some(at) = now.messages.position(uid) {
                    now.messages.set_wire_size(at, wire_size);
                }
            }
            _ => {}
        }
    }

    /// The batch and position of the next file that was found, as the table numbers them.
    fn found_in(&mut self, lsn: u64) -> (u64, u16) {
        let position = if self.found.0 == lsn { self.found.1 } else { 0 };
        self.found = (lsn, position.wrapping_add(1));
        (lsn, position)
    }

    /// Forgets the file of an expunged message: it is gone.
    pub fn forget_leaving(&mut self, uid: u32) {
        self.absent.remove(&uid);
        self.leaving.remove(&uid);
    }

    /// Sets files of messages, by UID.
    pub fn set_files(&mut self, files: Vec<(u32, Arc<MailFile>)>) {
        let messages = &self.now.messages;
        let renamed = files.into_iter().filter_map(|(uid, file)| Some((messages.position(uid)?, file))).collect();
        self.rename(renamed);
    }

    /// Sets new names of known files.
    pub fn rename(&mut self, renamed: Vec<(usize, Arc<MailFile>)>) {
        if renamed.is_empty() {
            return;
        }
        let mut now = Snapshot::clone(&self.now);
        renamed.into_iter().for_each(|(at, file)| now.messages.set_file(at, file));
        self.now = Arc::new(now);
    }
}

/// The message added by an entry.
fn added(
    (uid, modseq): (u32, u64),
    facts: &MessageFacts,
    email_id: (u64, u16),
    file: Arc<MailFile>,
) -> Message<Arc<MailFile>> {
    let MessageFacts { flags, internal_date, wire_size, .. } = *facts;
    Message { uid, flags: visible(flags), modseq, internal_date, wire_size, email_id, file }
}

/// Flags without the bits used by the table.
fn visible(flags: u64) -> MessageFlags {
    MessageFlags(flags & !(flag_bits::BEHIND | flag_bits::IN_NEW | flag_bits::NAMED))
}

fn subdir(flags: u64) -> Subdir {
    if flags & flag_bits::IN_NEW != 0 { Subdir::New } else { Subdir::Cur }
}

/// Sizes on disk and on the wire, if they are known.
fn sizes(wire_size: WireSize, line_feeds: u32) -> Option<(u64, u64)> {
    wire_size.known().map(|wire_size| (wire_size.saturating_sub(line_feeds.into()), wire_size))
}

fn found_file(facts: &MessageFacts, name: &Bytes, looked_at: &LookedAt) -> Option<Arc<MailFile>> {
    let name = std::str::from_utf8(name).ok()?;
    if let Some(file) = looked_at.get(name) {
        return Some(Arc::clone(file));
    }
    let (disk_size, wire_size) = sizes(facts.wire_size, facts.line_feeds).unzip();
    Some(Arc::new(MailFile::unseen(subdir(facts.flags), name.into(), disk_size, wire_size)))
}

/// The file made by delivery; `None` for mail of an unknown opening.
fn own_file(body: (u64, u16), wire_size: WireSize, ledger: &MailLedger) -> Option<Arc<MailFile>> {
    Some(Arc::new(MailFile::of_delivery(body, ledger.nonce_of(body.0)?, wire_size.known())))
}

/// The file of an expunged message; `None` as for [`loaded`].
fn leaving_file(row: LeavingRow, ledger: &MailLedger) -> Option<Arc<MailFile>> {
    let LeavingRow { body, wire_size, line_feeds, name } = row;
    let Some(name) = name else { return own_file(body, wire_size, ledger) };
    let (disk_size, wire_size) = sizes(wire_size, line_feeds).unzip();
    Some(Arc::new(MailFile::unseen(Subdir::Cur, std::str::from_utf8(&name).ok()?.into(), disk_size, wire_size)))
}

/// A message read from the table. `letters`: letters of its flags. `None` if the name of its file is unknown.
fn loaded(
    message: StoredMessage,
    letters: &str,
    head: &MailboxHead,
    ledger: &MailLedger,
) -> Option<Message<Arc<MailFile>>> {
    let StoredMessage { fixed, state, name } = message;
    let (flags, subdir) = (visible(state.flags), subdir(state.flags));
    let file = match name {
        None => own_file((fixed.lsn, fixed.target), fixed.wire_size, ledger)?,
        Some(name) => {
            let shown = (state.flags & flag_bits::BEHIND != 0).then(|| letters_text(state.letters));
            let letters = shown.as_deref().unwrap_or(letters);
            let name = name_with_letters(std::str::from_utf8(&name).ok()?, subdir, letters);
            let (disk_size, wire_size) = sizes(fixed.wire_size, fixed.line_feeds).unzip();
            Arc::new(MailFile::unseen(subdir, name, disk_size, wire_size))
        }
    };
    let modseq = state.modseq.max(head.modseq_floor);
    let FixedMessage { uid, internal_date, wire_size, lsn, target, .. } = fixed;
    Some(Message { uid, flags, modseq, internal_date, wire_size, email_id: (lsn, target), file })
}
