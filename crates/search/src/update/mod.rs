//! Brings an index up to date with the Maildirs it covers.
//!
//! 1. *Look*: walk the trees; a folder whose directories have the stamps of last time is done. The others are listed by name.
//! 2. *Compare*: a name that is known is unchanged; one whose key is known has new flags; what is left is new here, or missing there.
//! 3. *Read* the new ones, in inode order, on all cores. One whose content is that of a missing message has moved: its number, text and tags stay.
//! 4. *Commit*: the text index first, then the side store. Until then, readers see the last commit.
//!
//! A new index is committed every [`ROUND_MESSAGES`] messages, so that an interrupted first run goes on where it was.

mod diff;
mod read;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_maildir::tree::{TreeError, TreeOptions, walk};
use xxhash_rust::xxh3::xxh3_64;

use crate::state::{Lock, Record, StateError, StateWriter, bits};
use crate::tags::{self, AllTags, TagError, TagStore, Tags};
use crate::text::{base_subject, fold};
use crate::text_index::{Head, TextIndex};
use crate::threads::{Item, SubjectRule, thread};

use diff::{Candidate, Changes};

/// Messages read between two commits of a first index.
pub const ROUND_MESSAGES: usize = 131_072;

/// Why an index could not be opened or brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The side store: see there what can be done.
    #[error(transparent)]
    State(#[from] StateError),
    /// The text index is damaged, of another version, or cannot be written: rebuild, or make room.
    #[error("{}: {error}", dir.display())]
    Text {
        /// Its directory.
        dir: PathBuf,
        /// What the engine said.
        error: Box<tantivy::TantivyError>,
    },
    /// The tags could not be read or written.
    #[error(transparent)]
    Tags(#[from] TagError),
    /// A Maildir tree is not there. Its messages stay in the index; take the tree out with `forget` if it will not come back.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// There is nothing to index: no tree was named, now or earlier.
    #[error("no Maildir to index: name one")]
    NoRoot,
}

/// How an update goes about it.
#[derive(Debug, Clone)]
pub struct UpdateOptions {
    /// List every folder, whatever its directories' times say.
    pub list_all: bool,
    /// Also look at each file's size and time, and read again what differs (Maildir files should never change).
    pub check_files: bool,
    /// Also below directories marked `.noupdate`.
    pub into_noupdate: bool,
    /// Threads that read and index; 0 for one for each core, at most 8.
    pub threads: usize,
    /// Bytes of memory for the index of new messages, all threads together.
    pub memory_bytes: usize,
}

impl Default for UpdateOptions {
    fn default() -> Self {
        Self { list_all: false, check_files: false, into_noupdate: false, threads: 0, memory_bytes: 512 << 20 }
    }
}

/// How far an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Directories are being listed.
    Looking,
    /// New messages are being read.
    Reading {
        /// Messages done.
        done: u64,
        /// Messages to do.
        total: u64,
        /// Bytes done.
        bytes: u64,
    },
    /// What was read is being made durable.
    Committing,
}

/// What an update found and did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Folders there are.
    pub folders: usize,
    /// Directories (`new/`, `cur/`) whose names were read, because they changed or settled only now.
    pub listed: usize,
    /// Messages in the index afterwards.
    pub messages: u64,
    /// New messages.
    pub added: u64,
    /// Bytes read of them.
    pub bytes: u64,
    /// Messages found in another place.
    pub moved: u64,
    /// Messages with other flags or a longer or shorter name.
    pub renamed: u64,
    /// Messages that are gone.
    pub removed: u64,
    /// Messages that are not fully indexed: path and reason. Those of this update only.
    pub problems: Vec<(PathBuf, String)>,
    /// Directories and files that could not be read.
    pub troubles: Vec<(PathBuf, String)>,
    /// Time taken.
    pub took: Duration,
}

/// An index open for writing. There is one at a time.
pub struct Indexer {
    dir: PathBuf,
    _lock: Lock,
    state: StateWriter,
    text: TextIndex,
    tags: TagStore,
}

