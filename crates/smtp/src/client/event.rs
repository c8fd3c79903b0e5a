//! Requests of the machine, the message to send, and its outcome.

use bytes::Bytes;

use crate::reply::ShortReply;

/// The message to send: CRLF line ends, dots not stuffed. Bare CR and LF become CRLF.
#[derive(Debug, Clone)]
pub enum MessageBody {
    /// The whole body, in pieces that need not be joined.
    Whole(Vec<Bytes>),
    /// A body that comes through [`Machine::body`](super::Machine::body) after [`Event::SendBody`]. Always sent with DATA.
    Streamed,
    /// No body: only the recipients are checked. Each gets the reply to its RCPT, [`Stage::Rcpt`] even for a positive
    /// one. DATA is not sent, and RSET precedes the next message.
    Absent,
}

/// A request of the machine.
#[derive(Debug)]
pub enum Event {
    /// Write the output, then read more.
    NeedInput,
    /// The session is open and idle: [`Machine::send`](super::Machine::send), [`Machine::quit`](super::Machine::quit), [`Machine::start_tls`](super::Machine::start_tls) or [`Machine::authenticate`](super::Machine::authenticate).
    Ready,
    /// Give the body with [`Machine::body`](super::Machine::body), then [`Machine::body_end`](super::Machine::body_end).
    SendBody,
    /// The outcome of the first message in flight. See [`Machine::may_send`](super::Machine::may_send) for the next.
    Sent(Outcome),
    /// Do the handshake, then call [`Machine::tls_started`](super::Machine::tls_started).
    TlsReady,
    /// The session is over.
    Closed,
}

/// The step of a session, to say where it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Making the connection.
    Connect,
    /// The server's greeting.
    Greeting,
    /// The reply to EHLO, LHLO or HELO.
    Hello,
    /// The reply to STARTTLS.
    StartTls,
    /// The TLS handshake.
    Handshake,
    /// The reply to AUTH.
    Auth,
    /// The session is idle.
    Idle,
    /// The reply to RSET.
    Reset,
    /// The reply to MAIL.
    Mail,
    /// The reply to RCPT.
    Rcpt,
    /// The reply to DATA.
    Data,
    /// The verdict on the message, which may not be fully sent.
    Body,
    /// The reply to QUIT.
    Quit,
}

impl Step {
    /// Name of the command that a reply at this step answers: `EHLO`, `MAIL`, `message`; `greeting`, or `idle` without
    /// a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connection",
            Self::Greeting => "greeting",
            Self::Hello => "EHLO",
            Self::StartTls => "STARTTLS",
            Self::Handshake => "TLS handshake",
            Self::Auth => "AUTH",
            Self::Idle => "idle",
            Self::Reset => "RSET",
            Self::Mail => "MAIL",
            Self::Rcpt => "RCPT",
            Self::Data => "DATA",
            Self::Body => "message",
            Self::Quit => "QUIT",
        }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "while connecting",
            Self::Greeting => "before the greeting",
            Self::Hello => "before the reply to EHLO",
            Self::StartTls => "before the reply to STARTTLS",
            Self::Handshake => "in the TLS handshake",
            Self::Auth => "before the reply to AUTH",
            Self::Idle => "between messages",
            Self::Reset => "before the reply to RSET",
            Self::Mail => "before the reply to MAIL",
            Self::Rcpt => "before the reply to RCPT",
            Self::Data => "before the reply to DATA",
            Self::Body => "before the verdict on the message",
            Self::Quit => "before the reply to QUIT",
        })
    }
}

/// Progress of a recipient: the last stage answered, or, if [`RecipientOutcome::lost`], awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Refused here, before anything was sent: the server lacks something that the message needs.
    Local,
    /// MAIL, or RSET before it.
    Mail,
    /// RCPT.
    Rcpt,
    /// The server takes no more recipients in this transaction: RCPT was answered with 452 or 552 after another had
    /// been accepted, or was not sent. The message may be sent to this one at once, in a further transaction (RFC 5321
    /// section 4.5.3.1.10).
    TooMany,
    /// DATA.
    Data,
    /// The connection was lost before the end of the message was written. The server does not have it.
    Body,
    /// The verdict on the message. If the connection was lost before it came, the server may or may not have the message.
    Verdict,
}

impl Stage {
    /// Name of the answered command: `MAIL`, `RCPT`, `DATA` or `message`; empty if none was.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "",
            Self::Mail => "MAIL",
            Self::Rcpt | Self::TooMany => "RCPT",
            Self::Data => "DATA",
            Self::Body | Self::Verdict => "message",
        }
    }
}

/// The outcome of one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientOutcome {
    /// The reply that decided.
    pub reply: ShortReply,
    /// The stage that it answers.
    pub stage: Stage,
    /// The connection was lost before there was a reply. `reply` is the one given to [`Machine::abort`](super::Machine::abort), or a 421 to something else.
    pub lost: bool,
}

impl RecipientOutcome {
    /// True if the server has taken responsibility for the message to this recipient.
    pub fn is_delivered(&self) -> bool {
        self.stage == Stage::Verdict && !self.lost && self.reply.is_positive()
    }

    /// True if the server may or may not have the message: its end was written, and no verdict came.
    pub fn is_unknown(&self) -> bool {
        self.stage == Stage::Verdict && self.lost
    }
}

/// The outcome of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Outcomes of recipients, in the order given to [`Machine::send`](super::Machine::send).
    pub recipients: Vec<RecipientOutcome>,
}
