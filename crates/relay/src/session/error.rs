//! Errors that prevent or end a session.

use std::io;

use posthaste_smtp::client::{ClientError, Step};
use posthaste_smtp::{Reply, ShortReply};
use rustls::{CertificateError, OtherError};

use super::Channel;

/// The reason why a connection is of no further use. Its scope is the host: [`FateScope::Host`](super::FateScope::Host).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The connection could not be made, was closed or failed.
    #[error("{step}: {}", what_happened(.error))]
    Io {
        /// The step in progress.
        step: Step,
        /// The system's error.
        error: io::Error,
    },
    /// A time of [`SessionTimeouts`](super::SessionTimeouts) ran out.
    #[error("{0}: timed out")]
    TimedOut(Step),
    /// The server refused the session, or does not speak SMTP.
    #[error(transparent)]
    Protocol(#[from] ClientError),
    /// The server replied 421, or refused RSET.
    #[error("{reply} ({})", .step.name())]
    Closed {
        /// The step that the reply answers.
        step: Step,
        /// The whole reply.
        reply: ShortReply,
    },
    /// The future of an earlier [`OutgoingSession::run`](super::OutgoingSession::run) was dropped before its end.
    #[error("the session is over")]
    Over,
    /// [`SessionSettings::halt`](super::SessionSettings::halt) is set.
    #[error("the session was halted")]
    Halted,
}

fn what_happened(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".into(),
        _ => error.to_string(),
    }
}

/// rustls shows the errors of other verifiers in debug form; this prints their text.
fn what_failed(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) => other.to_string(),
        _ => error.to_string(),
    }
}

impl Loss {
    /// The reply that ended the session, if any, and its step.
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

    /// True if the connection ended without a reply about it.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::TimedOut(_))
    }

    /// The reply for messages in flight.
    pub(super) fn as_reply(&self) -> Reply {
        match self {
            Self::Protocol(error) => Reply::new(451, "4.5.0", format!("Bad session: {error}")),
            loss => Reply::new(451, "4.4.2", format!("Connection lost {loss}")),
        }
    }
}

/// The reason why a session was not opened. Its scope is the host, except for [`SessionOpenError::Source`]; no message was
/// tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionOpenError {
    /// The source address is unusable on this machine or for this endpoint, or its proxy is: every host would fail from
    /// it.
    #[error("cannot connect from the source: {0}")]
    Source(io::Error),
    /// The connection failed, was lost, or was refused.
    #[error(transparent)]
    Lost(#[from] Loss),
    /// The TLS handshake failed.
    #[error("TLS handshake: {}", what_failed(.error))]
    Handshake {
        /// The TLS error.
        error: io::Error,
        /// The policy is opportunistic and there is no password to send.
        may_retry_in_clear: bool,
    },
    /// The connection was lost at STARTTLS or at the EHLO after the handshake, or STARTTLS was answered 421. The policy
    /// is opportunistic and there is no password to send.
    #[error("TLS: {0}")]
    TlsLost(Loss),
    /// TLS is demanded and STARTTLS is not offered.
    #[error("the server does not offer STARTTLS")]
    NoStartTls,
    /// AUTH needs more protection than the session has; no password was sent.
    #[error("no password is sent over a session that is {0:?}")]
    Unprotected(Channel),
    /// Neither SCRAM-SHA-256 nor PLAIN nor LOGIN is offered.
    #[error("the server offers no AUTH mechanism that we know")]
    NoMechanism,
}

impl SessionOpenError {
    /// True if TLS is demanded, and STARTTLS is not offered, or refused.
    pub fn has_no_starttls(&self) -> bool {
        let is_refused = || self.last_words().is_some_and(|(step, _)| step == Step::StartTls);
        matches!(self, Self::NoStartTls) || is_refused()
    }

    /// True if the caller may connect once more, to the same address without TLS.
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
