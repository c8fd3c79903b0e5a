//! The route of a recipient's mail.

use std::ops::Deref;
use std::sync::Arc;

use posthaste_smtp::Reply;

use crate::transport::{Transport, TransportKind};

/// The route of a recipient's mail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Local mailboxes, or transports in place of some of them.
    Local(Mailboxes),
    /// Accepted and discarded.
    Discard,
    /// Refused.
    Refused(DirectoryRefusal),
}

/// One mailbox of a recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// Place of its mail.
    pub place: Place,
    /// The address for Delivered-To and for an LMTP server.
    pub address: Arc<str>,
}

/// Place of a mailbox's mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Maildir: `domain/user/` and the directory's mailbox name. Each part is safe as a file name.
    Maildir(Arc<str>),
    /// A program, a file or a configured server.
    Transport(Arc<Transport>),
    /// The host responsible for the address.
    Remote,
}

impl Mailbox {
    /// The path of the Maildir, the transport as configured, or the address at another host.
    pub fn text(&self) -> &str {
        match &self.place {
            Place::Maildir(path) => path,
            Place::Transport(transport) => transport.text(),
            Place::Remote => &self.address,
        }
    }

    /// Key that must be unique among the mailboxes of one message. A Maildir, a file or a remote address gets it
    /// once; a program or a server once for each address.
    pub fn identity(&self) -> (&str, Option<&str>) {
        let is_by_address = match &self.place {
            Place::Maildir(_) | Place::Remote => false,
            Place::Transport(transport) => !matches!(transport.kind(), TransportKind::File(_)),
        };
        (self.text(), is_by_address.then_some(&*self.address))
    }
}

/// The mailboxes of a recipient, at least one and without duplicates, as a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailboxes(Inner);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Inner {
    One(Mailbox),
    Several(Arc<[Mailbox]>),
}

impl From<Mailbox> for Mailboxes {
    fn from(mailbox: Mailbox) -> Self {
        Self(Inner::One(mailbox))
    }
}

impl Mailboxes {
    /// `None` if empty. They must differ.
    pub fn several(mailboxes: impl Into<Arc<[Mailbox]>>) -> Option<Self> {
        let mailboxes = mailboxes.into();
        (!mailboxes.is_empty()).then_some(Self(Inner::Several(mailboxes)))
    }
}

impl Deref for Mailboxes {
    type Target = [Mailbox];

    fn deref(&self) -> &[Mailbox] {
        match &self.0 {
            Inner::One(mailbox) => std::slice::from_ref(mailbox),
            Inner::Several(mailboxes) => mailboxes,
        }
    }
}

/// Why a recipient is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryRefusal {
    /// The domain is not ours: 550 5.7.1.
    Relay,
    /// The domain is ours and has no such user: 550 5.1.1.
    UnknownUser,
    /// The local part is invalid as a directory name: 550 5.1.3.
    BadName,
    /// A pattern leads to too many mailboxes: 550 5.5.3.
    TooManyMailboxes,
    /// Refused by the configuration with this reply.
    Configured(Box<Reply>),
}

impl DirectoryRefusal {
    /// The reply to the client.
    pub fn reply(&self) -> Reply {
        match self {
            Self::Relay => Reply::new(550, "5.7.1", "We do not relay"),
            Self::UnknownUser => Reply::new(550, "5.1.1", "No such user here"),
            Self::BadName => Reply::new(550, "5.1.3", "Not a mailbox name that can be used here"),
            Self::TooManyMailboxes => Reply::new(550, "5.5.3", "This address leads to too many mailboxes"),
            Self::Configured(reply) => (**reply).clone(),
        }
    }

    /// Reads a reply of the configuration: a text, or a code, an enhanced code and a text.
    ///
    /// # Errors
    /// Describes the mistake.
    pub(crate) fn configured(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > REPLY_TEXT_BYTES_MAX || !text.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return Err(format!("a reply is one line of ASCII, of 1 to {REPLY_TEXT_BYTES_MAX} characters"));
        }
        let numbers =
            text.len() > 3 && text.as_bytes()[..3].iter().all(u8::is_ascii_digit) && text.as_bytes()[3] == b' ';
        let Some((code, rest)) = text.split_once(' ').filter(|_| numbers) else {
            return Ok(Self::Configured(Box::new(Reply::new(550, "5.1.1", text.to_owned()))));
        };
        let code: u16 = code.parse().expect("three digits");
        // RFC 5321 section 4.3.2; 421 ends the session, which other recipients need.
        if ![450, 451, 452, 550, 551, 552, 553, 554].contains(&code) {
            return Err(format!("{code} does not refuse a recipient; write 450 to 452, or 550 to 554"));
        }
        let (enhanced, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let class = u16::from(posthaste_smtp::EnhancedCode::parse(enhanced).map_or(0, |code| code.class));
        if class != code / 100 || rest.trim().is_empty() {
            let class = code / 100;
            return Err(format!(
                "after {code} write an enhanced code {class}.x.x and a text: \"{code} {class}.1.1 No longer here\""
            ));
        }
        Ok(Self::Configured(Box::new(Reply::new(code, enhanced, rest.to_owned()))))
    }
}

/// Maximum length of one reply line.
const REPLY_TEXT_BYTES_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_text_or_a_whole_reply() {
        for (text, expected) in [
            ("Bob has left", "550 5.1.1 Bob has left"),
            ("3 of us have left", "550 5.1.1 3 of us have left"),
            ("554 5.7.1 Not for you", "554 5.7.1 Not for you"),
            ("450 4.2.1 We are moving", "450 4.2.1 We are moving"),
        ] {
            assert_eq!(DirectoryRefusal::configured(text).unwrap().reply().to_string(), expected);
        }
        for (text, expected) in [
            ("", "a reply is one line of ASCII"),
            ("a\r\n250 ok", "a reply is one line of ASCII"),
            ("f\u{fc}r", "a reply is one line of ASCII"),
            ("250 2.1.5 ok", "250 does not refuse"),
            ("421 4.3.2 bye", "421 does not refuse"),
            ("550 gone", "after 550 write an enhanced code 5.x.x and a text: \"550 5.1.1 No longer here\""),
            ("550 4.1.1 gone", "after 550 write"),
            ("450 4.2.1", "after 450 write an enhanced code 4.x.x"),
        ] {
            let said = DirectoryRefusal::configured(text).unwrap_err();
            assert!(said.starts_with(expected), "{text}: {said}");
        }
        assert!(DirectoryRefusal::configured(&"a".repeat(401)).is_err());
    }
}
