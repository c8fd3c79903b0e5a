//! A message and its parts.

use std::borrow::Cow;
use std::ops::Range;

use super::charset::{Charset, decode_body};
use super::field::Header;
use super::params::{main_value, parameter, raw_parameter};
use super::scan::{Kind, Node, ScanLimits, ScanProblem, scan};
use super::transfer::{Encoding, base64};

/// A parsed message. It borrows the octets and knows the start and end of each part; nothing is decoded until asked
/// for.
///
/// Every sequence of octets is a message. Damage costs as little as possible: unclosed parts end with the enclosing
/// ones, and lines that are not fields are skipped.
///
/// ```
/// use posthaste_message::mime::{Kind, Message};
///
/// let mail = b"Subject: =?utf-8?Q?caf=C3=A9?=\nContent-Type: multipart/mixed; boundary=b\n\n\
///              --b\n\nhello\n--b\nContent-Type: image/png; name=cat.png\nContent-Transfer-Encoding: base64\n\niVBORw==\n";
/// let message = Message::parse(mail);
/// let root = message.root();
/// assert_eq!(root.kind(), Kind::Multipart);
/// assert_eq!(root.header().first("subject").unwrap().text(None), "café");
/// let parts: Vec<_> = root.children().collect();
/// assert_eq!(parts[0].text(), "hello");
/// assert_eq!(parts[1].file_name().as_deref(), Some("cat.png"));
/// assert_eq!(&*parts[1].decoded(), b"\x89PNG");
/// assert_eq!(&mail[parts[0].body_range()], b"hello");
/// ```
#[derive(Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node<'a>>,
    problem: Option<ScanProblem>,
}

impl<'a> Message<'a> {
    /// Parses a message with line ends LF or CRLF, within [`ScanLimits::default`].
    pub fn parse(bytes: &'a [u8]) -> Self {
        Self::parse_within(bytes, &ScanLimits::default())
    }

    /// Parses a message within other limits.
    pub fn parse_within(bytes: &'a [u8], limits: &ScanLimits) -> Self {
        let (nodes, problem) = scan(bytes, limits);
        Self { bytes, nodes, problem }
    }

    /// The message itself as a part.
    pub fn root(&self) -> Part<'_, 'a> {
        Part { message: self, index: 0 }
    }

    /// All parts in the order of their starts, the root first.
    pub fn parts(&self) -> Parts<'_, 'a> {
        Parts { message: self, next: 0, end: self.nodes.len(), is_flat: true }
    }

    /// The reason why parsing was incomplete, if it was.
    pub fn problem(&self) -> Option<ScanProblem> {
        self.problem
    }

    /// Charset of unlabelled octets in the header: that of the first part with one.
    pub fn header_charset(&self) -> Option<Charset> {
        self.parts().take(CHARSET_PARTS_MAX).find_map(|part| part.charset())
    }
}

/// Top-level types (RFC 6838 section 4.2) whose files are not text.
const NO_TEXTS: [&str; 8] = ["application", "audio", "font", "image", "message", "model", "multipart", "video"];

/// Parts checked for a charset.
const CHARSET_PARTS_MAX: usize = 20;

/// A part of a message: the message itself, a body, a multipart, an enclosed message.
#[derive(Debug, Clone, Copy)]
pub struct Part<'m, 'a> {
    message: &'m Message<'a>,
    index: usize,
}

impl<'m, 'a> Part<'m, 'a> {
    fn node(&self) -> &'m Node<'a> {
        &self.message.nodes[self.index]
    }

    /// Index of the part in [`Message::parts`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// The enclosing part.
    pub fn parent(&self) -> Option<Part<'m, 'a>> {
        self.node().parent.map(|index| Part { message: self.message, index })
    }

    /// Direct children of the part: parts of a multipart, or the root of an enclosed message.
    pub fn children(&self) -> Parts<'m, 'a> {
        Parts { message: self.message, next: self.index + 1, end: self.node().after, is_flat: false }
    }

    /// Kind and content of the part.
    pub fn kind(&self) -> Kind {
        self.node().kind
    }

