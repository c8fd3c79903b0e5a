//! Why there is no session, or no longer one.

use std::io;

use posthaste_smtp::client::{ClientError, Step};
use posthaste_smtp::{Reply, ShortReply};

use super::Channel;

/// Why a connection is of no further use. All of it belongs to the host: [`Scope::Host`](super::Scope::Host).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The connection could not be made, was closed or failed.
    #[error("{step}: {}", what_happened(.error))]
    Io {
        /// The step that was being waited for.
        step: Step,
        /// The system's error.
        error: io::Error,
    },
    /// A time of [`Timeouts`](super::Timeouts) ran out.
    #[error("{0}: timed out")]
    TimedOut(Step),
    /// The server refused the session, or does not speak SMTP.
    #[error(transparent)]
    Protocol(#[from] ClientError),
    /// The server said 421, or refused RSET.
    #[error("{reply} ({})", .step.name())]
    Closed {
        /// To what.
        step: Step,
        /// All of it.
        reply: ShortReply,
    },
    /// The future of an earlier [`Session::run`](super::Session::run) was dropped before its end.
    #[error("the session is over")]
    Over,
    /// [`Settings::halt`](super::Settings::halt) is set.
    #[error("the session was halted")]
    Halted,
}

fn what_happened(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".into(),
        _ => error.to_string(),
    }
}

impl Loss {
    /// The reply of the server that ended the session, if one did, and what it was the reply to.
    pub fn last_words(&self) -> Option<(Step, &ShortReply)> {
        match self {
            Self::Closed { step, reply } => Some((*step, reply)),
            Self::Protocol(ClientError::Greeting(reply)) => Some((Step::Greeting, reply)),
            Self::Protocol(ClientError::Hello(reply)) => Some((Step::Hello, reply)),
            Self::Protocol(ClientError::Tls(reply)) => Some((Step::StartTls, reply)),
            Self::Protocol(ClientError::Auth(reply)) => Some((Step::Auth, reply)),
            Self::Protocol(ClientError::Unexpected { step, reply }) => Some((*step, reply)),
            _ => None,
        }
    }

    /// Reports whether the connection is gone and the server has said nothing about it.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::TimedOut(_))
    }

    /// The reply for messages that were in flight.
    pub(super) fn as_reply(&self) -> Reply {
        match self {
            Self::Protocol(error) => Reply::new(451, "4.5.0", format!("Bad session: {error}")),
            loss => Reply::new(451, "4.4.2", format!("Connection lost {loss}")),
        }
    }
}

/// Why a session was not opened. It belongs to the host, except [`OpenError::Source`]; no message was tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The source address cannot be used on this machine, or not for this endpoint, or its proxy cannot: every host would fail from it.
    #[error("cannot connect from the source: {0}")]
    Source(io::Error),
    /// Not connected, lost or refused.
    #[error(transparent)]
    Lost(#[from] Loss),
    /// The TLS handshake failed.
    #[error("TLS handshake: {error}")]
    Handshake {
        /// Why.
        error: io::Error,
        /// The policy is opportunistic and no password is to be sent.
        may_retry_in_clear: bool,
    },
    /// The connection was lost at STARTTLS or at the EHLO after the handshake, or STARTTLS was answered 421; the policy is opportunistic and no password is to
    /// be sent.
    #[error("TLS: {0}")]
    TlsLost(Loss),
    /// TLS is demanded and STARTTLS is not offered.
    #[error("the server does not offer STARTTLS")]
    NoStartTls,
    /// AUTH needs more protection than the session has; nothing was said.
    #[error("no password is sent over a session that is {0:?}")]
    Unprotected(Channel),
    /// Neither SCRAM-SHA-256 nor PLAIN nor LOGIN is offered.
    #[error("the server offers no AUTH mechanism that we know")]
    NoMechanism,
}

impl OpenError {
    /// True if to connect once more, to the same address and without TLS.
    pub fn may_retry_in_clear(&self) -> bool {
        matches!(self, Self::Handshake { may_retry_in_clear: true, .. } | Self::TlsLost(_))
    }

    /// The server's reply, if it was a refusal.
    pub fn reply(&self) -> Option<&Reply> {
        self.last_words().map(|(_, reply)| &**reply)
    }

    /// The server's reply, and the step that it answers.
    pub fn last_words(&self) -> Option<(Step, &ShortReply)> {
        match self {
            Self::Lost(loss) | Self::TlsLost(loss) => loss.last_words(),
            _ => None,
        }
    }
}
