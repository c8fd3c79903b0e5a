//! The searched text of one message, or of its header alone.

use posthaste_message::mime::{Charset, Field, Message, ScanProblem};

use crate::extract::{LIMITS, extract, header_cut_short, with_line_feeds};
use crate::header::{Head, field_value, is_trace, other_fields};
use crate::needle::Needle;

/// The part of a message to search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchedField {
    /// All header fields of that name.
    Header(String),
    /// The text of the body.
    Body,
    /// The header without trace fields, the text of the body, and names of attachments.
    Anywhere,
}

/// The text of a message.
///
/// `From`, `To`, `Cc`, `Bcc` and `Subject` are searched in their indexed form: decoded, and of `From` and `Subject`
/// only the first. Values of other fields are searched one by one.
#[derive(Debug, Default)]
pub struct MailText {
    from: String,
    to: String,
    cc: String,
    bcc: String,
    subject: String,
    /// Names and values of the other fields, including trace fields.
    others: Vec<(Vec<u8>, String)>,
    /// Names of the five fields above that are present.
    named: Vec<Vec<u8>>,
    /// Text, and names of attachments.
    body: Option<(String, Vec<String>)>,
    is_certain: bool,
}

impl MailText {
    /// Reads the fields of a header section whose names are searched. Decoding all fields would take longer than the
    /// rest of a search.
    pub fn of_header(octets: &[u8], is_searched: &dyn Fn(&[u8]) -> bool) -> Self {
        // Other octets are decoded with the charset that a part has.
        let is_certain = std::str::from_utf8(octets).is_ok();
        Self::read(octets, None, is_certain, is_searched)
    }

    /// Reads a whole message.
    pub fn of_message(octets: &[u8]) -> Self {
        let extracted = extract(octets);
        Self::read(octets, Some((extracted.body, extracted.files)), true, &|_| true)
    }

    fn read(
        octets: &[u8],
        body: Option<(String, Vec<String>)>,
        is_certain: bool,
        is_searched: &dyn Fn(&[u8]) -> bool,
    ) -> Self {
        let octets = header_cut_short(octets).unwrap_or(octets);
        let octets = &*with_line_feeds(octets);
        let message = Message::parse_within(octets, &LIMITS);
        let is_empty = message.problem() == Some(ScanProblem::NoHeader);
        let head = if is_empty { Head::default() } else { Head::read_some(&message, is_searched) };
        let charset = message.header_charset();
        let fields = || message.root().header().fields().filter(|_| !is_empty);
        let value = |field: Field<'_>, charset: Option<Charset>| (field.name.to_vec(), field_value(field, charset).0);
        let trace = fields().filter(|field| is_trace(field.name));
        let others = other_fields(fields()).chain(trace).filter(|field| is_searched(field.name));
        let others = others.map(|field| value(field, charset)).collect();
        let named = fields()
            .filter(|field| is_named(field.name) && is_searched(field.name))
            .map(|field| field.name.to_vec())
            .collect();
        let from = head.from.text;
        let to = head.to.text;
        let cc = head.cc.text;
        let bcc = head.bcc.text;
        Self { from, to, cc, bcc, subject: head.subject, others, named, body, is_certain }
    }

    /// True if the text occurs; `None` if that depends on parts that were not read.
    pub fn has(&self, field: &SearchedField, needle: &Needle) -> Option<bool> {
        match field {
            SearchedField::Header(name) => self.is_certain.then(|| self.header_has(name, needle)),
            SearchedField::Body => self.body.as_ref().map(|(body, _)| needle.is_in(body)),
            SearchedField::Anywhere => {
                let (body, files) = self.body.as_ref()?;
                let fields = [body, &self.subject, &self.from, &self.to, &self.cc, &self.bcc];
                let others = self.others.iter().filter(|(name, _)| !is_trace(name)).map(|(_, value)| value);
                Some(fields.into_iter().chain(files).chain(others).any(|text| needle.is_in(text)))
            }
        }
    }

