//! What can go wrong with an index as a whole.

use std::path::{Path, PathBuf};

use posthaste_maildir::tree::TreeError;

use crate::state::StateError;
use crate::tags::TagError;

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
    /// A tree that had folders is away, and the index is to be built again: its messages would be lost from it. Bring it back, or say that
    /// what is missing is gone ([`UpdateOptions::believe_missing`](super::UpdateOptions::believe_missing)).
    #[error("{}: {why}; the index is not built again without it, unless you say that its messages are gone (--believe-missing)", root.display())]
    Away {
        /// The tree.
        root: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A tree with one inside that has an index already: its messages would be in it twice. Use another index.
    #[error("{} holds {}, which is in this index already; use another index for it", above.display(), below.display())]
    Overlap {
        /// The tree that was named.
        above: PathBuf,
        /// The tree that is known.
        below: PathBuf,
    },
    /// Another process watches the Maildirs of this index already, and keeps it up to date.
    #[error("{}: another process watches its Maildirs already", .0.display())]
    Watched(PathBuf),
    /// Changes in directories cannot be told to us: look now and then instead.
    #[error("cannot watch directories: {0}")]
    Notify(std::io::Error),
    /// There is nothing to index: no tree was named, now or earlier.
    #[error("no Maildir to index: name one")]
    NoRoot,
}

pub(crate) fn text_error(dir: &Path, error: tantivy::TantivyError) -> IndexError {
    IndexError::Text { dir: dir.to_owned(), error: Box::new(error) }
}
