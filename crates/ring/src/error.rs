//! Errors of the log: one variant for each reaction of a caller.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Lsn;

/// Why an append was refused. No later opening will find the record, except possibly after
/// [`RingAppendError::Poisoned`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RingAppendError {
    /// The ring or the disk is full now. [`Ring::free_below`](crate::Ring::free_below) or the operator may make space:
    /// reply 452.
    #[error("no space in the log: {0}")]
    Full(Arc<str>),
    /// A segment could not be made, for another reason than space, such as too many open files: reply 452, tell the
    /// operator.
    #[error("cannot make a segment of the log: {0}")]
    Local(Arc<io::Error>),
    /// A write or a sync failed, or [`Ring::poison`](crate::Ring::poison) was called: nothing is accepted until the
    /// ring is reopened.
    #[error("the log is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
    /// Longer than a segment can hold; keep the bytes in a file of their own.
    #[error("a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of head and body.
        bytes: usize,
        /// Maximum bytes of a record.
        limit: usize,
    },
    /// More bytes wait than [`Config::max_pending_bytes`](crate::Config::max_pending_bytes): retry when some are
    /// written.
    #[error("too many bytes wait to be written")]
    Busy,
    /// The ring was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a ring could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingOpenError {
    /// Another process, or another ring in this one, has it open.
    #[error("the log in {} is in use: stop the process that has it open, or use another directory", dir.display())]
    Locked {
        /// The log's directory.
        dir: PathBuf,
    },
    /// Segments in use are missing or completely unreadable. Nothing was changed: restore the files, or open it with
    /// [`Config::gives_up_missing`](crate::Config::gives_up_missing).
    #[error("{}", missing_text(.numbers, .unreadable))]
    Missing {
        /// Numbers of the missing segments.
        numbers: Vec<u64>,
        /// Unidentifiable files that may be some of the missing ones, with the error of each.
        unreadable: Vec<(String, &'static str)>,
    },
    /// The file system failed; no data found are lost.
    #[error("cannot open the log in {}: {error}", dir.display())]
    Io {
        /// The log's directory.
        dir: PathBuf,
        /// Error of the file system.
        error: io::Error,
    },
}

fn missing_text(numbers: &[u64], unreadable: &[(String, &str)]) -> String {
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(u64::to_string).collect();
    let mut text = format!("segments of the log are missing: number {}", shown.join(", "));
    if numbers.len() > SHOWN {
        text += &format!(" and {} more", numbers.len() - SHOWN);
    }
    for (name, what) in unreadable.iter().take(SHOWN) {
        text += &format!("; {name}: {what}");
    }
    text
}

/// Maximum missing segments named in one line.
const SHOWN: usize = 8;

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingReadError {
    /// No segment in service contains it: it was never published, or was freed.
    #[error("record {0} is not in the log")]
    NotFound(Lsn),
    /// The checksum of its header or head is wrong: the record is lost.
    #[error("record {0} is damaged")]
    HeadDamaged(Lsn),
    /// The head is intact, but the checksum of the body is wrong.
    #[error("the body of record {0} is damaged")]
    BodyDamaged(Lsn),
    /// The disk failed.
    #[error("cannot read record {0}: {1}")]
    Io(Lsn, io::Error),
}
