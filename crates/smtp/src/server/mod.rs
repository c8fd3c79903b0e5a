//! The receiving side as a state machine: bytes in, [`Event`]s and reply bytes out.
//!
//! The owner (a *driver*) calls [`Machine::step`] with what it has read until the answer is [`Event::NeedInput`],
//! then writes [`Machine::output`] in one piece and reads more. All commands in a buffer are handled in one pass.
//!
//! ```
//! use bytes::BytesMut;
//! use posthaste_smtp::server::{Config, Event, Machine};
//! use std::sync::Arc;
//!
//! let mut machine = Machine::new(Arc::new(Config::new("mx.example.org")));
//! machine.greet(Ok(()));
//! let mut input = BytesMut::from("EHLO client.example.net\r\nNOOP\r\n");
//! assert!(matches!(machine.step(&mut input), Event::NeedInput));
//! assert!(machine.output().ends_with(b"250 2.0.0 OK\r\n"));
//! ```

mod machine;
mod outcome;

use bytes::Bytes;

pub use machine::Machine;
pub use outcome::MessageOutcome;

use crate::body_error::BodyError;
use crate::command::{MailFrom, RcptTo};
use crate::limits::{BareNewlines, Limits, LongLines, NulOctets};
use crate::scan::Policy;

/// The protocol of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Protocol {
    /// SMTP (RFC 5321).
    #[default]
    Smtp,
    /// LMTP (RFC 2033): LHLO instead of HELO, and one reply for each recipient after the body.
    Lmtp,
}

/// The methods of HTTP, and the start of an HTTP/2 connection.
pub const FORBIDDEN_COMMANDS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI"];

/// Settings of a [`Machine`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Our name in the greeting and in the reply to EHLO.
    pub host_name: String,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// All bounds.
    pub limits: Limits,
    /// Bare CR and LF in messages and commands.
    pub bare_newlines: BareNewlines,
    /// NUL in messages.
    pub nul_octets: NulOctets,
    /// Long text lines.
    pub long_lines: LongLines,
    /// Commands of other protocols, in any case. A client that sends one, or a line that looks like a header field
    /// (`Host: x`), gets 502 5.7.0 and is cut off. It is a browser sent here by a web page, or a similar stray, and
    /// mail in the body of its request must not be accepted. Only commands that SMTP does not have count. Empty:
    /// nothing is forbidden. Default [`FORBIDDEN_COMMANDS`].
    pub forbidden_commands: Vec<String>,
    /// Accept paths without angle brackets, and in HELO a missing name or one with blanks, as some devices send.
    /// Default false.
    pub lenient_commands: bool,
    /// Announce DSN and accept its parameters (RFC 3461). Set it only if the handler honours NOTIFY, RET, ENVID and
    /// ORCPT: the announcement is a promise. Otherwise they are refused with 555 5.5.4. Default false.
    pub dsn: bool,
    /// Offer DSN to clients that have logged in, if not to all. Default false.
    pub dsn_for_logins: bool,
    /// Announce STARTTLS and yield [`Event::StartTls`]. Set it only if the driver can do the handshake.
    pub starttls: bool,
    /// Refuse MAIL and VRFY with 530 5.7.0 until the session is encrypted (RFC 3207 section 4). Default false.
    pub requires_tls: bool,
    /// AUTH mechanisms to announce; empty for none. Set it only if the driver answers [`Event::Auth`].
    pub auth_mechanisms: Vec<String>,
    /// Announce AUTH only after STARTTLS, so that no password crosses the network in the clear. Default true.
    pub auth_needs_tls: bool,
    /// Yield [`Event::Hello`] instead of welcoming every client. Set it only if the driver answers; the tokio driver
    /// always does.
    pub asks_hello: bool,
    /// Yield [`Event::Data`] instead of accepting every DATA after a good RCPT. Set it only if the driver answers; the
    /// tokio driver always does.
    pub asks_data: bool,
}

impl Config {
    /// All defaults.
    pub fn new(host_name: impl Into<String>) -> Self {
        Self {
            host_name: host_name.into(),
            protocol: Protocol::default(),
            limits: Limits::default(),
            bare_newlines: BareNewlines::default(),
            nul_octets: NulOctets::default(),
            long_lines: LongLines::default(),
            forbidden_commands: FORBIDDEN_COMMANDS.map(String::from).to_vec(),
            lenient_commands: false,
            dsn: false,
            dsn_for_logins: false,
            starttls: false,
            requires_tls: false,
            auth_mechanisms: Vec::new(),
            auth_needs_tls: true,
            asks_hello: false,
            asks_data: false,
        }
    }

    fn body_policy(&self) -> Policy {
        Policy::new(&self.limits, self.bare_newlines, self.nul_octets, self.long_lines)
    }
}

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
    /// *Asks*, with [`Config::asks_hello`] only: is the client in [`Machine::helo`] welcome? Answer with
    /// [`Machine::answer`]; a refused one has not said hello.
    Hello,
    /// *Asks*: may the sender in [`Machine::mail`] send? Answer with [`Machine::answer`].
    Mail,
    /// *Asks*: is the recipient in [`Machine::recipient`] taken? Answer with [`Machine::answer`].
    Rcpt,
    /// *Asks*, with [`Config::asks_data`] only: may the message of [`Machine::envelope`] come? Answer with
    /// [`Machine::answer`]; a refusal ends the transaction. BDAT has no such question: its first reply is about octets
    /// already received.
    Data,
    /// A message begins.
    BodyBegin(Envelope),
    /// A piece of the message, dots removed, CRLF kept: a slice of the input, not a copy.
    Body(Bytes),
    /// *Asks*: the message is complete. Answer with [`Machine::finish`] once its fate is known.
    BodyEnd,
    /// The message is lost or refused; the machine skips the rest and replies itself.
    BodyAborted(BodyError),
    /// The open transaction has ended before its message began. Not sent if a verdict of the driver ended it.
    TransactionAborted(Abort),
    /// *Asks*: write the output, do the handshake, then call [`Machine::tls_started`]. The input is empty.
    StartTls,
    /// *Asks*: answer with [`Machine::auth_challenge`] or [`Machine::auth_done`].
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
        /// As written in [`Config::auth_mechanisms`].
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