impl Indexer {
    /// Opens the index in `dir`, making it if there is none. `waiting` as in [`Lock::acquire`].
    ///
    /// # Errors
    /// [`IndexError`] but for `Tree` and `NoRoot`.
    pub fn open(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        let state = StateWriter::open(dir)?;
        let text_dir = dir.join("text");
        let text = TextIndex::open_or_create(&text_dir).map_err(|error| text_error(&text_dir, error))?;
        let tags = TagStore::open(dir)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock, state, text, tags })
    }

    /// Removes the index in `dir` (never the tags) and opens an empty one for the same trees.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn rebuild(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        let roots =
            crate::state::Snapshot::open(dir).map(|snapshot| snapshot.directory().roots.clone()).unwrap_or_default();
        let io = |error| StateError::Io { dir: dir.to_owned(), error };
        let gone = |result: std::io::Result<()>| match result {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(io),
        };
        // The pointer first: without it there is no index, whatever else a crash leaves.
        gone(std::fs::remove_file(dir.join("current")))?;
        gone(std::fs::remove_dir_all(dir.join("text")))?;
        drop(lock);
        let mut indexer = Self::open(dir, waiting)?;
        indexer.state.directory.roots = roots;
        Ok(indexer)
    }

    /// Looks at the trees of earlier updates and at `roots`, and takes over what changed.
    ///
    /// # Errors
    /// [`IndexError`]. Rounds that were committed before the error stay.
    pub fn update(
        &mut self,
        roots: &[PathBuf],
        options: &UpdateOptions,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Report, IndexError> {
        let started = Instant::now();
        let looked_at = SystemTime::now();
        progress(Progress::Looking);
        for root in roots {
            let root = std::path::absolute(root).unwrap_or_else(|_| root.clone());
            if !self.state.directory.roots.contains(&root) {
                self.state.directory.roots.push(root);
            }
        }
        if self.state.directory.roots.is_empty() {
            return Err(IndexError::NoRoot);
        }
        let mut report = Report::default();
        let tree_options = TreeOptions { into_noupdate: options.into_noupdate };
        let mut trees = Vec::new();
        for root in &self.state.directory.roots {
            trees.push(walk(root, &tree_options)?);
        }
        let changes = diff::compare(&mut self.state, &trees, options, looked_at, &mut report);
        self.apply(changes, options, progress, &mut report)?;
        report.messages = self.state.records().iter().filter(|record| record.flags & bits::GONE == 0).count() as u64;
        report.took = started.elapsed();
        Ok(report)
    }

    fn apply(
        &mut self,
        changes: Changes,
        options: &UpdateOptions,
        progress: &(dyn Fn(Progress) + Sync),
        report: &mut Report,
    ) -> Result<(), IndexError> {
        for rename in &changes.renamed {
            let record = self.state.change(rename.number);
            record.flags = record.flags & !bits::MUTABLE | rename.flags;
            record.name.clone_from(&rename.name);
        }
        report.renamed = changes.renamed.len() as u64;
        let mut missing = read::Missing::new(self.state.records(), &changes.missing);
        let tags = self.tags.all()?;
        let mut added = changes.added;
        let total = added.len() as u64;
        let mut done = read::Done::default();
        while !added.is_empty() {
            let rest = added.split_off(added.len().min(ROUND_MESSAGES));
            let batch = std::mem::replace(&mut added, rest);
            self.read_round(batch, &mut missing, options, &mut done, total, &tags, progress, report)?;
            if !added.is_empty() {
                self.thread_and_commit(progress)?;
            }
        }
        let gone = missing.left();
        for &number in &gone {
            self.state.change(number).flags |= bits::GONE;
        }
        report.removed = gone.len() as u64;
        if !gone.is_empty() {
            let next = u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
            self.commit_text(Vec::new(), &gone, next)?;
        }
        for (index, stamps) in changes.settled {
            let folder = &mut self.state.directory.folders[index];
            (folder.new, folder.cur) = stamps;
        }
        for (path, _) in &report.troubles {
            // Looked at again next time, whatever the stamps say.
            let folders = &mut self.state.directory.folders;
            let roots = &self.state.directory.roots;
            for folder in
                folders.iter_mut().filter(|folder| path.starts_with(roots[folder.root as usize].join(&folder.path)))
            {
                (folder.new, folder.cur) = (None, None);
            }
        }
        let text_changed = total > 0 || !gone.is_empty();
        if text_changed { self.thread_and_commit(progress) } else { self.commit(progress) }
    }

    #[allow(clippy::too_many_arguments, reason = "the state of one update, used here only")]
    fn read_round(
        &mut self,
        batch: Vec<Candidate>,
        missing: &mut read::Missing,
        options: &UpdateOptions,
        done: &mut read::Done,
        total: u64,
        tags: &AllTags,
        progress: &(dyn Fn(Progress) + Sync),
        report: &mut Report,
    ) -> Result<(), IndexError> {
        let next = self.text.next_number().map_err(|error| self.text_error(error))?;
        // Numbers that a crash left in the text index without a record here are skipped, and their texts deleted.
        let orphans: Vec<u32> = (u32::try_from(self.state.records().len()).unwrap_or(u32::MAX)..next).collect();
        for _ in &orphans {
            self.state.push(Record { flags: bits::GONE, ..Record::default() });
        }
        let first = self.state.records().len();
        let round = read::read(&self.text, &self.state, batch, missing, options, first, &|messages, bytes| {
            progress(Progress::Reading { done: done.messages + messages, total, bytes: done.bytes + bytes });
        });
        let round = round.map_err(|error| self.text_error(error))?;
        done.messages += round.done.messages;
        done.bytes += round.done.bytes;
        report.bytes += round.done.bytes;
        report.troubles.extend(round.troubles);
        for moved in round.moved {
            let record = self.state.change(moved.number);
            record.folder = moved.candidate.folder;
            record.flags = record.flags & !bits::MUTABLE | moved.candidate.flags();
            record.name = moved.candidate.name;
            report.moved += 1;
        }
        for new in round.new {
            while self.state.records().len() < new.number as usize {
                self.state.push(Record { flags: bits::GONE, ..Record::default() });
            }
            if let Some(problem) = new.problem {
                self.state.directory.problems.insert(new.number, problem.to_owned());
                report.problems.push((new.path, problem.to_owned()));
            }
            let mut record = new.record;
            if !tags.is_empty() {
                let found = tags.of(&tags::id_of(&new.message_id, record.digest), record.digest);
                record.tags = self.state.tag_set(found.into_iter().collect());
            }
            self.state.push(record);
            report.added += 1;
        }
        progress(Progress::Committing);
        let next = u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
        self.commit_text(round.segments, &orphans, next)
    }

    fn commit_text(
        &self,
        segments: Vec<crate::text_index::FinishedSegment>,
        gone: &[u32],
        next: u32,
    ) -> Result<(), IndexError> {
        self.text.commit(segments, gone, next).map_err(|error| self.text_error(error))
    }

    fn thread_and_commit(&mut self, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), IndexError> {
        progress(Progress::Committing);
        self.thread();
        self.commit(progress)
    }

    fn commit(&mut self, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), IndexError> {
        progress(Progress::Committing);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.state.directory.updated = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Ok(self.state.commit()?)
    }

    /// Threads all messages anew. About a microsecond a message; only what changed is written.
    fn thread(&mut self) {
        let records = self.state.records();
        let mut alive: Vec<u32> =
            (0u32..).zip(records).filter(|(_, record)| record.flags & bits::GONE == 0).map(|(n, _)| n).collect();
        // Numbers depend on the order of arrival. The result must not, but for the names of threads.
        alive.sort_unstable_by_key(|&number| (records[number as usize].date, records[number as usize].digest, number));
        let items: Vec<Item<'_>> = alive
            .iter()
            .map(|&number| {
                let record = &records[number as usize];
                Item {
                    number,
                    id: record.id,
                    references: &record.references,
                    subject: record.subject,
                    is_reply: record.flags & bits::REPLY != 0,
                    date: record.date,
                }
            })
            .collect();
        let places = thread(&items, SubjectRule::default());
        let changed: Vec<_> = alive
            .iter()
            .zip(places)
            .filter(|(number, place)| {
                let record = &records[**number as usize];
                (record.thread, record.parent) != (place.thread, place.parent)
            })
            .collect();
        for (&number, place) in changed {
            let record = self.state.change(number);
            (record.thread, record.parent) = (place.thread, place.parent);
        }
    }

    /// Changes the tags of messages: to each, `add` is added and then `remove` is taken away. Says how many messages changed.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`], [`IndexError::Text`].
    pub fn tag(&mut self, messages: &[(u32, String)], add: &[String], remove: &[String]) -> Result<u64, IndexError> {
        let mut changes: Vec<(u32, String, u128, Tags)> = Vec::new();
        for (number, message_id) in messages {
            let record = &self.state.records()[*number as usize];
            let old: Tags = self.state.directory.tag_sets[record.tags as usize].iter().cloned().collect();
            let mut new = old.clone();
            new.extend(add.iter().cloned());
            remove.iter().for_each(|tag| drop(new.remove(tag)));
            if new != old {
                changes.push((*number, tags::id_of(message_id, record.digest), record.digest, new));
            }
        }
        // The truth first; a crash before the side store's commit is mended by the next update or rebuild.
        self.tags.set(changes.iter().map(|(_, id, digest, tags)| (id.as_str(), *digest, tags)))?;
        let changed = changes.len() as u64;
        for (number, _, _, tags) in changes {
            let set = self.state.tag_set(tags.into_iter().collect());
            self.state.change(number).tags = set;
        }
        self.commit(&|_| {})?;
        Ok(changed)
    }

    /// All tags, in notmuch's text format.
    ///
    /// # Errors
    /// [`IndexError::Tags`].
    pub fn dump_tags(&self) -> Result<String, IndexError> {
        Ok(tags::dump(&self.tags.all()?))
    }

    /// Gives messages the tags of a dump, and no others; messages that it does not name keep theirs. `ids` are the Message-IDs of
    /// messages in the index. Ids that are not in the index are kept for when they come. Says how many messages changed.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`].
    pub fn restore_tags(&mut self, text: &str, ids: &[(u32, String)]) -> Result<u64, IndexError> {
        let wanted = tags::restore(text)?;
        let mut by_id: HashMap<&str, Vec<u32>> = HashMap::new();
        let ids: Vec<(u32, String)> = ids
            .iter()
            .map(|(number, id)| (*number, tags::id_of(id, self.state.records()[*number as usize].digest)))
            .collect();
        ids.iter().for_each(|(number, id)| by_id.entry(id).or_default().push(*number));
        let mut rows: Vec<(&str, u128, &Tags)> = Vec::new();
        let mut changed: BTreeMap<u32, &Tags> = BTreeMap::new();
        for (id, tags) in &wanted {
            match by_id.get(id.as_str()) {
                None => rows.push((id, 0, tags)),
                Some(numbers) => {
                    for &number in numbers {
                        rows.push((id, self.state.records()[number as usize].digest, tags));
                        changed.insert(number, tags);
                    }
                }
            }
        }
        self.tags.set(rows)?;
        let mut count = 0;
        for (number, tags) in changed {
            let set = self.state.tag_set(tags.iter().cloned().collect());
            if self.state.records()[number as usize].tags != set {
                self.state.change(number).tags = set;
                count += 1;
            }
        }
        self.commit(&|_| {})?;
        Ok(count)
    }

    fn text_error(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.dir.join("text"), error)
    }
}

pub(crate) fn text_error(dir: &Path, error: tantivy::TantivyError) -> IndexError {
    IndexError::Text { dir: dir.to_owned(), error: Box::new(error) }
}

/// The hash of a Message-ID; 0 for none.
pub(crate) fn id_hash(id: &str) -> u64 {
    if id.is_empty() { 0 } else { xxh3_64(id.as_bytes()).max(1) }
}

/// The hash of a subject's base, and whether it marks a reply.
pub(crate) fn subject_hash(head: &Head) -> (u64, bool) {
    let base = base_subject(&head.subject);
    let folded = fold(&base.text);
    (if folded.is_empty() { 0 } else { xxh3_64(folded.as_bytes()).max(1) }, base.is_reply)
}
