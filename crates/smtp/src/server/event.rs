//! Requests of the machine, and their parts.

use bytes::Bytes;

use crate::body_error::BodyError;
use crate::command::{MailFrom, RcptTo};

/// Sender and recipients of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The MAIL command.
    pub mail: MailFrom,
    /// The accepted RCPT commands, in their order. Never empty once a body begins.
    pub recipients: Vec<RcptTo>,
}

/// A request of the machine. An event marked *asks* holds the machine until it is answered.
#[derive(Debug)]
pub enum Event {
    /// The buffer is processed: write the output, then read more.
    NeedInput,
    /// The output has grown large: write it, then continue.
    Flush,
    /// *Asks*, with [`Config::asks_hello`](super::Config::asks_hello) only: is the client in [`Machine::helo`](super::Machine::helo) welcome? Answer with
    /// [`Machine::answer`](super::Machine::answer); a refused one has not said hello.
    Hello,
    /// *Asks*: may the sender in [`Machine::mail`](super::Machine::mail) send? Answer with [`Machine::answer`](super::Machine::answer).
    Mail,
    /// *Asks*: is the recipient in [`Machine::recipient`](super::Machine::recipient) taken? Answer with [`Machine::answer`](super::Machine::answer).
    Rcpt,
    /// *Asks*, with [`Config::asks_data`](super::Config::asks_data) only: may the message of [`Machine::envelope`](super::Machine::envelope) come? Answer with
    /// [`Machine::answer`](super::Machine::answer); a refusal ends the transaction. BDAT has no such question: its first reply is about octets
    /// already received.
    Data,
    /// A message begins.
    BodyBegin(Envelope),
    /// A piece of the message, dots removed, CRLF kept: a slice of the input, not a copy.
    Body(Bytes),
    /// *Asks*: the message is complete. Answer with [`Machine::finish`](super::Machine::finish) once its fate is known.
    BodyEnd,
    /// The message is lost or refused; the machine skips the rest and replies itself.
    BodyAborted(BodyError),
    /// The open transaction has ended before its message began. Not sent if a verdict of the driver ended it.
    TransactionAborted(Abort),
    /// *Asks*: write the output, do the handshake, then call [`Machine::tls_started`](super::Machine::tls_started). The input is empty.
    StartTls,
    /// *Asks*: answer with [`Machine::auth_challenge`](super::Machine::auth_challenge) or [`Machine::auth_done`](super::Machine::auth_done).
    Auth(AuthStep),
    /// Write the output and close. Nothing more will come.
    Close,
}

/// The cause of a transaction's end before its message. A second MAIL is no cause: it is refused, and the transaction
/// stays (RFC 5321 section 4.1.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abort {
    /// RSET (RFC 5321 section 4.1.1.5).
    Reset,
    /// Another HELO, EHLO or LHLO (RFC 5321 section 4.1.4).
    Hello,
    /// QUIT (RFC 5321 section 4.1.1.10).
    Quit,
    /// The server closes the session.
    Closed,
}

/// A step of an authenticating client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthStep {
    /// AUTH with its mechanism (as announced) and initial response, still in base64; `=` means empty.
    Begin {
        /// As written in [`Config::auth_mechanisms`](super::Config::auth_mechanisms).
        mechanism: String,
        /// `None`: the client waits for a challenge.
        initial: Option<String>,
    },
    /// The answer to a challenge, still in base64.
    Response(String),
}

/// The client's expected next step, by which the driver chooses its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A command outside a transaction: the session is idle.
    Idle,
    /// A command within a transaction, or an answer to an AUTH challenge.
    Command,
    /// Octets of a message.
    Body,
}
