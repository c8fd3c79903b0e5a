//! Finds changes of a Maildir by its files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{Keywords, MaildirReader};

use super::body::wire_len;
use super::file::{MailFile, internal_date, own_part};
use super::keywords::{MailboxKeywords, letters_in};
use super::known_files::KnownFiles;
use super::layout::MESSAGE_BYTES_MAX;
use super::listed::{Candidate, Listed, Others};
use super::rekeyed::take_rekeyed;
use super::seconds::now_secs;
use super::state::{LookedAt, MailboxState};
use super::told::Oddities;
use crate::entry::{FOUND_MAX, GoneReason, MailEntry, MessageFacts, StateGroup, WireSize};
use crate::ledger::{MailLedger, MailLedgerError};
use crate::row::ranges;
use crate::table::flag_bits;

/// Bytes of file names in one batch. Smaller in tests, for takeovers with several batches.
const NAME_BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 2 << 20 };

/// Differences between a listing and the previous state.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Listed files of expunged messages.
    leaving: Vec<(u32, Arc<MailFile>)>,
    /// Expunged messages without files.
    absent: Vec<u32>,
    /// True if copies were found in `tmp/` and moved to `new/`.
    has_placed: bool,
    /// Messages that are missing, by position.
    missing: Vec<usize>,
    /// True if messages are missing whose files delivery has not made yet.
    has_awaited: bool,
    /// Messages whose file has different content now.
    replaced: Vec<usize>,
    /// Files that were renamed.
    renamed: Vec<(usize, Arc<MailFile>)>,
    /// Files that another program gave another key, by UID.
    rekeyed: Vec<(u32, Arc<MailFile>)>,
    /// New files, in the order of their future UIDs.
    found: Vec<Arc<MailFile>>,
    others: Others,
    /// True if a file could not be examined.
    has_unclear: bool,
}

impl Difference {
    /// Compares a listing with the previous state.
    pub fn new(known: &KnownFiles<'_>, reader: &MaildirReader, listed: Vec<Listed>, odd: &mut Oddities) -> Self {
        let messages = &known.now.messages;
        let mut difference = Self::default();
        let keys = messages.iter().enumerate().map(|(at, message)| (key_of_name(&message.file.name), at));
        let known_keys: HashMap<&str, usize> = keys.collect();
        let leaving_keys = known.leaving_keys();
        let mut old = vec![Candidate::default(); messages.len()];
        let mut new: HashMap<Box<str>, Candidate> = HashMap::new();
        let mut leaving: BTreeMap<u32, Candidate> = BTreeMap::new();
        for next in listed {
            let key = key_of_name(&next.name);
            // Of a file that was not listed before only this part is known.
            let own = own_part(&next.name);
            if let Some(at) = known_keys.get(key).or_else(|| known_keys.get(own?)) {
                old[*at].add(next, messages[*at].file.inode(), &mut difference.others);
            } else if let Some(uid) = leaving_keys.get(key).or_else(|| leaving_keys.get(own?)) {
                leaving.entry(*uid).or_default().add(next, None, &mut difference.others);
            } else {
                let key = key.into();
                new.entry(key).or_default().add(next, None, &mut difference.others);
            }
        }
        for (at, Candidate { listed, has_twin }) in old.into_iter().enumerate() {
            match listed {
                None if known.is_awaited(&messages[at].file) => difference.has_awaited = true,
                None if known.is_to_place(&messages[at]) => match reader.place_in_new(&messages[at].file.name) {
                    Ok(()) => difference.has_placed = true,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => difference.missing.push(at),
                    Err(error) => odd.no_file = Some(format!("{:?}: {error}", messages[at].file.name)),
                },
                None => difference.missing.push(at),
                // Its file must not leave under one name and be found again under the other.
                Some(_) if has_twin && messages[at].file.inode().is_none() => {}
                Some(listed) => {
                    let is_suspect = known.suspects.contains(&messages[at].uid);
                    difference.note(at, &messages[at].file, listed, is_suspect, reader, odd);
                }
            }
        }
        difference.note_leaving(known, leaving, reader, odd);
        for listed in new.into_values().filter_map(|candidate| candidate.listed) {
            let facts = difference.facts(reader, &listed, odd);
            if let Some(facts) = facts {
                let Listed { subdir, name, inode } = listed;
                difference.found.push(Arc::new(MailFile::new(subdir, name.into(), inode, facts)));
            }
        }
        difference.rekeyed = take_rekeyed(known, reader, &mut difference.missing, &mut difference.found);
        difference.found.sort_unstable_by(|a, b| a.age_order().cmp(&b.age_order()));
        difference
    }