    /// The searched text of `From`, `To`, `Cc`, `Bcc` or `Subject`, or `Some(None)` if there is no such field. `None`: another field, one that was not read, or a text that depends on
    /// parts that were not read.
    pub fn header_text(&self, name: &str) -> Option<Option<&str>> {
        (self.is_certain && is_named(name.as_bytes())).then(|| self.named_text(name))
    }

    /// The text of one of the named fields, if it is present.
    fn named_text(&self, name: &str) -> Option<&str> {
        let is = |known: &[u8]| known.eq_ignore_ascii_case(name.as_bytes());
        let text = match name.len() {
            2 if is(b"To") => &self.to,
            2 => &self.cc,
            3 => &self.bcc,
            4 => &self.from,
            _ => &self.subject,
        };
        self.named.iter().any(|name| is(name)).then_some(text)
    }

    fn header_has(&self, name: &str, needle: &Needle) -> bool {
        if is_named(name.as_bytes()) {
            return needle.is_in_field(self.named_text(name));
        }
        let is = |known: &[u8]| known.eq_ignore_ascii_case(name.as_bytes());
        self.others.iter().any(|(known, value)| is(known) && needle.is_in(value))
    }
}

/// True for fields that an index keeps separately.
fn is_named(name: &[u8]) -> bool {
    [&b"From"[..], b"To", b"Cc", b"Bcc", b"Subject"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIL: &[u8] = b"Received: from relay.example.net\r\nFrom: \"Doe, Ann\" <ann@example.org>\r\nSubject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\r\n\
        X-TUID: abc123\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/html\r\n\r\n<b>rye</b> bread\r\n\
        --b\r\nContent-Type: image/png; name=cat.png\r\n\r\nx\r\n--b--\r\n";

    #[test]
    fn each_field_has_its_own_text() {
        let (message, header) = (MailText::of_message(MAIL), MailText::of_header(MAIL.split_at(230).0, &|_| true));
        let field = |name: &str| SearchedField::Header(name.to_owned());
        let (body, anywhere) = (SearchedField::Body, SearchedField::Anywhere);
        for (of, needle, expected) in [
            (field("subject"), "GRUSSE", Some(true)),
            (field("from"), "ann <ann@", Some(true)),
            (field("from"), "bob", Some(false)),
            (field("cc"), "", Some(false)),
            (field("from"), "", Some(true)),
            (field("x-tuid"), "abc12", Some(true)),
            (field("received"), "relay", Some(true)),
            (field("x-none"), "", Some(false)),
        ] {
            assert_eq!(message.has(&of, &Needle::new(needle)), expected, "{of:?} {needle}");
            assert_eq!(header.has(&of, &Needle::new(needle)), expected, "{of:?} {needle}");
            let SearchedField::Header(name) = &of else { unreachable!() };
            let alone = MailText::of_header(MAIL.split_at(230).0, &|known| known.eq_ignore_ascii_case(name.as_bytes()));
            assert_eq!(alone.has(&of, &Needle::new(needle)), expected, "{of:?} {needle}");
        }
        for (of, needle, expected) in [
            (&body, "rye bread", true),
            (&body, "abc123", false),
            (&anywhere, "abc123", true),
            (&anywhere, "cat.png", true),
            (&anywhere, "relay", false),
            (&anywhere, "doe ann", true),
        ] {
            assert_eq!(message.has(of, &Needle::new(needle)), Some(expected), "{of:?} {needle}");
            assert_eq!(header.has(of, &Needle::new(needle)), None);
        }
    }

    #[test]
    fn a_charset_that_only_the_body_names_leaves_the_header_open() {
        let mail = b"Subject: Gr\xfc\xdfe\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\nx\r\n--b--\r\n";
        let (field, needle) = (SearchedField::Header("Subject".to_owned()), Needle::new("gr\u{fc}sse"));
        assert_eq!(MailText::of_message(mail).has(&field, &needle), Some(true));
        assert_eq!(MailText::of_header(&mail[..60], &|_| true).has(&field, &needle), None);
    }
}