    /// Octet range of the part in the message: header section and body.
    pub fn range(&self) -> Range<usize> {
        self.node().start..self.node().end
    }

    /// Range of its header section, with the final empty line.
    pub fn header_range(&self) -> Range<usize> {
        self.node().start..self.node().body
    }

    /// Range of its body, still encoded, without the line end before the next boundary.
    pub fn body_range(&self) -> Range<usize> {
        self.node().body..self.node().end
    }

    /// Header section of the part.
    pub fn header(&self) -> Header<'a> {
        Header::at(&self.message.bytes[self.header_range()], self.node().start)
    }

    /// Body of the part, still encoded.
    pub fn body(&self) -> &'a [u8] {
        &self.message.bytes[self.body_range()]
    }

    /// Raw header section and body.
    pub fn as_bytes(&self) -> &'a [u8] {
        &self.message.bytes[self.range()]
    }

    /// Number of lines in the body, including an unterminated last one (RFC 9051 section 7.5.2, body lines).
    pub fn lines(&self) -> usize {
        let body = self.body();
        memchr::memchr_iter(b'\n', body).count() + usize::from(body.last().is_some_and(|&last| last != b'\n'))
    }

    /// The value of its first non-empty `Content-Type`.
    pub fn content_type(&self) -> Option<&'a [u8]> {
        self.node().content_type
    }

    /// Its media type in lower case. The default is `text/plain`, in a digest `message/rfc822` (RFC 2046 section
    /// 5.1.5).
    ///
    /// A value other than `type/subtype` counts as `text/plain`, too (RFC 2045 section 5.2). A file with a type without
    /// subtype, such as `application`, keeps it.
    pub fn media_type(&self) -> Cow<'static, str> {
        let Some(value) = self.content_type() else {
            return Cow::Borrowed(if self.node().is_in_digest { "message/rfc822" } else { "text/plain" });
        };
        let named = main_value(value);
        match named.split_once('/') {
            Some(("text", "plain")) => Cow::Borrowed("text/plain"),
            Some(("text", "html")) => Cow::Borrowed("text/html"),
            Some((main, sub)) if !main.is_empty() && !sub.is_empty() => Cow::Owned(named),
            _ if self.kind() != Kind::Leaf => Cow::Owned(named),
            _ if NO_TEXTS.contains(&named.trim_end_matches('/')) && self.file_name().is_some() => Cow::Owned(named),
            _ => Cow::Borrowed("text/plain"),
        }
    }

    /// A parameter of its `Content-Type`, decoded.
    pub fn type_parameter(&self, name: &str) -> Option<String> {
        parameter(self.content_type()?, name, None)
    }

    /// Its transfer encoding.
    pub fn encoding(&self) -> Encoding {
        self.node().encoding
    }

    /// Disposition of the part: `inline`, `attachment` or another word, in lower case.
    pub fn disposition(&self) -> Option<String> {
        self.node().disposition.map(main_value)
    }

    /// Its file name from `Content-Disposition`, or else `Content-Type`, as the sender wrote it: it may be a path or
    /// anything else.
    pub fn file_name(&self) -> Option<String> {
        let node = self.node();
        if node.disposition.is_none() && node.content_type.is_none() {
            return None;
        }
        let fallback = self.charset();
        let of = |value: Option<&[u8]>, name| parameter(value?, name, fallback).filter(|name| !name.trim().is_empty());
        of(node.disposition, "filename").or_else(|| of(node.content_type, "name"))
    }

    /// Charset of the part, if named and known.
    pub fn charset(&self) -> Option<Charset> {
        Charset::for_label(&self.charset_label()?)
    }

    fn charset_label(&self) -> Option<Cow<'a, [u8]>> {
        raw_parameter(self.content_type()?, "charset")
    }

    /// The body without its transfer encoding. Copied only if it has one.
    pub fn decoded(&self) -> Cow<'a, [u8]> {
        self.encoding().decode(self.body())
    }

    /// The body as text, with transfer encoding and charset decoded. Not copied if it is UTF-8 without transfer
    /// encoding.
    pub fn text(&self) -> Cow<'a, str> {
        self.text_and_footer().0
    }

    /// Like `text`, with the plain text appended after its base64, mostly by a mailing list.
    pub fn text_and_footer(&self) -> (Cow<'a, str>, Option<Cow<'a, str>>) {
        let label = self.charset_label();
        let is_html = self.media_type() == "text/html";
        let body = self.body();
        if self.encoding() == Encoding::Base64 {
            let (octets, end) = base64(body);
            let rest = body[end..].trim_ascii();
            let footer = (!rest.is_empty()).then(|| decode_body(rest, None, false));
            return (Cow::Owned(owned(octets, label.as_deref(), is_html)), footer);
        }
        let text = match self.decoded() {
            Cow::Borrowed(octets) => decode_body(octets, label.as_deref(), is_html),
            Cow::Owned(octets) => Cow::Owned(owned(octets, label.as_deref(), is_html)),
        };
        (text, None)
    }
}

