//! The interface of an engine. Code above it does not depend on the kind of engine.

use std::fmt;

use bytes::Bytes;

/// The engine's number of a record. Records are numbered consecutively from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(u64);

impl LogPosition {
    /// Before the first record.
    pub const START: LogPosition = LogPosition(0);

    /// The position `number`.
    pub const fn new(number: u64) -> Self {
        LogPosition(number)
    }

    /// The number of the position.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position of the preceding record, but not below the first.
    pub const fn before(self) -> Self {
        LogPosition(self.0.saturating_sub(1))
    }

    /// The position of the record after this one.
    pub const fn next(self) -> Self {
        LogPosition(self.0 + 1)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of an append. Called once, on any thread; must not block, and must not call the log.
pub type Appended = Box<dyn FnOnce(Result<LogPosition, LogError>) + Send>;

/// A replicated, ordered log of one shard.
pub trait ShardLog: Send + Sync {
    /// Appends at the position after `after`, or not at all. Does not block. Calls `then` exactly once: with the
    /// position when a quorum has the record on stable storage, or with [`LogError::Refused`] or [`LogError::Unknown`].
    /// Never repeats an append by itself.
    fn append(&self, after: LogPosition, record: Bytes, then: Appended);

    /// Passes records from `from` on to `each`, in order and once each. Waits for more until `each` returns false.
    ///
    /// # Errors
    /// [`LogError::Gap`] at a missing position, [`LogError::Cut`] if `from` was cut, [`LogError::Unreachable`].
    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError>;

    /// The lowest stored position; [`end`](Self::end) plus one if there is none.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn first(&self) -> Result<LogPosition, LogError>;

    /// The highest position ever stored: a cut does not lower it. [`LogPosition::START`] for a new log.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn end(&self) -> Result<LogPosition, LogError>;

    /// Removes all records below a position.
    ///
    /// # Errors
    /// [`LogError::Unreachable`]: it may have happened.
    fn cut(&self, below: LogPosition) -> Result<(), LogError>;

    /// Bytes used, and the limit.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn room(&self) -> Result<(u64, u64), LogError>;

    /// True if all of the engine's replicas have all of the log.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn is_current(&self) -> Result<bool, LogError>;

    /// Compares the engine's settings with those needed for durability: one line for each wrong one.
    ///
    /// # Errors
    /// [`LogError::Unreachable`]: too little of the engine can be asked to know.
    fn check(&self) -> Result<Vec<String>, LogError>;
}

/// Small values that nodes change by compare and swap.
pub trait Cells: Send + Sync {
    /// The value of a key and its revision; empty and 0 if it was never written.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn get(&self, key: &str) -> Result<(Bytes, u64), LogError>;

    /// Writes the value if the key has this revision. Returns the new revision.
    ///
    /// # Errors
    /// [`LogError::Conflict`]: nothing was written. [`LogError::Unknown`]: read the cell.
    fn swap(&self, key: &str, revision: u64, value: Bytes) -> Result<u64, LogError>;

    /// Shows each key with value and revision, then each change, until `each` returns false.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    fn watch(&self, each: &mut dyn FnMut(&str, &[u8], u64) -> bool) -> Result<(), LogError>;
}

/// Why a call to the engine failed. The variant decides what its caller does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The position is taken, or nothing was stored. This does not mean that another owner exists: read the log.
    #[error("the engine refused the record: {0}")]
    Refused(String),
    /// No answer: the value may be stored now or later. Only a write can decide.
    #[error("the engine did not answer: {0}")]
    Unknown(String),
    /// A position is missing: the log has a hole.
    #[error("position {0} is missing in the log")]
    Gap(LogPosition),
    /// The position was cut: this reader was away too long. Not damage.
    #[error("the log now begins at position {first}")]
    Cut {
        /// The lowest position stored.
        first: LogPosition,
    },
    /// The cell has another revision.
    #[error("another writer has changed the cell")]
    Conflict,
    /// The engine rejects the request, and would reject it again.
    #[error("the engine rejects the request: {0}")]
    Rejected(String),
    /// The engine is unreachable. Reads change nothing.
    #[error("the engine cannot be reached: {0}")]
    Unreachable(String),
}
