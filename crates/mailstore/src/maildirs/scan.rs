//! From the files of a Maildir to messages with UIDs.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use posthaste_maildir::tree::{Stamp, key_of_name};
use posthaste_maildir::{Keywords, MaildirReader, Subdir};

use super::file::{MailFile, flags_of, internal_date, keyword_table};
use crate::snapshot::{Message, Snapshot};

pub(super) type Messages = Snapshot<Arc<MailFile>>;

/// All that is known of a Maildir. UIDs are of this value: each file gets one once.
#[derive(Debug)]
pub(super) struct Scan {
    /// Of the last listing, if nothing can have changed unseen since.
    settled: Option<[Stamp; 2]>,
    keywords: Keywords,
    now: Arc<Messages>,
}

/// What the operator should know of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Oddities {
    /// A name that is no regular file, or could not be looked at.
    pub no_file: Option<String>,
    /// Names that are not UTF-8.
    pub not_utf8: usize,
    /// The table of keywords cannot be read.
    pub keywords: Option<String>,
    /// All UIDs have been given.
    pub out_of_uids: bool,
}

/// A name as it was listed.
struct Listed {
    subdir: Subdir,
    name: String,
    inode: u64,
}

impl Scan {
    pub fn new() -> Self {
        Self { settled: None, keywords: Keywords::default(), now: Arc::new(Snapshot::empty()) }
    }

    /// The messages as of the last look.
    pub fn messages(&self) -> &Arc<Messages> {
        &self.now
    }

    /// Looks for changes. A message that is missing is gone only if the directories stood still while they were listed: else `getdents` may have missed it.
    ///
    /// The files of `suspects` (UIDs) are looked at: with another content they are other messages.
    ///
    /// # Errors
    /// Those of `open`, `getdents` and `stat`; the messages are as before.
    pub fn look(&mut self, reader: &MaildirReader, suspects: &HashSet<u32>, odd: &mut Oddities) -> io::Result<()> {
        let looked_at = SystemTime::now();
        let before = reader.stamps()?;
        let keywords = reader.keywords().unwrap_or_else(|error| {
            odd.keywords = Some(error.to_string());
            self.keywords.clone()
        });
        let has_other_keywords = keywords != self.keywords;
        self.keywords = keywords;
        if self.settled == Some(before) && suspects.is_empty() {
            if has_other_keywords {
                self.take_in(Found::unchanged(&self.now), false, odd);
            }
            return Ok(());
        }
        let settle = reader.settle_time()?;
        let listed = list(reader, odd)?;
        let found = self.match_up(reader, listed, suspects, odd)?;
        let is_quiet = reader.stamps()? == before
            && before.iter().all(|stamp| stamp.is_older_than(settle, looked_at))
            && !found.has_unclear;
        self.settled = is_quiet.then_some(before);
        self.take_in(found, is_quiet, odd);
        Ok(())
    }

    fn match_up(
        &self,
        reader: &MaildirReader,
        listed: Vec<Listed>,
        suspects: &HashSet<u32>,
        odd: &mut Oddities,
    ) -> io::Result<Found> {
        let messages = &self.now.messages;
        let mut found = Found { old: vec![Old::Missing; messages.len()], new: HashMap::new(), has_unclear: false };
        // By key and inode: a file that another program puts under a known key is another message.
        let known: HashMap<(&str, u64), usize> = messages
            .iter()
            .enumerate()
            .map(|(at, message)| ((key_of_name(&message.file.name), message.file.inode), at))
            .collect();
        for Listed { subdir, name, inode } in listed {
            let at = known.get(&(key_of_name(&name), inode)).copied();
            if let Some(at) = at.filter(|at| !suspects.contains(&messages[*at].uid)) {
                found.note(at, &messages[at].file, subdir, name);
                continue;
            }
            match reader.facts(subdir, &name) {
                Ok(Some(facts)) => match at {
                    Some(at) if facts == messages[at].file.facts => found.note(at, &messages[at].file, subdir, name),
                    at => {
                        at.inspect(|at| found.old[*at] = Old::Replaced);
                        found.add(MailFile::new(subdir, name.into(), inode, facts));
                    }
                },
                // No file, or gone since it was listed, which has changed the directory.
                Ok(None) => {}
                Err(error) => {
                    found.has_unclear = true;
                    odd.no_file = Some(format!("{name:?}: {error}"));
                }
            }
        }
        Ok(found)
    }

