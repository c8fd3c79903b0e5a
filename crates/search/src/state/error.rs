//! Errors of the side store.

use std::io;
use std::path::PathBuf;

/// Format version. It also grows when the same mail yields other texts than before, so that the next run rebuilds the
/// index. 3 came with the MIME reader of `posthaste_message`.
pub(super) const FORMAT: u32 = 3;

/// Errors of the side store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// No index in the directory: make one.
    #[error("{}: no index here", .0.display())]
    Missing(PathBuf),
    /// Written by another version: rebuild.
    #[error("{}: written in format {found}, this program reads format {FORMAT}; rebuild it with `posthaste index` (tags are kept)", dir.display())]
    Format {
        /// The index's directory.
        dir: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The data are damaged: rebuild. Tags are stored elsewhere and not affected.
    #[error("{}: damaged: {what}; `posthaste index rebuild` with its Maildirs builds it again, tags are kept", dir.display())]
    Damaged {
        /// The index's directory.
        dir: PathBuf,
        /// The first mismatch.
        what: String,
    },
    /// Another process is writing: wait or try later.
    #[error("{}: another process is writing to this index", .0.display())]
    Locked(PathBuf),
    /// A system call failed.
    #[error("{}: {error}", dir.display())]
    Io {
        /// The index's directory.
        dir: PathBuf,
        /// Its error.
        error: io::Error,
    },
}