    /// True if no known message is missing, and each file could be examined.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && !self.has_unclear
    }

    /// Notes files of expunged messages. A file of another size is a new message.
    fn note_leaving(
        &mut self,
        known: &KnownFiles<'_>,
        mut listed: BTreeMap<u32, Candidate>,
        reader: &MaildirReader,
        odd: &mut Oddities,
    ) {
        for (uid, file) in known.leaving {
            let Candidate { listed, has_twin } = listed.remove(uid).unwrap_or_default();
            if has_twin {
                continue;
            }
            let Some(listed) = listed else {
                if known.is_awaited(file) {
                    self.has_awaited = true
                } else {
                    self.absent.push(*uid)
                }
                continue;
            };
            let Some(facts) = self.facts(reader, &listed, odd) else { continue };
            let Listed { subdir, name, inode } = listed;
            if file.disk_size().is_none_or(|size| size == facts.size) {
                self.leaving.push((*uid, Arc::new(file.renamed(subdir, name.into(), inode))))
            } else {
                self.absent.push(*uid);
                self.found.push(Arc::new(MailFile::new(subdir, name.into(), inode, facts)));
            }
        }
    }

    /// Notes a file under the key of a known message.
    fn note(
        &mut self,
        at: usize,
        file: &Arc<MailFile>,
        listed: Listed,
        is_suspect: bool,
        reader: &MaildirReader,
        odd: &mut Oddities,
    ) {
        let is_same = file.inode().is_none_or(|inode| inode == listed.inode) && !is_suspect;
        if !is_same {
            match self.facts(reader, &listed, odd) {
                Some(facts) if !file.is(&facts) => {
                    self.replaced.push(at);
                    let Listed { subdir, name, inode } = listed;
                    return self.found.push(Arc::new(MailFile::new(subdir, name.into(), inode, facts)));
                }
                Some(_) => {}
                // Gone since it was listed, or not to be looked at: then it is not missing either.
                None => return,
            }
        }
        if (listed.subdir, &*listed.name) != (file.subdir, &*file.name)
            || file.inode().is_some_and(|inode| inode != listed.inode)
        {
            let Listed { subdir, name, inode } = listed;
            self.renamed.push((at, Arc::new(file.renamed(subdir, name.into(), inode))));
        } else {
            file.set_inode(listed.inode);
        }
    }

    fn facts(
        &mut self,
        reader: &MaildirReader,
        listed: &Listed,
        odd: &mut Oddities,
    ) -> Option<posthaste_maildir::tree::FileFacts> {
        // No file, or gone since it was listed, which has changed the directory.
        reader.facts(listed.subdir, &listed.name).unwrap_or_else(|error| {
            self.has_unclear = true;
            odd.no_file = Some(format!("{:?}: {error}", listed.name));
            None
        })
    }

    /// Applies new names of known files to the state, and returns the changes to make durable. Without `is_quiet`,
    /// missing messages stay. Other tasks only add messages meanwhile, so the plan holds until it is durable.
    pub fn plan(
        mut self,
        state: &mut MailboxState,
        mailbox: u32,
        (is_quiet, keywords): (bool, Option<&Keywords>),
    ) -> Plan {
        let is_quiet = is_quiet && !self.has_unclear;
        let mut changes = Vec::new();
        let named = keywords.map_or(Vec::new(), |file| state.keywords.missing(file));
        let mut keywords = state.keywords.clone();
        for (bit, name) in named {
            keywords.insert(bit, name.as_bytes());
            changes.push(MailEntry::Keyword { mailbox, bit, name: Bytes::copy_from_slice(name.as_bytes()) });
        }
        state.rename(std::mem::take(&mut self.renamed));
        state.leaving.extend(std::mem::take(&mut self.leaving));
        if is_quiet {
            state.absent.extend(std::mem::take(&mut self.absent));
        }
        let messages = &state.now.messages;
        let mut gone = if is_quiet { std::mem::take(&mut self.missing) } else { Vec::new() };
        gone.append(&mut self.replaced);
        gone.sort_unstable();
        changes.extend(entry_of_gone(state, mailbox, &gone));
        changes.extend(entry_of_states(state, mailbox, &gone, &keywords));
        let mut keys = HashSet::new();
        if !self.others.seconds.is_empty() {
            let names =
                messages.iter().map(|message| &message.file.name).chain(self.found.iter().map(|file| &file.name));
            keys.extend(names.map(|name| key_of_name(name).to_owned()));
        }
        let name = |(uid, file): &(u32, Arc<MailFile>)| MailEntry::Name { mailbox, uid: *uid, name: name_of(file) };
        changes.extend(self.rekeyed.iter().map(name));
        let (found, others) = (self.found, self.others);
        let (has_awaited, has_placed) = (self.has_awaited, self.has_placed);
        let rekeyed = self.rekeyed.into_iter().map(|(_, file)| file).collect();
        Plan { changes, rekeyed, keywords, found, others, keys, is_quiet, has_awaited, has_placed }
    }
}

