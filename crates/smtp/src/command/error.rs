//! Errors of command lines, each with its reply.

use posthaste_message::address::AddressError;

use crate::reply::Reply;

/// The reason why a line is not a command. [`CommandError::reply`] is the reply to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The line is longer than its command allows; it was discarded to its end.
    #[error("command line is longer than {limit} octets")]
    CommandTooLong {
        /// Maximum octets, including CRLF.
        limit: usize,
    },
    /// The answer to an AUTH challenge is too long (RFC 4954 section 4).
    #[error("authentication exchange line is longer than {limit} octets")]
    AuthTooLong {
        /// Maximum octets, including CRLF.
        limit: usize,
    },
    /// The line ends in LF alone.
    #[error("command line ends in a bare LF")]
    BareLf,
    /// The line has a control character, or is not UTF-8.
    #[error("command line has bad characters")]
    Characters,
    /// No such command.
    #[error("unknown command")]
    Unknown,
    /// The command needs an argument, takes none, or has a bad one.
    #[error("{0}")]
    Argument(&'static str),
    /// The BDAT size is invalid. As with any bad line that begins with BDAT, the octets that follow may be data or
    /// commands: reply, then close.
    #[error("BDAT size is missing or bad")]
    BdatSize,
    /// Bad address in MAIL.
    #[error("bad sender: {0}")]
    Sender(AddressError),
    /// Bad address in RCPT.
    #[error("bad recipient: {0}")]
    Recipient(AddressError),
    /// A parameter that was not announced.
    #[error("parameter not recognized")]
    UnknownParameter,
    /// A known parameter with a bad value, or given twice.
    #[error("bad value for {0}")]
    Parameter(&'static str),
}

impl CommandError {
    /// The reply for this error.
    pub fn reply(&self) -> Reply {
        let (code, enhanced) = match self {
            Self::CommandTooLong { .. } | Self::BareLf | Self::Characters => (500, "5.5.2"),
            Self::AuthTooLong { .. } => (500, "5.5.6"),
            Self::Unknown => (500, "5.5.1"),
            Self::Argument(_) | Self::BdatSize | Self::Parameter(_) => (501, "5.5.4"),
            Self::Sender(_) => (501, "5.1.7"),
            Self::Recipient(_) => (501, "5.1.3"),
            Self::UnknownParameter => (555, "5.5.4"),
        };
        Reply::new(code, enhanced, self.to_string())
    }
}
