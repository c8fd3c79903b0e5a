//! Errors of receiving a message, and the replies to them.

use std::io;

#[cfg(doc)]
use crate::limits::{BareNewlines, Limits, LongLines, NulOctets};
use crate::reply::Reply;

/// The reason why a message did not arrive whole, or will be refused whatever the handler says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// More octets than [`Limits::message_bytes`]: 552 5.3.4.
    #[error("message is larger than {limit} octets")]
    TooLarge {
        /// Maximum octets.
        limit: u64,
    },
    /// A header of more octets than [`Limits::header_bytes`]: 552 5.3.4.
    #[error("message header is larger than {limit} octets")]
    HeaderTooLarge {
        /// Maximum octets.
        limit: u64,
    },
    /// A line of more octets than [`Limits::text_line_bytes`] under [`LongLines::Reject`]: 554 5.6.0.
    #[error("message has a line of more than {limit} octets")]
    DataLineTooLong {
        /// Maximum octets of a line, not counting CRLF.
        limit: u64,
    },
    /// CR without LF, or LF without CR, under [`BareNewlines::Reject`]: 550 5.6.11.
    #[error("message has a bare CR or LF")]
    BareNewline,
    /// A NUL octet under [`NulOctets::Reject`]: 550 5.6.0.
    #[error("message has a NUL octet")]
    Nul,
    /// The client gave the transaction up (RSET, EHLO or QUIT between BDAT chunks).
    #[error("client gave up the message")]
    Reset,
    /// The connection ended within the message.
    #[error("connection ended within the message")]
    Disconnected,
    /// The client was silent for longer than the driver allows.
    #[error("client sent nothing for too long")]
    TimedOut,
    /// The server shuts down and its grace is over.
    #[error("server is shutting down")]
    ShuttingDown,
    /// The connection failed within the message.
    #[error("connection failed within the message: {0}")]
    Io(io::ErrorKind),
}

impl BodyError {
    /// The reply to the message, if the client is still there.
    pub fn reply(&self) -> Reply {
        let (code, enhanced) = match self {
            Self::TooLarge { .. } | Self::HeaderTooLarge { .. } => (552, "5.3.4"),
            Self::DataLineTooLong { .. } => (554, "5.6.0"),
            Self::BareNewline => (550, "5.6.11"),
            Self::Nul => (550, "5.6.0"),
            // Never sent, as the client has its reply to RSET. Nothing was accepted.
            Self::Reset => (451, "4.3.0"),
            Self::Disconnected | Self::TimedOut | Self::Io(_) => (421, "4.4.2"),
            Self::ShuttingDown => (421, "4.3.2"),
        };
        Reply::new(code, enhanced, self.to_string())
    }
}
