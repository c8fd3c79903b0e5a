//! Why something was refused or failed: one variant for each thing that a caller can do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Lsn;

/// Why an append was refused. In every case nothing of the record will be found by a later opening, except after
/// [`RingAppendError::Poisoned`], when it may or may not.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RingAppendError {
    /// No space now, in the ring or on the disk. [`Ring::free_below`](crate::Ring::free_below) or the operator may make some: reply 452.
    #[error("no space in the log: {0}")]
    Full(Arc<str>),
    /// A segment could not be made for another reason than space, for example because no file can be opened: reply 452, tell the operator.
    #[error("cannot make a segment of the log: {0}")]
    Local(Arc<io::Error>),
    /// A write or a sync failed, or [`Ring::poison`](crate::Ring::poison) was called: nothing is accepted until the ring is opened again.
    #[error("the log is closed to writing after a failure: {0}")]
    Poisoned(Arc<str>),
    /// Longer than a segment can hold; keep the bytes in a file of their own.
    #[error("a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of head and body.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// More bytes wait than [`Config::max_pending_bytes`](crate::Config::max_pending_bytes): come back when some are written.
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
    /// Segments that were in use are not there, or nothing of them can be read. Nothing was changed: put the files back, or open it with
    /// [`Config::gives_up_missing`](crate::Config::gives_up_missing).
    #[error("{}", missing_text(.numbers, .unreadable))]
    Missing {
        /// Their numbers.
        numbers: Vec<u64>,
        /// Files that cannot be told apart any more, which may have been some of them, and what is wrong with each.
        unreadable: Vec<(String, &'static str)>,
    },
    /// The file system failed; nothing that was found is lost.
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

/// Missing segments named in one line.
const SHOWN: usize = 8;

/// Why a record could not be read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingReadError {
    /// No segment in service holds it: it never was published, or was freed.
    #[error("record {0} is not in the log")]
    NotFound(Lsn),
    /// Its header or head has other bytes than were written: it is lost.
    #[error("record {0} is damaged")]
    HeadDamaged(Lsn),
    /// Its head is whole, its body has other bytes than were written.
    #[error("the body of record {0} is damaged")]
    BodyDamaged(Lsn),
    /// The disk failed.
    #[error("cannot read record {0}: {1}")]
    Io(Lsn, io::Error),
}
