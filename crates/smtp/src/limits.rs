//! Every bound of a session, and the policies for input that real mail should not contain.

use std::time::Duration;

/// Bounds of one server session. At each bound the client gets the reply named here and the server goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Octets in a command line, CRLF included; extensions add their allowances to MAIL and RCPT (RFC 5321 section
    /// 4.5.3.1.4). Beyond it: the line is discarded to its end, then 500 5.5.2. Default 512.
    pub command_line_bytes: usize,
    /// Octets in a message after dot-unstuffing; announced with SIZE, enforced at MAIL and while the body arrives.
    /// Beyond it: the rest is discarded, then 552 5.3.4. Default 50 MiB. 0 means no limit.
    pub message_bytes: u64,
    /// Octets in a message's header, to the empty line. Beyond it: 552 5.3.4. Default 1 MiB.
    pub header_bytes: u64,
    /// Octets in a text line without its CRLF (RFC 5321 section 4.5.3.1.6), under [`LongLines::Reject`] only. Default 998.
    pub text_line_bytes: u64,
    /// Octets read and discarded after the fault in a refused message, so that the client can see the reply. Beyond it:
    /// 552 5.3.4 at once and the connection closes. Default 256 MiB.
    pub discard_bytes: u64,
    /// Recipients in one transaction. Beyond it: 452 4.5.3 for each further one. Default 1000; at least 100 is required
    /// by RFC 5321 section 4.5.3.1.8.
    pub recipients: usize,
    /// Commands answered with 5yz since the last accepted message. Beyond it: 421 4.7.0 and close. Default 50.
    pub errors: u32,
    /// Recipients answered with 4yz since the last accepted message, those beyond [`Limits::recipients`] among them.
    /// Beyond it: 421 4.7.0 and close. Default 2000, so that a client may try a long list at once.
    pub deferred_recipients: u32,
    /// HELO, EHLO, MAIL, RSET, NOOP, VRFY, EXPN and HELP, and BDAT with no octets, since the last accepted message. Beyond it: 421 4.7.0 and
    /// close. Default 200.
    pub idle_commands: u32,
    /// Messages in one session, announced as MAILMAX. Beyond it: 421 4.7.0 and close. Default `None`: no limit.
    pub messages: Option<u32>,
    /// Seconds that a message may be held back, announced with FUTURERELEASE (RFC 4865), together with the latest date,
    /// counted from the session's beginning. More is answered with 501 5.5.4. Set it only if the handler honours it.
    /// Default 0: not offered.
    pub future_release_secs: u32,
    /// Timeouts of the driver in each state.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            command_line_bytes: 512,
            message_bytes: 50 << 20,
            header_bytes: 1 << 20,
            text_line_bytes: 998,
            discard_bytes: 256 << 20,
            recipients: 1000,
            errors: 50,
            deferred_recipients: 2000,
            idle_commands: 200,
            messages: None,
            future_release_secs: 0,
            timeouts: Timeouts::default(),
        }
    }
}

/// Timeouts for the driver, which owns the clock; the state machine only carries them. At each: 421 4.4.2 and close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// For a whole command line, counted from the reply to the one before: trickling octets does not extend it.
    /// Default 5 minutes (RFC 5321 section 4.5.3.2.7).
    pub command: Duration,
    /// Timeout of a read while a message body is received. Default 3 minutes (RFC 5321 section 4.5.3.2.5).
    pub body_read: Duration,
    /// Timeout of a whole message body. Default 1 hour.
    pub body_total: Duration,
    /// Timeout of the client reading our replies. Default 5 minutes.
    pub write: Duration,
    /// Time for which a closed connection keeps reading, so that the last reply is not lost to a reset. Default 1 s.
    pub linger: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            command: Duration::from_secs(300),
            body_read: Duration::from_secs(180),
            body_total: Duration::from_secs(3600),
            write: Duration::from_secs(300),
            linger: Duration::from_secs(1),
        }
    }
}

/// Handling of CR without LF and LF without CR in a message.
///
/// In every case only CRLF.CRLF ends a message: a bare CR or LF never takes part in an end of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum BareNewlines {
    /// Read the message to its true end, then refuse it with 550 5.6.11.
    #[default]
    Reject,
    /// Make each of them a CRLF. Danger: the message changes, so signatures over it (DKIM) break. Text that was no line
    /// for its sender's system becomes one, header fields included.
    Fix,
    /// Store as received. Danger ("SMTP smuggling"): a later hop may take a bare LF for a line end, and see a forged
    /// second message begin there. The relay can repair the message before.
    Accept,
}

/// Handling of NUL octets in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum NulOctets {
    /// Refuse with 550 5.6.0: RFC 5322 forbids NUL. Readers written in C end the text there, so two programs would see
    /// two different messages.
    #[default]
    Reject,
    /// Store as received.
    Accept,
}

/// Handling of text lines longer than [`Limits::text_line_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum LongLines {
    /// Store as received. The default, because much real mail (one-line HTML, unfolded fields) breaks the rule, and
    /// readers of a Maildir accept it.
    #[default]
    Accept,
    /// Refuse with 554 5.6.0.
    Reject,
}