fn owned(octets: Vec<u8>, label: Option<&[u8]>, is_html: bool) -> String {
    match decode_body(&octets, label, is_html) {
        Cow::Owned(text) => text,
        // Mostly it is UTF-8 already and needs no copy.
        Cow::Borrowed(text) if text.len() == octets.len() => {
            String::from_utf8(octets).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        }
        Cow::Borrowed(text) => text.to_owned(),
    }
}

/// An iterator of parts: all of a message, or the children of a part.
#[derive(Debug, Clone)]
pub struct Parts<'m, 'a> {
    message: &'m Message<'a>,
    next: usize,
    end: usize,
    /// Includes nested parts.
    is_flat: bool,
}

impl<'m, 'a> Iterator for Parts<'m, 'a> {
    type Item = Part<'m, 'a>;

    fn next(&mut self) -> Option<Part<'m, 'a>> {
        if self.next >= self.end {
            return None;
        }
        let part = Part { message: self.message, index: self.next };
        self.next = if self.is_flat { self.next + 1 } else { part.node().after };
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Media types, with parentheses for nesting, and the bodies of leaves.
    fn shape(part: Part<'_, '_>) -> String {
        let inner: Vec<String> = part.children().map(shape).collect();
        match part.kind() {
            Kind::Leaf => format!("{}={:?}", part.media_type(), part.text().replace('\r', "").trim_end()),
            _ => format!("{}({})", part.media_type(), inner.join(" ")),
        }
    }

    fn check(mail: &str, expected: &str) {
        for mail in [mail.to_owned(), mail.replace('\n', "\r\n")] {
            let message = Message::parse(mail.as_bytes());
            assert_eq!(shape(message.root()), expected, "{mail}");
        }
    }

    const MIXED: &str = "Content-Type: multipart/mixed; boundary=b\n\n";

    #[test]
    fn parts_lie_where_their_boundaries_are() {
        let mail = "A: 1\nContent-Type: multipart/mixed; boundary=\"b c\"\n\npreamble\n--b c\n\none\n\n--b c  \nContent-Type: text/html\n\ntwo\nlines\n--b c--\nepilogue\n";
        check(mail, "multipart/mixed(text/plain=\"one\" text/html=\"two\\nlines\")");
        let message = Message::parse(mail.as_bytes());
        let parts: Vec<_> = message.parts().collect();
        assert_eq!(&mail[parts[0].header_range()], "A: 1\nContent-Type: multipart/mixed; boundary=\"b c\"\n\n");
        assert_eq!(parts[0].range(), 0..mail.len());
        assert_eq!(&mail[parts[1].range()], "\none\n");
        assert_eq!(&mail[parts[1].body_range()], "one\n");
        assert_eq!(&mail[parts[2].header_range()], "Content-Type: text/html\n\n");
        assert_eq!(&mail[parts[2].body_range()], "two\nlines");
        assert_eq!((parts[1].lines(), parts[2].lines()), (1, 2));
        assert_eq!(parts[2].parent().map(|part| part.index()), Some(0));
    }

    #[test]
    fn what_is_not_closed_is_decoded_all_the_same() {
        check(
            &format!("{MIXED}--b\nContent-Transfer-Encoding: base64\n\naGVsbG8g\nd29ybGQ\n"),
            "multipart/mixed(text/plain=\"hello world\")",
        );
        check(
            &format!("{MIXED}--b\nContent-Transfer-Encoding: quoted-printable\n\ncaf=C3=A9 =\nau lait"),
            "multipart/mixed(text/plain=\"café au lait\")",
        );
        // Cut within a header.
        check(
            &format!("{MIXED}--b\n\none\n--b\nContent-Type: image/p"),
            "multipart/mixed(text/plain=\"one\" image/p=\"\")",
        );
    }

    #[test]
    fn an_unclosed_multipart_ends_with_the_one_around_it() {
        check(
            &format!(
                "{MIXED}--b\nContent-Type: multipart/alternative; boundary=i\n\n--i\n\nplain\n--i\nContent-Type: text/html\n\n<p>\n\
                 --b\nContent-Type: application/pdf\n\nPDF\n--b--\n"
            ),
            "multipart/mixed(multipart/alternative(text/plain=\"plain\" text/html=\"<p>\") application/pdf=\"PDF\")",
        );
        check(
            &format!("{MIXED}--b\nContent-Type: message/rfc822\n\nSubject: in\n--b\n\nnext\n--b--\n"),
            "multipart/mixed(message/rfc822(text/plain=\"\") text/plain=\"next\")",
        );
    }

    #[test]
    fn boundaries_are_whole_lines() {
        check(
            &format!("{MIXED}--b\n\none\n--bc\n--b c\n----\n--b--\nx"),
            "multipart/mixed(text/plain=\"one\\n--bc\\n--b c\\n----\")",
        );
        check(&format!("{MIXED}--b\n\none\n--b--a footer\n--b\n"), "multipart/mixed(text/plain=\"one\")");
        // The outer boundary begins the inner one.
        check(
            "Content-Type: multipart/mixed; boundary=abc\n\n--abc\nContent-Type: multipart/mixed; boundary=abcd\n\n--abcd\n\n1\n--abcd--\n--abc\n\n2\n--abc--\n",
            "multipart/mixed(multipart/mixed(text/plain=\"1\") text/plain=\"2\")",
        );
        // The same boundary for both.
        check(
            &format!("{MIXED}--b\n{MIXED}--b\n\n1\n--b--\n--b\n\n2\n--b--\n"),
            "multipart/mixed(multipart/mixed(text/plain=\"1\") text/plain=\"2\")",
        );
    }

    #[test]
    fn a_boundary_that_nobody_named_is_found() {
        check(
            "Content-Type: multipart/mixed\n\npreamble\n--a\n\ntext\n--a--\n",
            "multipart/mixed(text/plain=\"text\")",
        );
        check("Content-Type: multipart/mixed\n\nx\n-- \nAnn\n", "multipart/mixed=\"x\\n-- \\nAnn\"");
        check("Content-Type: multipart/mixed; boundary=b\n\nno such line\n", "multipart/mixed=\"no such line\"");
    }

    #[test]
    fn headers_that_are_damaged_cost_only_themselves() {
        check(
            &format!("{MIXED}--b\nno header here\n\nmore: text\n--b--\n"),
            "multipart/mixed(text/plain=\"no header here\\n\\nmore: text\")",
        );
        check("From ann Tue Mar  4 10:00:00 2025\nContent-Type: text/html\njunk\n\n<p>\n", "text/html=\"<p>\"");
        check("\nbody: x\n", "text/plain=\"body: x\"");
        check("Content-Type:\nContent-Type: text/html\n\n<p>\n", "text/html=\"<p>\"");
        assert_eq!(Message::parse(b"just text\nmore\n").problem(), Some(ScanProblem::NoHeader));
        assert_eq!(Message::parse(b"just text\n\nmore\n").root().body(), b"just text\n\nmore\n");
        assert_eq!(Message::parse(b"").problem(), Some(ScanProblem::NoHeader));
        assert_eq!(Message::parse(b"\nbody").problem(), None);
    }

    #[test]
    fn a_header_without_an_end_swallows_no_body() {
        check("A: 1\nB: 2\nsome text\nmore\n", "text/plain=\"some text\\nmore\"");
        check(
            "Content-Type: multipart/mixed;\n boundary=b\nThis is MIME.\n--b\nContent-Type: text/html\n\n<p>\n--b\n\ntext\n--b--\n",
            "multipart/mixed(text/html=\"<p>\" text/plain=\"text\")",
        );
        check(&format!("{MIXED}--b\nContent-Type: text/html\n<p>\n--b--\n"), "multipart/mixed(text/html=\"<p>\")");
        check(" Content-Type: text/html\nA: 1\n\n<p>\n", "text/html=\"<p>\"");
    }

    #[test]
    fn enclosed_messages_are_taken_apart() {
        check(
            "Content-Type: multipart/digest; boundary=d\n\n--d\n\nSubject: 1\n\none\n--d\nContent-Type: text/plain\n\ntwo\n--d--\n",
            "multipart/digest(message/rfc822(text/plain=\"one\") text/plain=\"two\")",
        );
        let encoded = "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\nU3ViamVjdDogeAoKeQ==\n";
        let message = Message::parse(encoded.as_bytes());
        assert_eq!((message.root().kind(), &*message.root().decoded()), (Kind::Leaf, &b"Subject: x\n\ny"[..]));
    }

    #[test]
    fn a_value_that_is_no_type_is_plain_text() {
        for value in [
            "plain",
            "html",
            "<html>",
            "text_plain",
            "charset=utf-8",
            "charset = utf-8",
            "/plain",
            "/",
            "txt",
            "text",
            "text/",
            "\"text/plain\"",
            "text plain",
            "; charset=x",
            "application",
            "message",
            "multipart",
            "message/; charset=utf-8",
        ] {
            check(&format!("Content-Type: {value}\n\nx"), "text/plain=\"x\"");
            let digest = "Content-Type: multipart/digest; boundary=b\n\n--b\n";
            check(&format!("{digest}Content-Type: {value}\n\nx\n--b--"), "multipart/digest(text/plain=\"x\")");
        }
        check("Content-Type: application; name=a.bin\n\nx", "application=\"x\"");
        check("Content-Type: plain; name=a.txt\n\nx", "text/plain=\"x\"");
        check("Content-Type: multipart\n\n--b\n\nx\n--b--", "multipart(text/plain=\"x\")");
        check("Content-Type: x/y\n\nx", "x/y=\"x\"");
        let koi8 = b"Content-Type: charset=koi8-r\n\n\xd0\xc5\xd4\xd2";
        assert_eq!(Message::parse(koi8).root().text(), "\u{43f}\u{435}\u{442}\u{440}");
    }

    #[test]
    fn a_footer_behind_base64_is_text() {
        let body = "aGVsbG8gd29ybGQ=\n_______________\nTo leave the list, write to list-leave@example.org\n";
        let mail = format!("Content-Transfer-Encoding: base64\n\n{body}");
        let message = Message::parse(mail.as_bytes());
        let (text, footer) = message.root().text_and_footer();
        assert_eq!(text, "hello world");
        assert!(footer.is_some_and(|footer| footer.starts_with("___") && footer.ends_with("list-leave@example.org")));
        assert_eq!(&*message.root().decoded(), b"hello world");
    }

    #[test]
    fn limits_hold_for_any_message() {
        let deep = "Content-Type: message/rfc822\n\n".repeat(200_000) + "x: y\n\nz\n";
        let message = Message::parse(deep.as_bytes());
        assert_eq!((message.problem(), message.parts().count()), (Some(ScanProblem::TooDeep), 101));
        let wide = MIXED.to_owned() + &"--b\n\nx\n".repeat(1_000_000);
        let message = Message::parse(wide.as_bytes());
        assert_eq!((message.problem(), message.parts().count()), (Some(ScanProblem::TooManyParts), 10_000));
        let level = |n: u32| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n");
        let nested: String = (0..10_000).map(level).collect();
        assert_eq!(Message::parse(nested.as_bytes()).problem(), Some(ScanProblem::TooDeep));
        let many = "Cc: a@x\n".repeat(1_000_000);
        assert_eq!(Message::parse(many.as_bytes()).root().header().fields().count(), 1_000_000);
    }
}
