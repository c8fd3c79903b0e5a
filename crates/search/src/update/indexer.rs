//! An index open for writing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{IndexError, text_error};
use crate::search::Searcher;
use crate::settings::SearchSettings;
use crate::state::{Covered, Lock, Record, StateError, StateWriter};
use crate::stop::Stop;
use crate::tags::{TagError, TagStore};
use crate::text_index::TextIndex;

/// Marker file that exists while tags are being changed: the side store may lack changes from the tag store.
pub(crate) const PENDING: &str = "tags.pending";

/// Changes since the last threading.
#[derive(Debug, Default)]
pub(super) struct Unthreaded {
    /// Messages that came, or whose date changed.
    pub numbers: Vec<u32>,
    /// Former records of messages that went.
    pub gone: Vec<Record>,
}

/// An index open for writing. There is one at a time.
pub struct Indexer {
    pub(super) dir: PathBuf,
    pub(super) state: StateWriter,
    pub(super) text: TextIndex,
    /// Opened on first use; most mail is never tagged.
    pub(super) tags: Option<TagStore>,
    /// True if the side store may lack changes from the tag store.
    pub(super) is_tagging: bool,
    /// True once an interrupted change of tags has been repaired.
    pub(super) are_tags_reconciled: bool,
    /// New messages, and the ids under which they may have tags already.
    pub(super) untagged: Vec<(u32, String)>,
    pub(super) unthreaded: Unthreaded,
    /// True if the next commit's messages are new to the index only, so that the rules for new mail do not apply.
    pub(super) passes_rules: bool,
    /// Trees that had folders in an index that is to be replaced.
    pub(super) inhabited: Vec<PathBuf>,
    /// Digests of messages of the replaced index to which the rules for new mail have been applied. `None` if it cannot
    /// be read.
    pub(super) ruled_before: Option<HashSet<u128>>,
    /// After a rebuild, the number of messages that the replaced index did not have.
    pub(super) new_in_rebuild: Option<u64>,
    // Last field, so that the lock is released after the others are closed.
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
        // Leftovers of an interrupted first run or rebuild belong to no commit.
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

    /// The trees that the index covers.
    pub fn roots(&self) -> &[PathBuf] {
        &self.state.directory.roots
    }

    pub(super) fn text_error(&self, error: tantivy::TantivyError) -> IndexError {
        text_error(&self.state.text_dir(), error)
    }
}

fn remove_dir(dir: &Path) -> Result<(), StateError> {
    crate::disk::remove_dir_all(dir).map_err(|error| StateError::Io { dir: dir.to_owned(), error })
}
