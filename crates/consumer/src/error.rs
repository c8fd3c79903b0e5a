//! Why a stream could not be opened.

use std::io;

use posthaste_spool::{ReplayError, RestoreError, StreamError};

/// Why the owner of a stream could not open it. Its entries stay in the spool for a later opening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamOpenError {
    /// The stream could not be registered.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The disk failed when a snapshot was read.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The entries could not be read.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The state of the stream cannot be built from an entry or a snapshot: a later version has written it, or it is damaged.
    #[error("{what}: {error}")]
    State {
        /// The entry or the snapshot.
        what: String,
        /// The error of decoding it.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A thread could not be started, or a file or directory of the owner not be used.
    #[error("{what}: {error}")]
    Io {
        /// The thread, file or directory.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl StreamOpenError {
    /// Names the thread, file or directory of a system error.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| StreamOpenError::Io { what, error }
    }
}