/// Changes to make durable.
pub(super) struct Plan {
    changes: Vec<MailEntry>,
    /// Files of `changes` with other keys.
    rekeyed: Vec<Arc<MailFile>>,
    /// Keywords after `changes`.
    keywords: MailboxKeywords,
    found: Vec<Arc<MailFile>>,
    others: Others,
    /// All keys, if several files share one.
    keys: HashSet<String>,
    is_quiet: bool,
    has_awaited: bool,
    has_placed: bool,
}

impl Plan {
    /// Makes the changes durable. Calls `looked_at` with files before their entries are appended; `catch_up` applies
    /// published entries to the state. Blocks.
    pub fn carry_out(
        mut self,
        reader: &MaildirReader,
        to: (&MailLedger, u32),
        (looked_at, catch_up): (&dyn Fn(LookedAt), &dyn Fn()),
        odd: &mut Oddities,
    ) -> Settled {
        // Its letters are looked at once the ledger has the name.
        let has_rekeyed = !self.rekeyed.is_empty();
        let is_done = self.append(reader, to, (looked_at, catch_up), odd);
        let has_apart = self.is_quiet && set_apart(reader, &self.others, &mut self.keys, odd);
        if !is_done {
            return Settled::No;
        }
        if has_apart || has_rekeyed || self.has_placed {
            return Settled::LookAgain;
        }
        // One that is awaited may be gone without a change of the directory.
        let is_settled = self.is_quiet && self.others.is_empty() && !self.has_awaited;
        if is_settled { Settled::Yes } else { Settled::No }
    }

    /// Appends in batches; the first has all changes of known messages.
    fn append(
        &mut self,
        reader: &MaildirReader,
        (ledger, mailbox): (&MailLedger, u32),
        (looked_at, catch_up): (&dyn Fn(LookedAt), &dyn Fn()),
        odd: &mut Oddities,
    ) -> bool {
        let mut changes = std::mem::take(&mut self.changes);
        let mut left = &self.found[..];
        while !left.is_empty() || !changes.is_empty() {
            let (now, later) = left.split_at(batch_len(left.iter().map(|file| file.name.len())));
            let facts = |file: &Arc<MailFile>| (facts_of(reader, file, &self.keywords), name_of(file));
            let messages: Vec<_> = now.iter().map(facts).collect();
            let entries = std::mem::take(&mut changes);
            let rekeyed = std::mem::take(&mut self.rekeyed);
            looked_at(now.iter().chain(&rekeyed).map(|file| (file.name.clone(), Arc::clone(file))).collect());
            let done = ledger.append_uids(mailbox, messages.len() as u32, |first_uid| {
                let found = MailEntry::Found { mailbox, first_uid, messages };
                entries.into_iter().chain((!now.is_empty()).then_some(found)).collect()
            });
            if let Err(error) = done {
                odd.out_of_uids |= matches!(error, MailLedgerError::OutOfUids);
                odd.not_durable = Some(error.to_string());
                return false;
            }
            catch_up();
            left = later;
        }
        true
    }
}

/// Result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// The state is valid as long as the stamps are the same.
    Yes,
    /// A change may have been missed, or was not made durable.
    No,
    /// Files were renamed to unique keys: look again.
    LookAgain,
}

/// Number of files in one batch.
pub(super) fn batch_len(name_bytes: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0;
    let fits = |bytes: &usize| {
        sum += bytes;
        sum <= NAME_BYTES_MAX
    };
    name_bytes.take(FOUND_MAX).take_while(fits).count()
}

pub(super) fn name_of(file: &MailFile) -> Bytes {
    Bytes::copy_from_slice(file.name.as_bytes())
}

