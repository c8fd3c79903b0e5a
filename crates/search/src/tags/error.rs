//! Errors of the tag store, and the names that it refuses.

use std::path::PathBuf;

use crate::query::is_query_name;

/// Errors of the tag store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TagError {
    /// The database failed.
    #[error("{}: {error}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The database's error.
        error: Box<redb::Error>,
    },
    /// The store is damaged; it is neither read nor written. Its dump ([`restore`](super::restore)) rebuilds it.
    #[error("{} is damaged; `posthaste tag --restore {}` restores it from the dump beside it", path.display(), dump.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The dump.
        dump: PathBuf,
    },
    /// A malformed line of a dump; nothing was changed.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The mistake, in words.
        why: &'static str,
    },
    /// A tag is empty, too long, begins with `-`, or holds a line end.
    #[error("{0:?} cannot be a tag")]
    Name(String),
    /// A saved query's name is empty, too long, or holds a quote or a line end.
    #[error("{0:?} cannot be the name of a saved query")]
    QueryName(String),
}

/// Maximum bytes of a tag.
pub const TAG_BYTES_MAX: usize = 200;

/// Checks a tag's name.
///
/// # Errors
/// [`TagError::Name`].
pub fn check_tag(tag: &str) -> Result<(), TagError> {
    let bad = tag.is_empty() || tag.len() > TAG_BYTES_MAX || tag.starts_with('-') || tag.chars().any(char::is_control);
    if bad { Err(TagError::Name(tag.to_owned())) } else { Ok(()) }
}

/// Checks a saved query's name.
///
/// # Errors
/// [`TagError::QueryName`].
pub(crate) fn check_query_name(name: &str) -> Result<(), TagError> {
    if is_query_name(name) { Ok(()) } else { Err(TagError::QueryName(name.to_owned())) }
}
