//! The sending side as a state machine: replies in, [`Event`]s and wire bytes out.
//!
//! ```
//! use bytes::BytesMut;
//! use posthaste_smtp::client::{Config, Event, Machine, MessageBody};
//! use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};
//!
//! let mut machine = Machine::new(Config::new("client.example.net"))?;
//! let mut input = BytesMut::from("220 mx.example.org ESMTP\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::NeedInput));
//! assert_eq!(machine.take_output().concat(), b"EHLO client.example.net\r\n");
//! input.extend_from_slice(b"250-mx.example.org\r\n250 PIPELINING\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::Ready));
//!
//! let mail = MailFrom::new(ReversePath::parse("<a@example.net>").unwrap());
//! let rcpt = RcptTo::new(ForwardPath::parse("<b@example.org>").unwrap());
//! machine.send(mail, vec![rcpt], MessageBody::Whole(vec!["Subject: x\r\n\r\n.\r\n".into()]));
//! let commands = machine.take_output().concat();
//! assert_eq!(commands, b"MAIL FROM:<a@example.net>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n");
//! input.extend_from_slice(b"250 ok\r\n250 ok\r\n354 go\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::NeedInput));
//! assert_eq!(machine.take_output().concat(), b"Subject: x\r\n\r\n..\r\n.\r\n");
//! input.extend_from_slice(b"250 2.0.0 kept\r\n");
//! let Event::Sent(outcome) = machine.step(&mut input)? else { panic!() };
//! assert!(outcome.recipients[0].is_delivered());
//! # Ok::<(), posthaste_smtp::client::ClientError>(())
//! ```

mod machine;
mod output;
mod stuff;

use bytes::Bytes;

pub use machine::Machine;
pub use output::Output;
pub use stuff::Stuffer;

use crate::reply::{Reply, ReplyError, ShortReply};
use crate::server::Protocol;

/// Settings of a [`Machine`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Client name for EHLO, HELO or LHLO.
    pub helo_name: String,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Transfer of bodies.
    pub transfer: Transfer,
    /// Handling of messages with BODY=8BITMIME for a server that does not offer it.
    pub eight_bit: EightBit,
}

impl Config {
    /// SMTP, with bodies by DATA.
    pub fn new(helo_name: impl Into<String>) -> Self {
        Self {
            helo_name: helo_name.into(),
            protocol: Protocol::Smtp,
            transfer: Transfer::Data,
            eight_bit: EightBit::Send,
        }
    }
}

/// Handling of a message with BODY=8BITMIME where the server does not offer 8BITMIME (RFC 6152 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EightBit {
    /// Send it without the parameter: servers that do not offer it accept octets above 127 all the same.
    #[default]
    Send,
    /// Refuse it here: [`Stage::Local`], 554 5.6.3.
    Refuse,
}

/// Transfer of bodies. BDAT is used only if it was offered and the body is [`MessageBody::Whole`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// DATA: understood everywhere.
    #[default]
    Data,
    /// BDAT after the first accepted recipient.
    Bdat,
    /// BDAT directly after the recipients, without waiting: one round trip for a message. The body is wasted if no
    /// recipient is accepted.
    BdatAtOnce,
}

/// The message to send: CRLF line ends, dots not stuffed. Bare CR and LF become CRLF.
#[derive(Debug, Clone)]
pub enum MessageBody {
    /// The whole body, in pieces that need not be joined.
    Whole(Vec<Bytes>),
    /// A body that comes through [`Machine::body`] after [`Event::SendBody`]. Always sent with DATA.
    Streamed,
    /// No body: only the recipients are checked. Each gets the reply to its RCPT, [`Stage::Rcpt`] even for a positive
    /// one. DATA is not sent, and RSET precedes the next message.
    Absent,
}