/// The facts of a file that gets a UID. Reads it, unless its name has the sizes.
pub(super) fn facts_of(reader: &MaildirReader, file: &MailFile, keywords: &MailboxKeywords) -> MessageFacts {
    if file.wire_size().is_none() {
        // One that cannot be read now has no known size.
        let opened = reader.open(file.subdir, &file.name).ok().flatten();
        if let Some((opened, facts)) = opened.filter(|(_, facts)| file.is(facts) && facts.size <= MESSAGE_BYTES_MAX) {
            let _ = wire_len(&opened, facts.size, file);
        }
    }
    let line_feeds = |wire: u64| u32::try_from(wire.checked_sub(file.disk_size()?)?).ok();
    let sizes = file.wire_size().and_then(|wire| Some((WireSize::of(wire), line_feeds(wire)?)));
    let (wire_size, line_feeds) = sizes.unwrap_or_default();
    let place = if file.is_new() { flag_bits::IN_NEW } else { 0 };
    MessageFacts {
        flags: keywords.flags_of(&file.name).0 | place,
        internal_date: internal_date(&file.known_facts()),
        save_date: now_secs(),
        wire_size,
        line_feeds,
    }
}

fn entry_of_gone(state: &MailboxState, mailbox: u32, positions: &[usize]) -> Option<MailEntry> {
    let set = ranges(positions.iter().map(|at| state.now.messages[*at].uid));
    (!set.is_empty()).then(|| MailEntry::Gone { mailbox, set, reason: GoneReason::Missing, when: now_secs() })
}

/// Messages whose flags another program has changed in their names. A local change that is not in the name yet wins.
fn entry_of_states(
    state: &MailboxState,
    mailbox: u32,
    gone: &[usize],
    keywords: &MailboxKeywords,
) -> Option<MailEntry> {
    let lettered = keywords.lettered();
    let mut groups: BTreeMap<(u64, u32), Vec<u32>> = BTreeMap::new();
    for (at, message) in state.now.messages.iter().enumerate() {
        // Of a file that was not listed the name is made up.
        if message.file.inode().is_none() || gone.binary_search(&at).is_ok() {
            continue;
        }
        let theirs = keywords.flags_of(&message.file.name);
        let base = state.behind.get(&message.uid);
        let place = if message.file.is_new() { flag_bits::IN_NEW } else { 0 };
        let others = message.flags.without(lettered);
        let group = match base {
            None if theirs.0 == message.flags.0 & lettered.0 => continue,
            None => (theirs.with(others).0 | place, 0),
            Some(base) => {
                let changed = theirs.0 ^ keywords.flags_of_letters(*base).0;
                let merged = theirs.0 & changed | message.flags.0 & lettered.0 & !changed;
                // Our own rename, of which the ledger has not heard.
                let is_shown = merged == theirs.0 && merged == message.flags.0 & lettered.0;
                if changed == 0 || is_shown {
                    continue;
                }
                if merged == theirs.0 {
                    (merged | others.0 | place, 0)
                } else {
                    (merged | others.0 | place | flag_bits::BEHIND, letters_in(&message.file.name))
                }
            }
        };
        groups.entry(group).or_default().push(message.uid);
    }
    let group =
        |((flags, letters), uids): ((u64, u32), Vec<u32>)| StateGroup { set: ranges(uids.into_iter()), flags, letters };
    (!groups.is_empty()).then(|| MailEntry::State { mailbox, groups: groups.into_iter().map(group).collect() })
}

/// Gives files with a shared key their own keys, so that each key is one message with one file name. False if nothing
/// was changed.
fn set_apart(reader: &MaildirReader, others: &Others, keys: &mut HashSet<String>, odd: &mut Oddities) -> bool {
    let mut has_changed = false;
    for Listed { subdir, name, .. } in &others.seconds {
        match reader.give_other_key(*subdir, name, |key| keys.contains(key)) {
            Ok(key) => {
                keys.insert(key);
                has_changed = true;
            }
            Err(error) => odd.same_key = Some(format!("{name:?}: {error}")),
        }
    }
    for (kept, left) in &others.twins {
        match reader.remove_twin((kept.subdir, &kept.name), (left.subdir, &left.name)) {
            Ok(removed) => has_changed |= removed,
            Err(error) => odd.same_key = Some(format!("{:?}: {error}", left.name)),
        }
    }
    has_changed
}
