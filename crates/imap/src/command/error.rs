//! Errors of commands.

/// The result of reading a command, or a part of it.
pub(crate) type Result<T> = std::result::Result<T, ImapCommandError>;

/// Why a command is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImapCommandError {
    /// A syntax error or an unknown command: BAD.
    #[error("{0}")]
    Bad(&'static str),
    /// A valid command beyond a limit: `NO [LIMIT]`.
    #[error("{0}")]
    Limit(&'static str),
    /// A SEARCH in an unknown charset: `NO [BADCHARSET]`.
    #[error("The charset is not known")]
    Charset,
}
