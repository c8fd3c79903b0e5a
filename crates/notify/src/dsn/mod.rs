//! Delivery status notifications (RFC 3461, 3464): messages that tell a sender the outcome of a message.
//!
//! A [`Notification`] holds the content and builds the [`DsnMessage`] message. [`DsnAction::is_told`] decides if there is a
//! notification at all. A server's reply, an address, or the returned message cannot add a field or a part.
//!
//! ```
//! use posthaste_notify::dsn::{DsnAction, Notification, Recipient, Returned};
//! use posthaste_message::DateTime;
//!
//! let written = Notification {
//!     reporting_host: "mx.example.net",
//!     to: "ann@example.net",
//!     is_double_bounce: false,
//!     envid: "",
//!     received: DateTime::from_unix(1_793_000_000),
//!     now: DateTime::from_unix(1_793_000_060),
//!     id: 0x1f3a,
//!     recipients: &[Recipient {
//!         address: "bob@example.org",
//!         orcpt: "",
//!         action: DsnAction::Failed,
//!         status: (5, 1, 1),
//!         reply: "550 5.1.1 no such user",
//!         host: "mx.example.org",
//!         last_attempt: DateTime::from_unix(1_793_000_059),
//!     }],
//!     returned: Returned::Header(b"Subject: lunch\r\n\r\n"),
//!     wording: &Default::default(),
//! }
//! .write();
//! let text = String::from_utf8(written.message.concat()).unwrap();
//! assert!(text.contains("To: <ann@example.net>\r\nSubject: Your message could not be delivered\r\n"));
//! assert!(text.contains("Final-Recipient: rfc822; bob@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n"));
//! ```
#[cfg(test)]
mod tests;
mod text;
#[cfg(test)]
mod text_tests;
mod wording;

use std::fmt::Write;

use bytes::Bytes;
use posthaste_intake::notify;
use posthaste_message::DateTime;
use posthaste_smtp::command::decode_xtext;

use text::{folded, header_field, one_line, quoted_printable};
use wording::{RECIPIENTS, filled};
pub use wording::{Template, TemplateError, Wording, WordingError};

/// Outcome for a recipient (RFC 3464 section 2.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DsnAction {
    /// It will not be delivered.
    Failed,
    /// Not delivered yet; retried until then.
    Delayed {
        /// Time at which it is given up.
        until: DateTime,
    },
    /// Passed to a host that reports no success.
    Relayed,
    /// Delivered.
    Delivered,
}

impl DsnAction {
    /// True if the sender is to be notified. `asked` are the bits of NOTIFY ([`notify`], RFC 3461 section 4.1); 0,
    /// without NOTIFY, asks for failures alone. The empty sender is never notified (RFC 5321 section 6.1).
    pub fn is_told(self, sender: &str, asked: u8) -> bool {
        let asked = if asked == 0 { notify::FAILURE } else { asked };
        let wanted = match self {
            DsnAction::Failed => notify::FAILURE,
            DsnAction::Delayed { .. } => notify::DELAY,
            DsnAction::Relayed | DsnAction::Delivered => notify::SUCCESS,
        };
        !sender.is_empty() && asked & notify::NEVER == 0 && asked & wanted != 0
    }

    fn name(self) -> &'static str {
        match self {
            DsnAction::Failed => "failed",
            DsnAction::Delayed { .. } => "delayed",
            DsnAction::Relayed => "relayed",
            DsnAction::Delivered => "delivered",
        }
    }
}

/// A recipient, and its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient<'a> {
    /// Its address, without brackets.
    pub address: &'a str,
    /// ORCPT as received, `type;xtext`; empty for none.
    pub orcpt: &'a str,
    /// Outcome for the recipient.
    pub action: DsnAction,
    /// The enhanced status code (RFC 3463).
    pub status: (u8, u16, u16),
    /// The last reply; empty if there was none.
    pub reply: &'a str,
    /// The host that gave it; empty for none.
    pub host: &'a str,
    /// Time of the last attempt.
    pub last_attempt: DateTime,
}

/// Part of the message that is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned<'a> {
    /// All of it, in pieces.
    Message(&'a [Bytes]),
    /// Its header, with or without the empty line. [`header_of`] finds it.
    Header(&'a [u8]),
}

/// Content of a notification. `id` separates the MIME parts. It must be random, so that no message can contain it.
#[derive(Debug, Clone, Copy)]
pub struct Notification<'a> {
    /// This server's name.
    pub reporting_host: &'a str,
    /// Sender of the message, without brackets: the notification goes there.
    pub to: &'a str,
    /// True if it goes to a substitute, as the message's sender cannot be notified. [`is_double_bounce`] recognises it.
    pub is_double_bounce: bool,
    /// ENVID as received (xtext); empty for none.
    pub envid: &'a str,
    /// Time of the message's reception.
    pub received: DateTime,
    /// The date of the notification.
    pub now: DateTime,
    /// Unique and random.
    pub id: u128,
    /// At least one.
    pub recipients: &'a [Recipient<'a>],
    /// Part of the message that is returned.
    pub returned: Returned<'a>,
    /// Templates for the human-readable part.
    pub wording: &'a Wording,
}

