//! Errors that end a session.

use super::event::Step;
use crate::reply::{ReplyError, ShortReply};

/// The reason why a session is of no further use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server did not greet with 2yz: retry later or elsewhere if 4yz.
    #[error("server refused the connection: {0}")]
    Greeting(ShortReply),
    /// Both EHLO (LHLO) and HELO were refused.
    #[error("server refused the greeting: {0}")]
    Hello(ShortReply),
    /// STARTTLS was refused.
    #[error("server refused STARTTLS: {0}")]
    Tls(ShortReply),
    /// AUTH was refused: with 535 for a wrong password, otherwise for the reason in the reply.
    #[error("server refused AUTH: {0}")]
    Auth(ShortReply),
    /// The server did not prove in SCRAM that it knows the password: it is the wrong server, or it is broken.
    #[error("server did not prove that it knows the password: {0}")]
    NotShown(&'static str),
    /// [`Config::helo_name`](super::Config::helo_name) is empty or has blanks or control characters.
    #[error("bad name for EHLO: {0:?}")]
    BadName(String),
    /// Octets came in the clear after the reply to STARTTLS, perhaps from an attacker.
    #[error("server sent data after its reply to STARTTLS")]
    TlsInjection,
    /// The server does not speak SMTP.
    #[error("bad reply: {0}")]
    Reply(#[from] ReplyError),
    /// A reply came without a command, or does not fit it: 3yz to MAIL, a verdict before the end of the message was
    /// written.
    #[error("unexpected reply: {reply}")]
    Unexpected {
        /// The awaited step; [`Step::Idle`] for nothing.
        step: Step,
        /// The whole reply.
        reply: ShortReply,
    },
}
