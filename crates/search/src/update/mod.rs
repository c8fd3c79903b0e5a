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
mod tagging;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_maildir::tree::{Tree, TreeError, TreeOptions, walk};
use xxhash_rust::xxh3::xxh3_64;

use crate::state::{Lock, Record, StateError, StateWriter, bits};
use crate::tags::{TagError, TagStore};
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
    /// A Maildir tree that was named is not there.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A tree with one inside that has an index already: its messages would be in it twice. Use another index.
    #[error("{} holds {}, which is in this index already; use another index for it", above.display(), below.display())]
    Overlap {
        /// The tree that was named.
        above: PathBuf,
        /// The tree that is known.
        below: PathBuf,
    },
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

/// Looks whether an update would find anything to do, without reading more than directories' times, and without waiting for a writer.
///
/// `Some` with the report if there is nothing to do. `None` if there is, or if there is no index.
pub fn nothing_to_do(dir: &Path, roots: &[PathBuf], options: &UpdateOptions) -> Option<Report> {
    let started = Instant::now();
    let snapshot = crate::state::Snapshot::open(dir).ok()?;
    let directory = snapshot.directory();
    let named = |root: &PathBuf| std::path::absolute(root).ok();
    let is_known =
        |root: &PathBuf| named(root).is_some_and(|root| directory.roots.iter().any(|known| root.starts_with(known)));
    let asks_for_more = options.list_all || options.check_files || options.into_noupdate || !roots.iter().all(is_known);
    if asks_for_more || directory.roots.is_empty() || dir.join(tagging::PENDING).exists() {
        return None;
    }
    let trees: Vec<Tree> =
        directory.roots.iter().map(|root| walk(root, &TreeOptions::default()).ok()).collect::<Option<_>>()?;
    diff::is_quiet(directory, &trees).then(|| Report {
        folders: trees.iter().map(|tree| tree.folders.len()).sum(),
        messages: directory.present,
        took: started.elapsed(),
        ..Report::default()
    })
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
        Self::open_locked(dir, Lock::acquire(dir, waiting)?)
    }

    fn open_locked(dir: &Path, lock: Lock) -> Result<Self, IndexError> {
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
        // The side store first, in one step: it knows the trees, and without messages in it the old texts are nobody's.
        let mut state = StateWriter::begin_anew(dir);
        state.directory.roots = roots;
        state.commit()?;
        match std::fs::remove_dir_all(dir.join("text")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StateError::Io { dir: dir.to_owned(), error }.into());
            }
            _ => {}
        }
        Self::open_locked(dir, lock)
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
        let named: Vec<PathBuf> =
            roots.iter().map(|root| std::path::absolute(root).unwrap_or_else(|_| root.clone())).collect();
        named.iter().try_for_each(|root| self.add_root(root))?;
        if self.state.directory.roots.is_empty() {
            return Err(IndexError::NoRoot);
        }
        let mut report = Report::default();
        let tree_options = TreeOptions { into_noupdate: options.into_noupdate };
        let mut trees = Vec::new();
        for root in &self.state.directory.roots {
            trees.push(match walk(root, &tree_options) {
                // An earlier tree that is away (a disk not mounted) is unknown; one that was just named must be there.
                Err(TreeError::Root { error, .. }) if !named.contains(root) => {
                    Tree { troubles: vec![(String::new(), error)], ..Tree::default() }
                }
                walked => walked?,
            });
        }
        let changes = diff::compare(&mut self.state, &trees, options, looked_at, &mut report);
        self.apply(changes, options, progress, &mut report)?;
        report.messages = self.state.records().iter().filter(|record| record.flags & bits::GONE == 0).count() as u64;
        report.took = started.elapsed();
        Ok(report)
    }

    /// A tree inside one that is known needs no place of its own.
    fn add_root(&mut self, root: &Path) -> Result<(), IndexError> {
        let roots = &mut self.state.directory.roots;
        if roots.iter().any(|known| root.starts_with(known)) {
            return Ok(());
        }
        match roots.iter().find(|known| known.starts_with(root)) {
            Some(known) => Err(IndexError::Overlap { above: root.to_owned(), below: known.clone() }),
            None => {
                roots.push(root.to_owned());
                Ok(())
            }
        }
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
        let mut added = changes.added;
        let total = added.len() as u64;
        let mut done = read::Done::default();
        while !added.is_empty() {
            let rest = added.split_off(added.len().min(ROUND_MESSAGES));
            let batch = std::mem::replace(&mut added, rest);
            self.read_round(batch, &mut missing, options, &mut done, total, progress, report)?;
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
        let tags = self.tags.all()?;
        self.apply_tags(&tags);
        let text_changed = total > 0 || !gone.is_empty();
        if text_changed { self.thread_and_commit(progress) } else { self.commit(progress) }?;
        self.end_tags();
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the state of one update, used here only")]
    fn read_round(
        &mut self,
        batch: Vec<Candidate>,
        missing: &mut read::Missing,
        options: &UpdateOptions,
        done: &mut read::Done,
        total: u64,
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
            self.state.push(new.record);
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