/// A notification, to be sent from the empty sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DsnMessage {
    /// Pieces with CRLF line ends; the returned part is not copied.
    pub message: Vec<Bytes>,
    /// True if it needs BODY=8BITMIME.
    pub is_8bit: bool,
    /// True if it needs SMTPUTF8: an address in it is not ASCII.
    pub smtputf8: bool,
}

impl Notification<'_> {
    /// Builds the message.
    ///
    /// # Panics
    /// Without recipients.
    pub fn write(&self) -> DsnMessage {
        let worst = self.recipients.iter().map(|recipient| recipient.action).min().expect("a recipient");
        let template = match worst {
            DsnAction::Failed if self.is_double_bounce => &self.wording.double_bounced,
            DsnAction::Failed => &self.wording.failed,
            DsnAction::Delayed { .. } => &self.wording.delayed,
            DsnAction::Relayed | DsnAction::Delivered => &self.wording.delivered,
        };
        let smtputf8 = !self.to.is_ascii() || self.recipients.iter().any(|recipient| !recipient.address.is_ascii());
        let boundary = format!("=_{:032x}", self.id);
        let host = one_line(self.reporting_host, false);
        // Of others' words at most one line.
        let value = |name: &str| match name {
            "host" => Some(host.clone()),
            "to" => Some(one_line(self.to, true)),
            "received" => Some(self.received.to_string()),
            _ => None,
        };
        let mut head = String::new();
        let mut line = |text: &str| {
            head.push_str(text);
            head.push_str("\r\n");
        };
        line(&format!("From: Mail Delivery System <MAILER-DAEMON@{host}>"));
        line(&format!("To: <{}>", one_line(self.to, true)));
        line(header_field("Subject", &one_line(&filled(&template.subject, value), true)).trim_end());
        line(&format!("Date: {}", self.now));
        line(&format!("Message-ID: <{:032x}@{host}>", self.id));
        line("Auto-Submitted: auto-replied");
        if self.is_double_bounce {
            line(&format!("{DOUBLE_BOUNCE}: yes"));
        }
        line("MIME-Version: 1.0");
        line("Content-Type: multipart/report; report-type=delivery-status;");
        line(&format!("\tboundary=\"{boundary}\""));
        let [text, status] = [self.text(template, value), self.status(&host, smtputf8)];
        let returned = match self.returned {
            Returned::Message(pieces) => pieces.to_vec(),
            Returned::Header(header) => vec![Bytes::copy_from_slice(header)],
        };
        let is_returned_8bit = returned.iter().any(|piece| !piece.is_ascii());
        let is_8bit = is_returned_8bit || !status.is_ascii() || !head.is_ascii();
        if is_8bit {
            head.push_str("Content-Transfer-Encoding: 8bit\r\n");
        }
        let mut part = |content_type: &str, encoding: Option<&str>, content: &str| {
            write!(head, "\r\n--{boundary}\r\nContent-Type: {content_type}\r\n").expect("written to memory");
            if let Some(encoding) = encoding {
                write!(head, "Content-Transfer-Encoding: {encoding}\r\n").expect("written to memory");
            }
            head.push_str("\r\n");
            head.push_str(content);
        };
        // So that letters of a template need nothing of the hosts that the notification passes.
        if text.is_ascii() {
            part("text/plain; charset=utf-8", None, &text)
        } else {
            part("text/plain; charset=utf-8", Some("quoted-printable"), &quoted_printable(&text))
        }
        let [global_status, global_header, global_message] = if smtputf8 {
            ["message/global-delivery-status", "message/global-headers", "message/global"]
        } else {
            ["message/delivery-status", "text/rfc822-headers", "message/rfc822"]
        };
        let encoding = |is_8bit: bool| is_8bit.then_some("8bit");
        part(global_status, encoding(!status.is_ascii()), &status);
        let returned_type = match self.returned {
            Returned::Message(_) => global_message,
            Returned::Header(_) => global_header,
        };
        part(returned_type, encoding(is_returned_8bit), "");
        let mut message = vec![Bytes::from(head)];
        message.extend(returned);
        message.push(Bytes::from(format!("\r\n--{boundary}--\r\n")));
        DsnMessage { message, is_8bit, smtputf8 }
    }

    /// The human-readable part.
    fn text(&self, template: &Template, value: impl Fn(&str) -> Option<String>) -> String {
        let mut out = String::new();
        for line in template.text.lines() {
            match line {
                RECIPIENTS => out.push_str(&self.list()),
                line => out.push_str(&folded(&filled(line, &value), "")),
            }
        }
        out
    }

    /// The recipients, separated by empty lines.
    fn list(&self) -> String {
        let mut out = String::new();
        for (at, recipient) in self.recipients.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\r\n" };
            write!(out, "{gap}<{}>: {}", one_line(recipient.address, true), recipient.action.name()).expect("memory");
            if let DsnAction::Delayed { until } = recipient.action {
                write!(out, ", tried until {until}").expect("written to memory");
            }
            out.push_str("\r\n");
            if !recipient.reply.is_empty() {
                let said = one_line(recipient.reply, true);
                let who = if recipient.host.is_empty() { "reason".to_owned() } else { one_line(recipient.host, true) };
                out.push_str(&folded(&format!("    {who}: {said}"), "    "));
            }
        }
        out
    }

    /// The machine-readable part (RFC 3464 section 2).
    fn status(&self, host: &str, is_global: bool) -> String {
        let kind = if is_global { "utf-8" } else { "rfc822" };
        let mut out = String::new();
        let mut field = |name: &str, value: &str| out.push_str(&folded(&format!("{name}: {value}"), " "));
        let decoded = |xtext: &str| {
            let text = decode_xtext(xtext).and_then(|bytes| String::from_utf8(bytes).ok());
            one_line(&text.unwrap_or_else(|| xtext.to_owned()), is_global)
        };
        if !self.envid.is_empty() {
            field("Original-Envelope-Id", &decoded(self.envid));
        }
        field("Reporting-MTA", &format!("dns; {host}"));
        field("Arrival-Date", &self.received.to_string());
        for recipient in self.recipients {
            out.push_str("\r\n");
            let mut field = |name: &str, value: &str| out.push_str(&folded(&format!("{name}: {value}"), " "));
            if let Some((original, address)) = recipient.orcpt.split_once(';') {
                field("Original-Recipient", &format!("{}; {}", one_line(original, false), decoded(address)));
            }
            field("Final-Recipient", &format!("{kind}; {}", one_line(recipient.address, is_global)));
            field("Action", recipient.action.name());
            let (class, subject, detail) = recipient.status;
            field("Status", &format!("{class}.{subject}.{detail}"));
            if !recipient.host.is_empty() {
                field("Remote-MTA", &format!("dns; {}", one_line(recipient.host, is_global)));
            }
            if !recipient.reply.is_empty() {
                field("Diagnostic-Code", &format!("smtp; {}", one_line(recipient.reply, is_global)));
            }
            field("Last-Attempt-Date", &recipient.last_attempt.to_string());
            if let DsnAction::Delayed { until } = recipient.action {
                field("Will-Retry-Until", &until.to_string());
            }
        }
        out
    }
}

