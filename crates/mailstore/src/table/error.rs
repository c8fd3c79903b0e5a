//! Errors of the table.

/// Why the table could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// The disk is full. Nothing was committed, and reading works; a later commit may succeed.
    #[error("the disk of the table is full: {0}")]
    NoRoom(String),
    /// The disk failed. Nothing more is committed to this file; the next commit first copies the rows of the last one
    /// into a new file.
    #[error("the disk of the table failed: {0}")]
    Disk(String),
    /// The database found damage, or one of its bugs. It is readable as far as possible, but not writable.
    #[error("the table is damaged: {0}")]
    Damaged(String),
    /// A value is damaged, or of a later version.
    #[error("a value of the table is damaged: {0}")]
    Value(String),
    /// The table cannot be opened.
    #[error("cannot open the table: {0}")]
    Open(String),
}
