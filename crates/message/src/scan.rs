//! Scans a header section in pieces, for a log line, in fixed memory.

use memchr::memchr;

/// Hops at which a message counts as looping. RFC 5321 section 6.3 asks for a limit of at least 100; common practice
/// and this project use 50. Reply 554 5.4.6.
pub const MAX_HOPS: usize = 50;

/// Facts about a message for a log line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The first Message-ID, at most 250 characters of visible ASCII; others become `?`.
    pub message_id: Option<String>,
    /// Number of servers that passed this message on: its Received fields (RFC 5321 section 6.3).
    pub hops: usize,
    /// Received fields written by the [watched](HeaderScan::watching) host.
    pub own_hops: usize,
    /// True if no octet of the header section is above 127: it needs no SMTPUTF8 (RFC 6532).
    pub is_ascii: bool,
}

/// Scans a header section, however it is cut; looks at each octet once and keeps only a Message-ID.
///
/// ```
/// let mut scan = posthaste_message::HeaderScan::default();
/// scan.push(b"Received: a\r\nMessage-");
/// scan.push(b"ID: <1@x>\r\n\r\nReceived: no field, but text\r\n");
/// let summary = scan.finish();
/// assert_eq!((summary.hops, summary.message_id.as_deref()), (1, Some("<1@x>")));
/// ```
#[derive(Debug, Default)]
pub struct HeaderScan {
    line: Line,
    field: Field,
    hops: usize,
    own_hops: usize,
    /// `by`, a blank and the name of a host, in lower case.
    watched: Vec<u8>,
    message_id: Option<String>,
    has_high_octets: bool,
}

/// Position of the next octet in a line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Line {
    #[default]
    Start,
    /// After a CR that began the line.
    StartCr,
    Within,
    /// After the blank line.
    Over,
}

