//! Settings of a session.

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

/// Settings of a [`Machine`](super::Machine).
#[derive(Debug, Clone)]
pub struct Config {
    /// Our name in the greeting and in the reply to EHLO.
    pub host_name: String,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Limits of lines, messages and recipients.
    pub limits: Limits,
    /// Bare CR and LF in messages and commands.
    pub bare_newlines: BareNewlines,
    /// Handling of NUL octets in messages.
    pub nul_octets: NulOctets,
    /// Handling of long text lines.
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
    /// Announce STARTTLS and yield [`Event::StartTls`](super::Event::StartTls). Set it only if the driver can do the handshake.
    pub starttls: bool,
    /// Refuse MAIL and VRFY with 530 5.7.0 until the session is encrypted (RFC 3207 section 4). Default false.
    pub requires_tls: bool,
    /// AUTH mechanisms to announce; empty for none. Set it only if the driver answers [`Event::Auth`](super::Event::Auth).
    pub auth_mechanisms: Vec<String>,
    /// Announce AUTH only after STARTTLS, so that no password crosses the network in the clear. Default true.
    pub auth_needs_tls: bool,
    /// Yield [`Event::Hello`](super::Event::Hello) instead of welcoming every client. Set it only if the driver answers; the tokio driver
    /// always does.
    pub asks_hello: bool,
    /// Yield [`Event::Data`](super::Event::Data) instead of accepting every DATA after a good RCPT. Set it only if the driver answers; the
    /// tokio driver always does.
    pub asks_data: bool,
}

impl Config {
    /// Default settings.
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

    pub(super) fn body_policy(&self) -> Policy {
        Policy::new(&self.limits, self.bare_newlines, self.nul_octets, self.long_lines)
    }
}
