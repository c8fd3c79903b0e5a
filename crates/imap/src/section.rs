//! Sections of BODY[…]: their octets in a message (RFC 3501 section 6.4.5).

use std::ops::Range;

use posthaste_message::mime::{Encoding, Header, Kind};

use crate::command::{BodySection, BodySectionText, FieldNames, Partial};
use crate::part_tree::{PartEncoding, PartTree};

/// Octets of an answer: a range of the message, which need not be in memory, or octets made from its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Octets {
    Range(Range<u64>),
    Made(Vec<u8>),
}

impl Octets {
    pub fn len(&self) -> u64 {
        match self {
            Self::Range(range) => range.end - range.start,
            Self::Made(octets) => octets.len() as u64,
        }
    }

    /// The requested part; empty beyond the end (decision 30).
    pub fn cut(self, partial: Option<Partial>) -> Self {
        let Some(Partial { offset, octets }) = partial else { return self };
        let start = u64::from(offset).min(self.len());
        let end = (start + u64::from(octets)).min(self.len());
        match self {
            Self::Range(range) => Self::Range(range.start + start..range.start + end),
            Self::Made(mut made) => {
                made.truncate(end as usize);
                made.drain(..start as usize);
                Self::Made(made)
            }
        }
    }
}

/// The part of a message that must be read to find a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// The length of the message.
    Length,
    /// The header section of the message.
    Header,
    /// All parts of the message.
    Parts,
}

impl BodySection {
    pub(crate) fn depth(&self) -> Depth {
        match self {
            Self { part, .. } if !part.is_empty() => Depth::Parts,
            Self { text: BodySectionText::All, .. } => Depth::Length,
            _ => Depth::Header,
        }
    }

    /// Like [`depth`](Self::depth), when the positions of parts are known. Selected header fields must still be read.
    pub(crate) fn depth_with_parts(&self) -> Depth {
        match &self.text {
            _ if self.part.is_empty() => self.depth(),
            BodySectionText::Fields(_) | BodySectionText::FieldsNot(_) => Depth::Parts,
            _ => Depth::Length,
        }
    }
}

/// A section of the message itself, not of a part. `header` is its header with the empty line.
pub(crate) fn of_message(text: &BodySectionText, header: &[u8], len: u64) -> Octets {
    let body = (header.len() as u64).min(len);
    match text {
        BodySectionText::All => Octets::Range(0..len),
        BodySectionText::Header | BodySectionText::Mime => Octets::Range(0..body),
        BodySectionText::Text => Octets::Range(body..len),
        BodySectionText::Fields(names) => fields(header, names, true),
        BodySectionText::FieldsNot(names) => fields(header, names, false),
    }
}

/// The parts of a message, and its octets read so far.
#[derive(Clone, Copy)]
pub(crate) struct KnownParts<'p> {
    pub tree: &'p PartTree,
    /// The message or its first octets: parts cut off there extend to the end. `None`: the tree has all parts.
    pub read: Option<&'p [u8]>,
    /// Length of the message in octets.
    pub len: u64,
}

impl KnownParts<'_> {
    fn range(&self, range: &Range<u32>) -> Range<u64> {
        let is_last = self.read.is_some_and(|read| range.end as usize >= read.len());
        let end = if is_last { self.len } else { range.end.into() };
        u64::from(range.start).min(end)..end
    }

    /// A section of a part; `None` if the part does not exist.
    pub fn section(&self, section: &BodySection) -> Option<Octets> {
        let octets = |range: &Range<u32>| Some(Octets::Range(self.range(range)));
        let part = self.tree.find(&section.part)?;
        let enclosed = || self.tree.enclosed(&section.part);
        let header = || self.read?.get(enclosed()?.header.start as usize..enclosed()?.header.end as usize);
        match &section.text {
            BodySectionText::All => octets(&part.body),
            BodySectionText::Mime => octets(&part.header),
            BodySectionText::Header => octets(&enclosed()?.header),
            BodySectionText::Text => octets(&enclosed()?.body),
            BodySectionText::Fields(names) => Some(fields(header()?, names, true)),
            BodySectionText::FieldsNot(names) => Some(fields(header()?, names, false)),
        }
    }

    /// The body of a part without its transfer encoding. A multipart has none.
    pub fn binary(&self, numbers: &[u32]) -> Option<PartOctets> {
        let part = self.tree.find(numbers)?;
        let range = self.range(&part.body);
        let encoding = if part.kind == Kind::Leaf { part.encoding } else { PartEncoding::Plain };
        Some(match encoding {
            PartEncoding::Plain => PartOctets::Plain(range),
            PartEncoding::Base64 => PartOctets::Encoded(range, Encoding::Base64),
            PartEncoding::QuotedPrintable => PartOctets::Encoded(range, Encoding::QuotedPrintable),
            PartEncoding::Unknown => PartOctets::Unknown,
        })
    }
}

/// Octets of BINARY (RFC 3516 section 4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartOctets {
    /// Octets of the message, not encoded.
    Plain(Range<u64>),
    /// Octets of the message to decode.
    Encoded(Range<u64>, Encoding),
    /// The encoding cannot be undone.
    Unknown,
}

/// The named fields, or all except these, unchanged, followed by the empty line.
fn fields(header: &[u8], names: &FieldNames, wanted: bool) -> Octets {
    let mut made = Vec::new();
    for field in Header::new(header).fields() {
        if names.contains(field.name) == wanted {
            made.extend_from_slice(&header[field.start..field.end]);
            // Cut off within the header.
            if !made.ends_with(b"\n") {
                made.extend_from_slice(b"\r\n");
            }
        }
    }
    made.extend_from_slice(b"\r\n");
    Octets::Made(made)
}