    fn take_in(&mut self, found: Found, is_quiet: bool, odd: &mut Oddities) {
        let Found { old, new, .. } = found;
        let mut messages = Vec::with_capacity(old.len() + new.len());
        let mut is_same = new.is_empty();
        for (message, old) in self.now.messages.iter().zip(old) {
            let file = match old {
                Old::Replaced => None,
                Old::Missing if is_quiet => None,
                Old::Missing | Old::There => Some(Arc::clone(&message.file)),
                Old::Renamed(subdir, name) => Some(Arc::new(message.file.renamed(subdir, name))),
            };
            let Some(file) = file else {
                is_same = false;
                continue;
            };
            is_same &= Arc::ptr_eq(&file, &message.file);
            messages.push(Message { flags: flags_of(&file.name, &self.keywords), file, ..message.clone() });
        }
        let mut new: Vec<MailFile> = new.into_values().collect();
        new.sort_unstable_by(|a, b| (a.facts.mtime_ns, &a.name).cmp(&(b.facts.mtime_ns, &b.name)));
        let mut uid_next = self.now.uid_next;
        for file in new {
            // The last number stays free, so that there always is a next UID to tell.
            if uid_next == u32::MAX {
                odd.out_of_uids = true;
                break;
            }
            let (flags, internal_date) = (flags_of(&file.name, &self.keywords), internal_date(&file));
            messages.push(Message { uid: uid_next, flags, internal_date, file: Arc::new(file) });
            uid_next += 1;
        }
        let keywords = keyword_table(&self.keywords);
        if !is_same || keywords != self.now.keywords {
            self.now = Arc::new(Snapshot { messages, uid_next, keywords });
        }
    }
}

/// What became of known messages, and files that are new.
struct Found {
    old: Vec<Old>,
    /// By key and inode.
    new: HashMap<(Box<str>, u64), MailFile>,
    /// A file could not be looked at.
    has_unclear: bool,
}

#[derive(Debug, Clone)]
enum Old {
    Missing,
    There,
    Renamed(Subdir, Box<str>),
    Replaced,
}

impl Found {
    fn unchanged(now: &Messages) -> Self {
        Self { old: vec![Old::There; now.messages.len()], new: HashMap::new(), has_unclear: false }
    }

    fn add(&mut self, file: MailFile) {
        let key = (key_of_name(&file.name).into(), file.inode);
        let before = self.new.get(&key);
        if before.is_none_or(|before| !is_first((before.subdir, &before.name), (file.subdir, &file.name))) {
            self.new.insert(key, file);
        }
    }

    fn note(&mut self, at: usize, file: &MailFile, subdir: Subdir, name: String) {
        let before = match &self.old[at] {
            Old::There => Some((file.subdir, &*file.name)),
            Old::Renamed(subdir, name) => Some((*subdir, &**name)),
            Old::Missing | Old::Replaced => None,
        };
        if before.is_some_and(|before| is_first(before, (subdir, &name))) {
            return;
        }
        self.old[at] = match (subdir, &*name) == (file.subdir, &*file.name) {
            true => Old::There,
            false => Old::Renamed(subdir, name.into()),
        };
    }
}

/// Of two names of one file, as a rename shows them to a listing: `cur/` comes before `new/`, then the order of bytes decides.
fn is_first(one: (Subdir, &str), other: (Subdir, &str)) -> bool {
    let order = |(subdir, name): (Subdir, _)| (subdir == Subdir::New, name);
    order(one) < order(other)
}

/// All names, those of `new/` first: messages move from there to `cur/`, and seldom back.
fn list(reader: &MaildirReader, odd: &mut Oddities) -> io::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for subdir in [Subdir::New, Subdir::Cur] {
        odd.not_utf8 += reader.for_each_name(subdir, |found| match found.is_file {
            Some(false) => odd.no_file = Some(format!("{:?}: no regular file", found.name)),
            _ => listed.push(Listed { subdir, name: found.name.to_owned(), inode: found.inode }),
        })?;
    }
    Ok(listed)
}
