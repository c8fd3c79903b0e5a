//! Brings an index up to date with the Maildirs it covers.
//!
//! 1. *Look*: walk the trees; a folder whose directories have the stamps of last time is done. The others are listed by name.
//! 2. *Compare*: a name that is known is unchanged; one whose key is known has new flags; what is left is new here, or missing there.
//! 3. *Read* the new ones, in inode order, on all cores. One whose content is that of a missing message has moved: its number, text and tags stay.
//! 4. *Commit*: the text index first, then the side store. Until then, readers see the last commit.
//!
//! Whoever is told which names changed ([`Touched`]) skips the first step and looks at those only.
//!
//! A new index is committed every [`ROUND_MESSAGES`] messages, so that an interrupted first run goes on where it was. A rebuild is committed
//! once, at its end: until then the old index answers.

mod apply;
mod diff;
mod error;
mod listing;
mod read;
mod report;
mod tagging;
mod threading;

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use posthaste_maildir::tree::{Tree, TreeError, TreeOptions, walk};
use xxhash_rust::xxh3::xxh3_64;

use crate::state::{Lock, Snapshot, StateError, StateWriter, bits};
use crate::tags::TagStore;
use crate::text::{base_subject, fold};
use crate::text_index::{Head, TextIndex};

pub use diff::Touched;
pub use error::IndexError;
pub(crate) use error::text_error;
pub use report::{Progress, Report, UpdateOptions};

use apply::Run;

/// Messages read between two commits of a first index.
pub const ROUND_MESSAGES: usize = 131_072;

/// Looks whether an update would find anything to do, without reading more than directories' times, and without waiting for a writer.
///
/// `Some` with the report if there is nothing to do. `None` if there is, or if there is no index.
pub fn nothing_to_do(dir: &Path, roots: &[PathBuf], options: &UpdateOptions) -> Option<Report> {
    let started = Instant::now();
    let snapshot = Snapshot::open(dir).ok()?;
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
    state: StateWriter,
    text: TextIndex,
    tags: TagStore,
    /// Messages that came or went since threads were last made.
    unthreaded: Vec<u32>,
    // Last, so that it is given back when the others are closed.
    _lock: Lock,
}

impl Indexer {
    /// Opens the index in `dir`, making it if there is none. `waiting` as in [`Lock::acquire`].
    ///
    /// # Errors
    /// [`IndexError`] but for `Tree` and `NoRoot`.
    pub fn open(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        Self::with(dir, lock, StateWriter::open(dir)?)
    }

    /// Opens the index again behind all who wait for it now.
    pub(crate) fn open_last(dir: &Path) -> Result<Self, IndexError> {
        let lock = Lock::acquire_last(dir)?;
        Self::with(dir, lock, StateWriter::open(dir)?)
    }

    fn with(dir: &Path, lock: Lock, state: StateWriter) -> Result<Self, IndexError> {
        state.remove_leftovers();
        let text_dir = state.text_dir();
        let text = TextIndex::open_or_create(&text_dir).map_err(|error| text_error(&text_dir, error))?;
        let tags = TagStore::open(dir)?;
        Ok(Self { dir: dir.to_owned(), _lock: lock, state, text, tags, unthreaded: Vec::new() })
    }

    /// Begins an empty index for the same trees beside the one in `dir`. The next [`update`](Self::update) fills it and puts it in the
    /// other's place in one step; until then readers find what they found before. Tags are kept.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn rebuild(dir: &Path, waiting: Option<&dyn Fn()>) -> Result<Self, IndexError> {
        let lock = Lock::acquire(dir, waiting)?;
        let mut state = StateWriter::begin_anew(dir);
        state.directory.roots =
            Snapshot::open(dir).map(|snapshot| snapshot.directory().roots.clone()).unwrap_or_default();
        // What an interrupted rebuild left is of no use: its messages have no records.
        let text_dir = state.text_dir();
        if let Err(error) = std::fs::remove_dir_all(&text_dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(StateError::Io { dir: text_dir, error }.into());
        }
        Self::with(dir, lock, state)
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
        let trees = self.walk(roots, options)?;
        let mut run = Run::new(self, options, progress);
        let changes = diff::compare(&mut run.indexer.state, &trees, options, looked_at, &mut run.report);
        run.apply(changes)?;
        Ok(run.finish(started))
    }

    /// Takes over what happened to these names. `None` if that takes a whole [`update`](Self::update): a folder is not known yet.
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
        Ok(Some(run.finish(started)))
    }

    /// The trees that the index covers.
    pub fn roots(&self) -> &[PathBuf] {
        &self.state.directory.roots
    }

    fn walk(&mut self, roots: &[PathBuf], options: &UpdateOptions) -> Result<Vec<Tree>, IndexError> {
        let named: Vec<PathBuf> =
            roots.iter().map(|root| std::path::absolute(root).unwrap_or_else(|_| root.clone())).collect();
        named.iter().try_for_each(|root| self.add_root(root))?;
        if self.state.directory.roots.is_empty() {
            return Err(IndexError::NoRoot);
        }
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
        Ok(trees)
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

    fn text_error(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.state.text_dir(), error)
    }
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
