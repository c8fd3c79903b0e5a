//! Brings an index up to date with the Maildirs it covers.
//!
//! 1. *Look*: walk the trees. A folder whose directories have the stamps of last time is done; the others are listed.
//! 2. *Compare*: a known name is unchanged; a known key under another name has new flags; the rest is new or missing.
//! 3. *Read* the new files, in inode order, on all cores. One with the content of a missing message has moved: number,
//!    text and tags stay.
//! 4. *Commit*: the text index first, then the side store. Until then, readers see the last commit.
//!
//! A caller that knows which names changed ([`Touched`]) skips the first step; only those are compared.
//!
//! A new index is committed every [`ROUND_MESSAGES`] messages, so that an interrupted first run continues where it
//! stopped. A rebuild is committed once, at its end; until then the old index answers.

mod apply;
mod diff;
mod keywords;
#[cfg(test)]
pub(crate) mod kills;
mod listing;
mod mend;
mod names;
mod read;
mod report;
mod rules;
mod tagging;
mod threading;
mod trees;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use posthaste_maildir::tree::{MailTree, TreeOptions, walk};

use crate::error::{IndexError, text_error};
use crate::search::Searcher;
use crate::settings::SearchSettings;
use crate::state::{Covered, Lock, Snapshot, StateError, StateWriter, bits};
use crate::stop::Stop;
use crate::tags::{TagError, TagStore};
use crate::text_index::TextIndex;

pub use diff::Touched;
pub use report::{MEMORY_BYTES, Progress, Report, UpdateOptions};

use apply::Run;
pub(crate) use tagging::PENDING;
use threading::Unthreaded;

/// Messages read between two commits of a first index.
pub const ROUND_MESSAGES: usize = 131_072;

/// Checks, without waiting for a writer, if an update would find anything to do. Compares directories' times, and also
/// the names in them if all are to be listed.
///
/// Returns the report if there is nothing to do. `None` if there is, or if there is no index.
pub fn nothing_to_do(dir: &Path, roots: &[PathBuf], options: &UpdateOptions) -> Option<Report> {
    let started = Instant::now();
    let snapshot = Snapshot::open(dir).ok()?;
    let directory = snapshot.directory();
    let named = |root: &PathBuf| std::path::absolute(root).ok();
    let is_known =
        |root: &PathBuf| named(root).is_some_and(|root| directory.roots.iter().any(|known| root.starts_with(known)));
    let asks_for_more = options.check_files || options.into_noupdate || !roots.iter().all(is_known);
    let settings = SearchSettings::load(dir).ok()?;
    let text = TextIndex::open(&snapshot.text_dir()).ok()?;
    let waits_for_tags = directory.ruled < directory.messages
        || !directory.unruled.is_empty()
        || settings.maildir.synchronize_flags != directory.flags_are_tags
        || settings.maildir.synchronize_keywords != directory.keywords_are_tags
        || settings.headers != *text.headers();
    if asks_for_more || waits_for_tags || directory.roots.is_empty() || dir.join(PENDING).exists() {
        return None;
    }
    let walked = directory.roots.iter().map(|root| walk(root, &TreeOptions::default()).ok());
    let trees: Vec<MailTree> = walked.collect::<Option<_>>()?;
    if !diff::has_same_folders(directory, &trees, options.list_all) || !keywords::are_same(directory) {
        return None;
    }
    // A crash between the two commits has left something to mend.
    let mark = text.mark().ok()?;
    if mark.commit != directory.text_commit {
        return None;
    }
    let folders = trees.iter().map(|tree| tree.folders.len()).sum();
    if options.list_all && !names::are_same(&snapshot, &trees, options.threads).ok()? {
        return None;
    }
    Some(Report {
        folders,
        listed: if options.list_all { 2 * folders } else { 0 },
        messages: directory.present,
        without_maildirs: trees::without_maildirs(&directory.roots, &trees),
        took: started.elapsed(),
        ..Report::default()
    })
}

/// An index open for writing. There is one at a time.
pub struct Indexer {
    dir: PathBuf,
    state: StateWriter,
    text: TextIndex,
    /// Opened on first use; most mail is never tagged.
    tags: Option<TagStore>,
    /// True if the side store may lack changes from the tag store.
    is_tagging: bool,
    /// True once an interrupted change of tags has been repaired.
    are_tags_reconciled: bool,
    /// New messages, and the ids under which they may have tags already.
    untagged: Vec<(u32, String)>,
    unthreaded: Unthreaded,
    /// True if the next commit's messages are new to the index only, so that the rules for new mail do not apply.
    passes_rules: bool,
    /// Trees that had folders in an index that is to be replaced.
    inhabited: Vec<PathBuf>,
    /// Digests of messages of the replaced index to which the rules for new mail have been applied. `None` if it cannot
    /// be read.
    ruled_before: Option<HashSet<u128>>,
    /// After a rebuild, the number of messages that the replaced index did not have.
    new_in_rebuild: Option<u64>,
    // Last, so that it is given back when the others are closed.
    _lock: Lock,
}

impl Indexer {
    /// Opens the index in `dir`, making it if there is none. An older version's index is rebuilt, as by
    /// [`rebuild`](Self::rebuild). `waiting` as in [`Lock::acquire`].
    ///
    /// # Errors
    /// [`IndexError`] but for `Tree`, `Away` and `NoRoot`.
    pub fn open(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        Self::with(dir, lock, StateWriter::open(dir)?)
    }