/// The field of the line, as far as known.
#[derive(Debug, Default, Clone, Copy)]
enum Field {
    /// An unwanted field.
    #[default]
    Other,
    /// The name so far is a prefix of this one.
    Name { name: &'static [u8], matched: usize },
    /// White space after that name: obsolete syntax that must be read (RFC 5322 section 4.5).
    Named { name: &'static [u8] },
    /// In the value of a Received field: octets of the watched text matched so far, white space as one blank.
    Received { matched: usize },
    /// In the value of the first Message-ID, after this much white space.
    MessageId { spaces: usize },
}

const RECEIVED: &[u8] = b"received";
const MESSAGE_ID: &[u8] = b"message-id";
const MESSAGE_ID_MAX: usize = 250;

impl HeaderScan {
    /// Also counts the Received fields that name `host` in their `by` clause.
    pub fn watching(host: &str) -> Self {
        Self { watched: format!(" by {} ", host.to_ascii_lowercase()).into(), ..Self::default() }
    }

    /// Takes the next piece of the message. Ignores the body.
    pub fn push(&mut self, mut piece: &[u8]) {
        while let Some(&octet) = piece.first() {
            match (self.line, octet) {
                (Line::Over, _) => return,
                (Line::Start | Line::StartCr, b'\n') => self.line = Line::Over,
                // Continues the field (RFC 5322 section 2.2.3).
                (Line::Start, b' ' | b'\t') | (Line::StartCr, _) => self.line = Line::Within,
                (Line::Start, b'\r') => {
                    (self.line, self.field) = (Line::StartCr, Field::Other);
                    piece = &piece[1..];
                }
                (Line::Start, _) => (self.line, self.field) = (Line::Within, Field::beginning_with(octet)),
                (Line::Within, _) => {
                    let end = memchr(b'\n', piece).map(|newline| newline + 1);
                    let (line, rest) = piece.split_at(end.unwrap_or(piece.len()));
                    self.has_high_octets |= !line.is_ascii();
                    self.within(line);
                    if end.is_some() {
                        self.line = Line::Start;
                    }
                    piece = rest;
                }
            }
        }
    }

    /// Ends the scan.
    pub fn finish(self) -> Summary {
        let is_ascii = !self.has_high_octets;
        Summary { message_id: self.message_id, hops: self.hops, own_hops: self.own_hops, is_ascii }
    }

    /// Takes octets of one line.
    fn within(&mut self, part: &[u8]) {
        for &octet in part {
            self.field = match self.field {
                Field::Other => return,
                Field::Name { name, matched } => match octet {
                    b':' if matched == name.len() => self.value_of(name),
                    _ if matched == name.len() && octet.is_ascii_whitespace() => Field::Named { name },
                    _ if name.get(matched) == Some(&octet.to_ascii_lowercase()) => {
                        Field::Name { name, matched: matched + 1 }
                    }
                    _ => Field::Other,
                },
                Field::Named { name } => match octet {
                    b':' => self.value_of(name),
                    _ if octet.is_ascii_whitespace() => Field::Named { name },
                    _ => Field::Other,
                },
                Field::Received { matched } => self.received(octet, matched),
                Field::MessageId { spaces } => self.message_id(octet, spaces),
            };
        }
    }

    /// Handles the colon after `name`.
    fn value_of(&mut self, name: &[u8]) -> Field {
        if name == RECEIVED {
            self.hops += 1;
            if !self.watched.is_empty() {
                return Field::Received { matched: 0 };
            }
        } else if self.message_id.is_none() {
            self.message_id = Some(String::new());
            return Field::MessageId { spaces: 0 };
        }
        Field::Other
    }

    /// Takes an octet of a Received field.
    fn received(&mut self, octet: u8, matched: usize) -> Field {
        let octet = if octet.is_ascii_whitespace() { b' ' } else { octet.to_ascii_lowercase() };
        if octet == b' ' && matched > 0 && self.watched[matched - 1] == b' ' {
            return Field::Received { matched };
        }
        let is_behind_blank = matched > 0 && self.watched[matched - 1] == b' ';
        let matched = match octet {
            _ if octet == self.watched[matched] => matched + 1,
            b' ' => 1,
            _ if is_behind_blank && octet == self.watched[1] => 2,
            _ => 0,
        };
        if matched < self.watched.len() {
            return Field::Received { matched };
        }
        self.own_hops += 1;
        Field::Other
    }

    /// Takes an octet of the first Message-ID. White space before it counts only if something follows.
    fn message_id(&mut self, octet: u8, spaces: usize) -> Field {
        let value = self.message_id.get_or_insert_default();
        if octet.is_ascii_whitespace() {
            let spaces = if value.is_empty() { 0 } else { (spaces + 1).min(MESSAGE_ID_MAX) };
            return Field::MessageId { spaces };
        }
        value.extend(std::iter::repeat_n('?', spaces));
        value.push(if octet.is_ascii_graphic() { char::from(octet) } else { '?' });
        value.truncate(MESSAGE_ID_MAX);
        if value.len() < MESSAGE_ID_MAX { Field::MessageId { spaces: 0 } } else { Field::Other }
    }
}

impl Field {
    /// A field whose first octet is `octet`.
    fn beginning_with(octet: u8) -> Self {
        match octet {
            b'r' | b'R' => Self::Name { name: RECEIVED, matched: 0 },
            b'm' | b'M' => Self::Name { name: MESSAGE_ID, matched: 0 },
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &[u8], hops: usize, message_id: Option<&str>) {
        for piece in 1..=message.len() {
            let mut scan = HeaderScan::default();
            message.chunks(piece).for_each(|chunk| scan.push(chunk));
            let found = scan.finish();
            let expected = (hops, 0, message_id);
            assert_eq!(
                (found.hops, found.own_hops, found.message_id.as_deref()),
                expected,
                "{:?} in pieces of {piece}",
                message.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn octets_above_127_count_in_the_header_alone() {
        let check = |message: &[u8], expected: bool| {
            for piece in 1..=message.len() {
                let mut scan = HeaderScan::default();
                message.chunks(piece).for_each(|part| scan.push(part));
                assert_eq!(scan.finish().is_ascii, expected, "{}", message.escape_ascii());
            }
        };
        check("Subject: x\r\n\r\ngrün\r\n".as_bytes(), true);
        check("Subject: grün\r\n\r\nx\r\n".as_bytes(), false);
        check("Subject: x\r\n grün\r\n\r\nx\r\n".as_bytes(), false);
        check("Über: x\r\n\r\nx\r\n".as_bytes(), false);
        check("\r\ngrün".as_bytes(), true);
    }

    #[test]
    fn hops_count_received_fields_of_the_header_alone() {
        check(b"received: a\r\nX-Received: no\r\nReceived : b\r\n c\r\nTo: x\r\n\r\nReceived: body\r\n", 2, None);
        check(b"Received: a\nReceived:\n\nReceived: body\n", 2, None);
        check(b"\r\nReceived: body\r\n", 0, None);
        check(b"Received\r\nReceived: cut off", 1, None);
        check(b" Received: a fold of nothing\r\n\rReceived: CR and no line end\r\n", 0, None);
    }

    #[test]
    fn fields_of_one_host_are_counted() {
        let message = b"Received: from a by MX.example.org\r\n\twith SMTP\r\nReceived: from by by  \r\n mx.example.org with x\r\n\
            Received: by mx.example.organ with x\r\nReceived: from by mx.example with x\r\nX: by mx.example.org x\r\n\r\n\
            Received: by mx.example.org x\r\n";
        for piece in 1..=message.len() {
            let mut scan = HeaderScan::watching("mx.Example.org");
            message.chunks(piece).for_each(|chunk| scan.push(chunk));
            let summary = scan.finish();
            assert_eq!((summary.hops, summary.own_hops), (4, 2), "in pieces of {piece}");
        }
    }

    #[test]
    fn a_message_id_is_one_visible_line() {
        check(
            b"Message-Id: <a\r\n b\x1b[31m\xff@c> \r\n\t\r\nMessage-ID: <second@x>\r\n\r\n",
            0,
            Some("<a???b?[31m?@c>"),
        );
        check(b"Message-ID:\r\nMessage-ID: <second@x>\r\n\r\n", 0, Some(""));
        let long = [b"Message-ID: ", "x".repeat(249).as_bytes(), b" y\r\n\r\n"].concat();
        check(&long, 0, Some(&("x".repeat(249) + "?")));
        let long = [b"Message-ID: ", "x".repeat(249).as_bytes(), b" \r\n\r\n"].concat();
        check(&long, 0, Some(&"x".repeat(249)));
    }

    #[test]
    fn a_header_without_an_end_costs_nothing() {
        let mut scan = HeaderScan::default();
        for _ in 0..10_000 {
            scan.push(&[b'x'; 1000]);
            scan.push(b"\r\nMessage-ID: ");
            scan.push(&[b'x'; 1000]);
        }
        assert!(scan.message_id.is_some_and(|id| id.capacity() <= 2 * MESSAGE_ID_MAX));
    }
}