#[cfg(test)]
mod tests {
    use posthaste_message::mime::Message;

    use super::*;
    use crate::command::{FetchItem, ImapCommand, parse};

    const MAIL: &str = "Subject: out\r\nTo: a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\npreamble\r\n\
        --b\r\n\r\none\r\n\
        --b\r\nContent-Type: message/rfc822\r\n\r\nSubject: in\r\nFrom: x\r\n\r\ninner\r\n\
        --b\r\nContent-Type: multipart/alternative; boundary=c\r\n\r\n--c\r\nX: 1\r\n\r\nalt\r\n--c--\r\n\
        --b--\r\n";

    fn section(text: &str) -> BodySection {
        let command = parse(format!("a FETCH 1 BODY[{text}]").as_bytes()).unwrap().command.unwrap();
        let ImapCommand::Fetch { items, .. } = command else { panic!("{command:?}") };
        let Some(FetchItem::Section { section, .. }) = items.into_iter().next() else { panic!("{text}") };
        section
    }

    fn find_in(mail: &str, text: &str) -> Option<String> {
        let section = section(text);
        let message = Message::parse(mail.as_bytes());
        let octets = match section.depth() {
            Depth::Parts => {
                let tree = PartTree::of(message.root());
                let parts = KnownParts { tree: &tree, read: Some(mail.as_bytes()), len: mail.len() as u64 };
                let kept = KnownParts { read: None, ..parts };
                if section.depth_with_parts() == Depth::Length {
                    assert_eq!(kept.section(&section), parts.section(&section), "{text}");
                }
                parts.section(&section)?
            }
            _ => of_message(&section.text, message.root().header().as_bytes(), mail.len() as u64),
        };
        Some(match octets {
            Octets::Range(range) => mail[range.start as usize..range.end as usize].to_owned(),
            Octets::Made(made) => String::from_utf8(made).unwrap(),
        })
    }

    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(find_in(MAIL, text).as_deref(), expected, "{text}");
    }

    #[test]
    fn sections_are_found_by_their_numbers() {
        check("", Some(MAIL));
        check("1", Some("one"));
        check("1.MIME", Some("\r\n"));
        check("2", Some("Subject: in\r\nFrom: x\r\n\r\ninner"));
        check("2.MIME", Some("Content-Type: message/rfc822\r\n\r\n"));
        check("2.HEADER", Some("Subject: in\r\nFrom: x\r\n\r\n"));
        check("2.HEADER.FIELDS (FROM)", Some("From: x\r\n\r\n"));
        check("2.TEXT", Some("inner"));
        check("2.1", Some("inner"));
        check("3.1", Some("alt"));
        check("3.1.MIME", Some("X: 1\r\n\r\n"));
        check("HEADER.FIELDS (subject to to)", Some("Subject: out\r\nTo: a\r\n\r\n"));
        check("HEADER.FIELDS.NOT (Content-Type)", Some("Subject: out\r\nTo: a\r\n\r\n"));
        check("HEADER.FIELDS (x)", Some("\r\n"));
        for none in ["4", "1.1", "2.2", "3.2", "3.1.1", "1.HEADER", "1.TEXT", "3.TEXT", "1.1.1.1.1.1"] {
            check(none, None);
        }
    }

    #[test]
    fn a_message_without_parts_has_one() {
        let mail = "Subject: x\r\n\r\ntext\r\n";
        assert_eq!(find_in(mail, "1").as_deref(), Some("text\r\n"));
        assert_eq!(find_in(mail, "TEXT").as_deref(), Some("text\r\n"));
        assert_eq!(find_in(mail, "HEADER").as_deref(), Some("Subject: x\r\n\r\n"));
        assert_eq!(find_in(mail, "1.MIME").as_deref(), Some("Subject: x\r\n\r\n"));
        assert_eq!(find_in(mail, "1.1"), None);
        assert_eq!(find_in(mail, "2"), None);
    }

    #[test]
    fn partial_ranges_end_with_the_section() {
        let cut = |offset, octets| match (Octets::Range(10..20)).cut(Some(Partial { offset, octets })) {
            Octets::Range(range) => range,
            Octets::Made(_) => panic!(),
        };
        assert_eq!(cut(0, 5), 10..15);
        assert_eq!(cut(5, 100), 15..20);
        assert_eq!(cut(10, 1), 20..20);
        assert_eq!(cut(u32::MAX, u32::MAX), 20..20);
        assert_eq!(
            Octets::Made(b"abcdef".to_vec()).cut(Some(Partial { offset: 2, octets: 3 })),
            Octets::Made(b"cde".to_vec())
        );
        assert_eq!(Octets::Made(b"ab".to_vec()).cut(Some(Partial { offset: 9, octets: 3 })), Octets::Made(Vec::new()));
    }

    #[test]
    fn parts_of_a_long_message_go_on_to_its_end() {
        let known = MAIL.find("alt\r\n").unwrap() + 1;
        let message = Message::parse(&MAIL.as_bytes()[..known]);
        let tree = PartTree::of(message.root());
        let parts = KnownParts { tree: &tree, read: Some(&MAIL.as_bytes()[..known]), len: 5000 };
        assert_eq!(parts.section(&section("3.1")), Some(Octets::Range(known as u64 - 1..5000)));
    }
}
