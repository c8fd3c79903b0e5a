//! Errors of an index as a whole.

use std::path::{Path, PathBuf};

use posthaste_maildir::tree::TreeError;
use tantivy::TantivyError;
use tantivy::directory::error::{OpenReadError, OpenWriteError};

use crate::settings::SettingsError;
use crate::state::StateError;
use crate::tags::TagError;

/// The result of reading an index.
pub(crate) type Result<T> = std::result::Result<T, IndexError>;

/// Why an index could not be opened or brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The side store's error, which says what to do.
    #[error(transparent)]
    State(#[from] StateError),
    /// The text index is damaged, of another version, or cannot be written: rebuild, or make room.
    #[error("{}: {}", dir.display(), in_words(error))]
    Text {
        /// Its directory.
        dir: PathBuf,
        /// The engine's error.
        error: Box<TantivyError>,
    },
    /// The tags could not be read or written.
    #[error(transparent)]
    Tags(#[from] TagError),
    /// A named Maildir tree does not exist.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The index is to be rebuilt while a tree that had folders is away, which would drop the tree's messages. Bring it
    /// back, or declare its messages gone ([`UpdateOptions::believe_missing`](super::UpdateOptions::believe_missing)).
    #[error("{}: {why}; not rebuilding the index without it. If its messages are really gone, use --believe-missing", root.display())]
    Away {
        /// The tree.
        root: PathBuf,
        /// Difference from the indexed tree.
        why: String,
    },
    /// The named tree contains one that is already in the index: its messages would be indexed twice. Use another
    /// index.
    #[error("{} contains {}, which is already in this index; use another index for it", above.display(), below.display())]
    Overlap {
        /// The named tree.
        above: PathBuf,
        /// The indexed tree.
        below: PathBuf,
    },
    /// Another process watches the Maildirs of this index already, and keeps it up to date.
    #[error("{}: another process watches its Maildirs already", .0.display())]
    Watched(PathBuf),
    /// The kernel cannot report changes in directories: update at intervals instead.
    #[error("cannot watch directories: {0}")]
    Notify(std::io::Error),
    /// The settings of the index cannot be read or written.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A condition on a header field that this index does not have.
    #[error("the header {name} is not in the index{}. `posthaste index --header {name}` adds it and reads all mail again; `find --scan MAILDIR` \
             searches any header without an index", if known.is_empty() { String::new() } else { format!(" (it has {known})") })]
    Header {
        /// As typed in the query.
        name: String,
        /// Headers that the index has, separated by commas; may be empty.
        known: String,
    },
    /// No tree to index: none was named, now or earlier.
    #[error("no Maildir to index: give one")]
    NoRoot,
}

/// Replaces the engine's messages, which mean nothing to a user.
fn in_words(error: &TantivyError) -> String {
    let io = match error {
        TantivyError::IoError(error)
        | TantivyError::OpenReadError(OpenReadError::IoError { io_error: error, .. })
        | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error: error, .. }) => Some(error),
        _ => None,
    };
    match (io, error) {
        (Some(io), _) if io.raw_os_error().is_some() => io.to_string(),
        (_, TantivyError::SchemaError(_) | TantivyError::IncompatibleIndex(_)) => {
            format!("the text index was written by another version; {REBUILD}")
        }
        (_, TantivyError::LockFailure(..)) => "another process is writing to the text index".to_owned(),
        (_, TantivyError::ErrorInThread(why) | TantivyError::SystemError(why)) => {
            format!("the text index could not be written: {why}")
        }
        _ => format!("the text index is damaged (`posthaste index verify` says where); {REBUILD}"),
    }
}

const REBUILD: &str = "`posthaste index rebuild` builds it again, tags are kept";

pub(crate) fn text_error(dir: &Path, error: TantivyError) -> IndexError {
    IndexError::Text { dir: dir.to_owned(), error: Box::new(error) }
}