/// True if a message, in pieces from its beginning, is a notification of a double bounce.
pub fn is_double_bounce(message: &[Bytes]) -> bool {
    let header = header_of(message, OWN_HEADER_BYTES_MAX);
    let prefix = format!("{DOUBLE_BOUNCE}:");
    let is_it = |line: &[u8]| line.get(..prefix.len()).is_some_and(|name| name.eq_ignore_ascii_case(prefix.as_bytes()));
    header.split(|byte| *byte == b'\n').any(is_it)
}

/// The header of a message in pieces, with the empty line if it has one; at most `bytes_max` of it, in whole lines.
pub fn header_of(message: &[Bytes], bytes_max: usize) -> Vec<u8> {
    let mut header = Vec::new();
    for piece in message {
        let searched_from = header.len().saturating_sub(3);
        header.extend_from_slice(&piece[..piece.len().min(bytes_max + 1 - header.len())]);
        let end =
            header[searched_from..].windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| searched_from + at + 4);
        let end = if header.starts_with(b"\r\n") { Some(2) } else { end };
        if let Some(end) = end.filter(|end| *end <= bytes_max) {
            header.truncate(end);
            return header;
        }
        if header.len() > bytes_max {
            let lines = header[..bytes_max].windows(2).rposition(|bytes| bytes == b"\r\n").map_or(0, |at| at + 2);
            header.truncate(lines);
            return header;
        }
    }
    header
}

/// Field that marks a notification of a double bounce.
const DOUBLE_BOUNCE: &str = "X-Posthaste-Double-Bounce";
/// Length of header searched for [`DOUBLE_BOUNCE`]. Other servers add fields in front of it.
const OWN_HEADER_BYTES_MAX: usize = 64 << 10;