/// Extensions that the server offers in its reply to EHLO or LHLO.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions {
    /// PIPELINING (RFC 2920).
    pub pipelining: bool,
    /// SIZE (RFC 1870); the inner value is the limit in octets, if one was given.
    pub size: Option<Option<u64>>,
    /// 8BITMIME (RFC 6152).
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// CHUNKING (RFC 3030).
    pub chunking: bool,
    /// DSN (RFC 3461).
    pub dsn: bool,
    /// FUTURERELEASE (RFC 4865).
    pub future_release: bool,
    /// XEXPIRES, of this project.
    pub expires: bool,
    /// STARTTLS (RFC 3207).
    pub starttls: bool,
    /// AUTH mechanisms (RFC 4954).
    pub auth: Vec<String>,
    /// RCPTMAX of LIMITS (RFC 9422).
    pub recipients_max: Option<u64>,
    /// RCPTDOMAINMAX of LIMITS (RFC 9422).
    pub recipient_domains_max: Option<u64>,
    /// MAILMAX of LIMITS (RFC 9422).
    pub messages_max: Option<u64>,
}

impl Extensions {
    /// Reads the reply to EHLO or LHLO.
    pub fn read(reply: &Reply) -> Self {
        let mut extensions = Self::default();
        // The first line is the server's name.
        for line in reply.text().lines().skip(1) {
            let mut words = line.split_ascii_whitespace();
            let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
            // `AUTH=LOGIN PLAIN`, the form of drafts before RFC 2554, in addition to `AUTH` or alone.
            if let Some(first) = keyword.strip_prefix("AUTH=") {
                extensions.add_auth([first].into_iter().chain(words));
                continue;
            }
            match keyword.as_str() {
                "PIPELINING" => extensions.pipelining = true,
                "SIZE" => {
                    let limit = words.next().and_then(|word| word.parse().ok());
                    extensions.size = Some(limit.filter(|limit| *limit > 0));
                }
                "8BITMIME" => extensions.eight_bit_mime = true,
                "SMTPUTF8" => extensions.smtputf8 = true,
                "CHUNKING" => extensions.chunking = true,
                "DSN" => extensions.dsn = true,
                "FUTURERELEASE" => extensions.future_release = true,
                "XEXPIRES" => extensions.expires = true,
                "STARTTLS" => extensions.starttls = true,
                "AUTH" => extensions.add_auth(words),
                "LIMITS" => {
                    for word in words {
                        match word.split_once('=') {
                            Some(("RCPTMAX", value)) => extensions.recipients_max = value.parse().ok(),
                            Some(("RCPTDOMAINMAX", value)) => extensions.recipient_domains_max = value.parse().ok(),
                            Some(("MAILMAX", value)) => extensions.messages_max = value.parse().ok(),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        extensions
    }

    /// Adds mechanisms, each once.
    fn add_auth<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        // RFC 4422 section 3.1.
        for name in names.filter(|name| (1..=20).contains(&name.len())) {
            if self.auth.len() < AUTH_MAX && !self.auth.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                self.auth.push(name.to_owned());
            }
        }
    }
}

/// Kept AUTH mechanisms at most.
const AUTH_MAX: usize = 32;

/// A request of the machine.
#[derive(Debug)]
pub enum Event {
    /// Write the output, then read more.
    NeedInput,
    /// The session is open and idle: [`Machine::send`], [`Machine::quit`], [`Machine::start_tls`] or [`Machine::authenticate`].
    Ready,
    /// Give the body with [`Machine::body`], then [`Machine::body_end`].
    SendBody,
    /// The outcome of the first message in flight. See [`Machine::may_send`] for the next.
    Sent(Outcome),
    /// Do the handshake, then call [`Machine::tls_started`].
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
    /// The connection was lost before there was a reply. `reply` is the one given to [`Machine::abort`], or a 421 to something else.
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
    /// Outcomes of recipients, in the order given to [`Machine::send`].
    pub recipients: Vec<RecipientOutcome>,
}

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
    /// The server failed to show in SCRAM that it knows the password: it is the wrong server for it, or it is broken.
    #[error("server did not prove that it knows the password: {0}")]
    NotShown(&'static str),
    /// [`Config::helo_name`] is empty or has blanks or control characters.
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
