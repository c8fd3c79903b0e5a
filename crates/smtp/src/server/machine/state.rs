//! The state of a session, and of the transaction in it.

use crate::command::{CommandError, RcptTo};
use crate::reply::Reply;
use crate::scan::Scanner;
use crate::server::Envelope;

#[derive(Debug)]
pub(super) enum State {
    /// Waits for [`Machine::greet`](super::Machine::greet).
    Greeting,
    /// Waits for a command line.
    Command,
    /// Waits for the end of an overlong line.
    LongLine { error: CommandError, sort: Sort },
    /// The client said hello; [`Event::Hello`] is still to come, after that of a body that it cut off.
    AskHello,
    /// Waits for [`Machine::answer`](super::Machine::answer) about HELO, EHLO or LHLO.
    AnswerHello,
    /// Waits for [`Machine::answer`](super::Machine::answer) about MAIL.
    AnswerMail,
    /// Waits for [`Machine::answer`](super::Machine::answer) about RCPT.
    AnswerRcpt(Box<RcptTo>),
    /// Waits for [`Machine::answer`](super::Machine::answer) about DATA.
    AnswerData,
    /// Waits for CRLF.CRLF.
    Data,
    /// Waits for the rest of a chunk; `refusal` is sent instead of 250 after its end.
    Chunk { left: u64, size: u64, last: bool, refusal: Option<Box<Reply>> },
    /// The message is complete; its last event is still to come.
    Complete,
    /// Waits for [`Machine::finish`](super::Machine::finish).
    Outcome,
    /// Waits for [`Machine::tls_started`](super::Machine::tls_started).
    Tls,
    /// Waits for [`Machine::auth_challenge`](super::Machine::auth_challenge) or [`Machine::auth_done`](super::Machine::auth_done).
    AuthAnswer,
    /// Waits for the client's answer to a challenge.
    AuthResponse,
    /// The session is over; nothing more is read.
    Closed,
}

#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) envelope: Envelope,
    /// Recipients in the envelope; [`Event::BodyBegin`] carries them away.
    pub(super) recipients: usize,
    /// True if a RCPT was refused: then DATA without recipients is 554, not 503.
    pub(super) refused: bool,
    pub(super) body: Option<Body>,
}

/// A message that arrives.
#[derive(Debug)]
pub(super) struct Body {
    pub scanner: Scanner,
    /// True once [`Event::BodyBegin`] was returned.
    pub begun: bool,
    /// True once [`Event::BodyAborted`] was returned.
    pub aborted: bool,
    /// Its size in octets, as announced with SIZE (RFC 1870).
    pub announced: Option<u64>,
    /// The refusal of [`Machine::refuse_rest`](super::Machine::refuse_rest).
    pub refusal: Option<Box<Reply>>,
}

/// The kind of a line that is not a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// A command.
    Command,
    /// BDAT: octets of a message follow it.
    Chunk,
    /// Part of another protocol.
    Foreign,
}

/// Latest date that is kept: the last of 32 bits.
pub(super) const HOLD_UNTIL_MAX: i64 = u32::MAX as i64;