    /// Like [`open`](Self::open), before an [`update`](Self::update). Also rebuilds the index if the settings name
    /// other headers than it has.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn open_to_update(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        Self::with(dir, lock, Self::state_to_update(dir)?)
    }

    fn state_to_update(dir: &Path) -> Result<StateWriter, StateError> {
        let state = StateWriter::open(dir)?;
        let has_others = || {
            let settings = SearchSettings::load(dir).ok()?;
            let text = TextIndex::open(&state.text_dir()).ok()?;
            Some(settings.headers != *text.headers())
        };
        Ok(if !state.is_new() && has_others() == Some(true) { StateWriter::begin_anew(dir) } else { state })
    }

    /// Like [`open_to_update`](Self::open_to_update), but returns `None` if `stop` is called while it waits.
    pub(crate) fn open_unless(dir: &Path, waiting: &dyn Fn(), stop: &Stop) -> Result<Option<Self>, IndexError> {
        let lock = Lock::acquire_unless(dir, waiting, stop)?;
        lock.map(|lock| Self::with(dir, lock, Self::state_to_update(dir)?)).transpose()
    }

    /// Opens the index again after all current waiters; `None` if `stop` is called first.
    pub(crate) fn open_last(dir: &Path, stop: &Stop) -> Result<Option<Self>, IndexError> {
        let lock = Lock::acquire_last(dir, stop)?;
        lock.map(|lock| Self::with(dir, lock, StateWriter::open(dir)?)).transpose()
    }

    /// Begins an empty index that replaces the one in `dir` with its first commit. Tags are kept, and the same trees
    /// covered.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn rebuild(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        let mut indexer = Self::with(dir, lock, StateWriter::begin_anew(dir))?;
        indexer.write_dump()?;
        Ok(indexer)
    }

    fn with(dir: &Path, lock: Lock, mut state: StateWriter) -> Result<Self, IndexError> {
        state.remove_leftovers();
        let mut inhabited = Vec::new();
        if state.is_beside() {
            let covered = Covered::by(dir);
            inhabited = covered.inhabited();
            state.directory.devices = vec![0; covered.roots.len()];
            state.directory.roots = covered.roots;
        }
        // What an interrupted first run or rebuild left there belongs to no commit.
        if state.is_new() {
            remove_dir(&state.text_dir())?;
        }
        let text_dir = state.text_dir();
        let headers = SearchSettings::load(dir).map(|settings| settings.headers).unwrap_or_default();
        let text = TextIndex::open_or_create(&text_dir, &headers).map_err(|error| text_error(&text_dir, error))?;
        let mut indexer = Self {
            dir: dir.to_owned(),
            state,
            text,
            tags: None,
            is_tagging: dir.join(PENDING).exists(),
            are_tags_reconciled: false,
            untagged: Vec::new(),
            unthreaded: Unthreaded::default(),
            passes_rules: false,
            inhabited,
            ruled_before: None,
            new_in_rebuild: None,
            _lock: lock,
        };
        indexer.mend()?;
        indexer.begin_rules();
        match indexer.reconcile_tags() {
            // Said when the tags are needed; until then there is a writer who can restore them.
            Err(IndexError::Tags(TagError::Damaged { .. })) => {}
            reconciled => {
                reconciled?;
                indexer.are_tags_reconciled = true;
            }
        }
        Ok(indexer)
    }

    /// True while this index is built to replace another, which answers until then.
    pub fn is_rebuilding(&self) -> bool {
        self.state.is_beside()
    }

    /// The reason for an unrequested rebuild, in a sentence for the user. `None` if there is no such rebuild.
    pub fn rebuilds_because(&self) -> Option<String> {
        if !self.is_rebuilding() {
            return None;
        }
        let why = match Searcher::open(&self.dir) {
            Err(_) => "an older version wrote it".to_owned(),
            Ok(old) if *old.headers() == *self.text.headers() => return None,
            Ok(_) if self.text.headers().is_empty() => "its settings name no headers any more".to_owned(),
            Ok(_) => format!("its settings name other headers than before: {}", self.text.headers()),
        };
        Some(format!("{why}; all mail is read again, tags are kept"))
    }

    /// Looks at the trees of earlier updates and at `roots`, and applies the changes.
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
        let trees = self.walk(roots, options)?;
        let mut run = Run::new(self, options, progress);
        run.report.without_maildirs = trees::without_maildirs(run.indexer.roots(), &trees);
        let changes = diff::compare(&mut run.indexer.state, &trees, options, looked_at, &mut run.report);
        keywords::read_changed(&mut run.indexer.state.directory, looked_at, &mut run.report);
        run.apply(changes)?;
        run.finish(started)
    }

    /// Updates the index for these names. `None` if that takes a whole [`update`](Self::update): a folder is unknown.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn update_touched(
        &mut self,
        touched: &Touched,
        options: &UpdateOptions,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Option<Report>, IndexError> {
        let started = Instant::now();
        let mut run = Run::new(self, options, progress);
        let Some(changes) = diff::compare_touched(&run.indexer.state, touched, &mut run.report) else {
            return Ok(None);
        };
        run.apply(changes)?;
        run.finish(started).map(Some)
    }

    /// The trees that the index covers.
    pub fn roots(&self) -> &[PathBuf] {
        &self.state.directory.roots
    }

    fn text_error(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.state.text_dir(), error)
    }
}

fn remove_dir(dir: &Path) -> Result<(), StateError> {
    crate::disk::remove_dir_all(dir).map_err(|error| StateError::Io { dir: dir.to_owned(), error })
}
