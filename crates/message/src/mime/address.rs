//! Address lists (RFC 5322 section 3.4), including common deviations.

use std::borrow::Cow;

use super::charset::Charset;
use super::params::comment_len;
use super::words::{decode_text, encoded_word_len, unfold};

/// One item of an address list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodedAddress {
    /// A mailbox. It has at least one of name and address.
    Mailbox {
        /// The decoded display name with adjacent comments: `Ann Lee (Example Inc.)`. Without a name, the comment
        /// alone.
        name: Option<String>,
        /// The address without angle brackets, source route, comments and blanks. A single word, such as `root`, is
        /// one.
        address: Option<String>,
    },
    /// The start of a group; its members follow. `undisclosed-recipients:;` has none.
    Group(String),
    /// The end of the group.
    GroupEnd,
}

/// One raw item of an address list: encoded words and octets above ASCII stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawAddress {
    /// Like [`DecodedAddress::Mailbox`].
    Mailbox {
        /// The display name without its quotes and comments, else the first comment.
        name: Option<Vec<u8>>,
        /// The address, as in [`DecodedAddress::Mailbox`].
        address: Option<Vec<u8>>,
    },
    /// The start of a group; its members follow.
    Group(Vec<u8>),
    /// The end of the group.
    GroupEnd,
}

/// Parses an address list item by item. Nothing is an error: text that cannot be an address is a name.
#[derive(Debug, Clone)]
pub struct AddressList<'a>(RawAddresses<'a>);

impl<'a> AddressList<'a> {
    /// Parses the value of a field. `fallback`: charset of octets that are neither UTF-8 nor encoded.
    pub fn new(value: &'a [u8], fallback: Option<Charset>) -> Self {
        Self(RawAddresses { decoding: Some(fallback), ..RawAddresses::new(value) })
    }
}

impl Iterator for AddressList<'_> {
    type Item = DecodedAddress;

    fn next(&mut self) -> Option<DecodedAddress> {
        let text = |octets| String::from_utf8(octets).expect("decoded text is UTF-8");
        Some(match self.0.next()? {
            RawAddress::Mailbox { name, address } => {
                DecodedAddress::Mailbox { name: name.map(text), address: address.map(text) }
            }
            RawAddress::Group(name) => DecodedAddress::Group(text(name)),
            RawAddress::GroupEnd => DecodedAddress::GroupEnd,
        })
    }
}

/// Like [`AddressList`], without decoding: for IMAP's ENVELOPE (RFC 3501 section 7.4.2).
#[derive(Debug, Clone)]
pub struct RawAddresses<'a> {
    rest: &'a [u8],
    /// Charset of unlabelled octets; `None`: items stay raw.
    decoding: Option<Option<Charset>>,
    in_group: bool,
    /// Marks of which no further one is closed, so that none is searched again.
    open: Unclosed,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unclosed {
    quote: bool,
    comment: bool,
    angle: bool,
    literal: bool,
}

/// The parts of a mailbox parsed so far.
#[derive(Default)]
struct Parts {
    /// Words outside brackets; quoted ones without their quotes.
    phrase: Vec<u8>,
    /// Range of the word with an `@` in it.
    at_word: Option<(usize, usize)>,
    word_start: usize,
    /// True if that one was in quotes: another `@` then belongs to the address.
    is_at_quoted: bool,
    has_quoted: bool,
    angle: Option<Vec<u8>>,
    comments: Vec<Vec<u8>>,
    /// True if white space or a comment followed the last word.
    is_apart: bool,
}

impl<'a> RawAddresses<'a> {
    /// Parses the value of a field.
    pub fn new(value: &'a [u8]) -> Self {
        Self { rest: value, decoding: None, in_group: false, open: Unclosed::default() }
    }

    fn text(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let text = match self.decoding {
            Some(fallback) => decode_text(bytes, fallback).trim().as_bytes().to_vec(),
            None => unfold(bytes).trim_ascii().to_vec(),
        };
        (!text.is_empty()).then_some(text)
    }

    /// Length up to the end of a quote, comment or bracket; `None` if it is never closed.
    fn enclosed(&mut self, opening: u8) -> Option<usize> {
        let unclosed = match opening {
            b'"' => &mut self.open.quote,
            b'(' => &mut self.open.comment,
            b'<' => &mut self.open.angle,
            _ => &mut self.open.literal,
        };
        if *unclosed {
            return None;
        }
        let len = match opening {
            b'"' => quoted_len(self.rest),
            b'(' => comment_len(self.rest),
            b'<' => angle_len(self.rest),
            _ => memchr::memchr(b']', self.rest).map(|at| at + 1),
        };
        *unclosed = len.is_none();
        len
    }

    fn finish(&self, parts: Parts) -> Option<RawAddress> {
        let Parts { mut phrase, at_word, angle, comments, has_quoted, .. } = parts;
        if let Some(angle) = angle {
            let address = self.text(&angle);
            let name = self.name(&phrase, &comments);
            return (address.is_some() || name.is_some()).then_some(RawAddress::Mailbox { name, address });
        }
        if let Some((start, end)) = at_word {
            let address = self.text(&phrase[start..end]);
            phrase.drain(start..end);
            return Some(RawAddress::Mailbox { name: self.name(&phrase, &comments), address });
        }
        match self.text(&phrase) {
            // A local name: a mailbox on the machine.
            Some(word) if !has_quoted && word.iter().all(u8::is_ascii_graphic) => {
                Some(RawAddress::Mailbox { name: self.name(b"", &comments), address: Some(word) })
            }
            _ => self.name(&phrase, &comments).map(|name| RawAddress::Mailbox { name: Some(name), address: None }),
        }
    }

    /// The name from a phrase and adjacent comments. Raw names are for protocols, which have no comments there.
    fn name(&self, phrase: &[u8], comments: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut comments = comments.iter().filter_map(|comment| self.text(comment));
        let mut name = self.text(phrase).or_else(|| comments.next())?;
        if self.decoding.is_some() {
            comments.for_each(|comment| name.extend_from_slice(&[b" (", &comment[..], b")"].concat()));
        }
        Some(name)
    }
}

impl Iterator for RawAddresses<'_> {
    type Item = RawAddress;

    fn next(&mut self) -> Option<RawAddress> {
        let mut parts = Parts::default();
        while let Some((&byte, after)) = self.rest.split_first() {
            match byte {
                b'"' if let Some(len) = self.enclosed(byte) => self.quoted(&mut parts, len),
                // Unclosed, next to a word: a name follows, and the mark itself is dropped. Within a word it stays.
                b'"' if parts.phrase.is_empty() || parts.is_apart || ends_word(after) => {
                    parts.has_quoted = true;
                    self.rest = after;
                }
                b'(' if let Some(len) = self.enclosed(byte) => {
                    parts.comments.push(unescape(&self.rest[1..len - 1]).into_owned());
                    parts.is_apart = true;
                    self.rest = &self.rest[len..];
                }
                b'<' => {
                    if parts.angle.is_some() {
                        // The next item begins: the comma is missing.
                        return self.finish(parts);
                    }
                    self.angle(&mut parts);
                }
                b'[' if let Some(len) = self.enclosed(byte) => {
                    let (literal, rest) = self.rest.split_at(len);
                    parts.word(literal);
                    self.rest = rest;
                }
                b',' | b';' => {
                    let ends_group = byte == b';' && self.in_group;
                    let is_empty = parts.is_empty();
                    if ends_group && !is_empty {
                        // The member first; the semicolon is read again.
                        if let Some(found) = self.finish(parts) {
                            return Some(found);
                        }
                        parts = Parts::default();
                        continue;
                    }
                    self.rest = after;
                    if ends_group {
                        self.in_group = false;
                        return Some(RawAddress::GroupEnd);
                    }
                    if let Some(found) = self.finish(std::mem::take(&mut parts)) {
                        return Some(found);
                    }
                }
                b':' if !self.in_group
                    && parts.angle.is_none()
                    && parts.at_word.is_none()
                    && !parts.phrase.is_empty() =>
                {
                    self.rest = after;
                    self.in_group = true;
                    return Some(RawAddress::Group(self.text(&parts.phrase).unwrap_or_default()));
                }
                b'>' => self.rest = after,
                // A following blank still separates words: the line may be folded there.
                b'\\' if after.first().is_none_or(u8::is_ascii_whitespace) => self.rest = after,
                b'\\' => {
                    parts.word(&after[..1]);
                    self.rest = &after[1..];
                }
                _ if byte.is_ascii_whitespace() => {
                    parts.is_apart = true;
                    self.rest = after;
                }
                _ => {
                    let len = self.word_len();
                    parts.word(&self.rest[..len]);
                    self.rest = &self.rest[len..];
                }
            }
        }
        if let Some(found) = self.finish(parts) {
            return Some(found);
        }
        std::mem::take(&mut self.in_group).then_some(RawAddress::GroupEnd)
    }
}

impl RawAddresses<'_> {
    /// Takes a quote of this length.
    fn quoted(&mut self, parts: &mut Parts, len: usize) {
        let (quoted, rest) = self.rest.split_at(len);
        self.rest = rest;
        if self.rest.first() == Some(&b'@') {
            // The quoted local part of an address keeps its quotes and escapes.
            parts.word(quoted);
            return;
        }
        let content = unescape(&quoted[1..len - 1]);
        parts.has_quoted = true;
        parts.is_apart |= !parts.phrase.is_empty();
        let had_at = parts.at_word.is_some();
        parts.word(&content);
        parts.is_at_quoted |= !had_at && parts.at_word.is_some();
        parts.is_apart = true;
    }

    /// Takes an address in angle brackets.
    fn angle(&mut self, parts: &mut Parts) {
        let (content, len) = match self.enclosed(b'<') {
            Some(len) => (&self.rest[1..len - 1], len),
            // Unclosed: up to the next item.
            None => {
                let after = &self.rest[1..];
                let len = after.iter().position(|b| b",;".contains(b)).unwrap_or(after.len());
                (&after[..len], len + 1)
            }
        };
        parts.angle = Some(route_addr(content));
        parts.is_apart = true;
        self.rest = &self.rest[len..];
    }

    /// Length of a run of ordinary octets, at least 1. An encoded word is one run, whatever it holds.
    fn word_len(&self) -> usize {
        let rest = self.rest;
        if let Some(len) = encoded_word_len(&rest[..rest.len().min(ENCODED_WORD_BYTES_MAX)]) {
            return len;
        }
        // Another encoded word may begin inside.
        let ends = |at: usize| match rest[at] {
            b'=' => rest.get(at + 1) == Some(&b'?'),
            byte => b"\"(<[,;:>\\".contains(&byte) || byte.is_ascii_whitespace(),
        };
        (1..rest.len()).find(|&at| ends(at)).unwrap_or(rest.len())
    }
}

/// Encoded words may have at most 75 octets (RFC 2047 section 2); real ones are longer.
const ENCODED_WORD_BYTES_MAX: usize = 2048;

impl Parts {
    fn is_empty(&self) -> bool {
        self.phrase.is_empty() && self.angle.is_none() && self.comments.is_empty()
    }

    /// Adds to the phrase: a new word, or more of the last one.
    fn word(&mut self, text: &[u8]) {
        // Blanks around `@` and dots of an address are obsolete syntax (RFC 5322 section 4.4).
        let joins =
            self.is_address_open() || matches!(text, [b'@' | b'.', ..]) && !self.has_quoted && self.angle.is_none();
        if self.is_apart && !self.phrase.is_empty() && !joins {
            self.phrase.push(b' ');
            self.word_start = self.phrase.len();
        }
        self.is_apart = false;
        self.phrase.extend_from_slice(text);
        let is_same = self.at_word.is_some_and(|(start, _)| start == self.word_start);
        // An `@` in an encoded word does not count.
        let has_at = text.contains(&b'@') && !text.starts_with(b"=?");
        if is_same || has_at && (self.at_word.is_none() || self.is_at_quoted) {
            self.is_at_quoted &= is_same;
            self.at_word = Some((self.word_start, self.phrase.len()));
        }
    }

    /// True if the phrase ends in the middle of an address.
    fn is_address_open(&self) -> bool {
        match self.phrase.last() {
            Some(b'@') => true,
            Some(b'.') => self.at_word.is_some_and(|(_, end)| end == self.phrase.len()),
            _ => false,
        }
    }
}

fn ends_word(after: &[u8]) -> bool {
    after.first().is_none_or(|byte| b"<,;(".contains(byte) || byte.is_ascii_whitespace())
}

/// Length with both quotes; `text` begins with the first.
fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

/// Length with both brackets; those in a quoted local part do not count.
fn angle_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    // No further quote is closed, so none is searched again.
    let mut unclosed = false;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'>' => return Some(at + 1),
            b'"' if !unclosed => {
                let len = quoted_len(&text[at..]);
                unclosed = len.is_none();
                at += len.filter(|len| text.get(at + len) == Some(&b'@')).unwrap_or(1);
            }
            _ => at += 1,
        }
    }
    None
}

fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut octets = text.iter();
    while let Some(&octet) = octets.next() {
        out.push(if octet == b'\\' { *octets.next().unwrap_or(&b'\\') } else { octet });
    }
    Cow::Owned(out)
}

/// The address in brackets: without blanks, comments, inner brackets, and the route of RFC 5322 section 4.4.
fn route_addr(content: &[u8]) -> Vec<u8> {
    let content = unfold(content);
    let mut out = Vec::with_capacity(content.len());
    let mut at = 0;
    let mut open = Unclosed::default();
    while let Some(&byte) = content.get(at) {
        let len = match byte {
            b'"' => {
                let len = if open.quote { None } else { quoted_len(&content[at..]) };
                open.quote = len.is_none();
                let Some(len) = len else {
                    at += 1;
                    continue;
                };
                len
            }
            b'(' => {
                let len = if open.comment { None } else { comment_len(&content[at..]) };
                open.comment = len.is_none();
                at += len.unwrap_or(1);
                continue;
            }
            _ => 1,
        };
        if !byte.is_ascii_whitespace() && byte != b'<' {
            out.extend_from_slice(&content[at..at + len]);
        }
        at += len;
    }
    let mut address = &out[..];
    while let Some(rest) = after_route(address).or_else(|| after_mail_to(address)) {
        address = rest;
    }
    address.to_vec()
}

fn after_route(address: &[u8]) -> Option<&[u8]> {
    let colon = address.iter().position(|&byte| byte == b':').filter(|_| address.starts_with(b"@"))?;
    Some(&address[colon + 1..])
}

fn after_mail_to(address: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = address.split_at_checked(b"mailto:".len())?;
    (scheme.eq_ignore_ascii_case(b"mailto:") && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items as text: `name|address`, `name:` at the start of a group, `;` at its end.
    fn list(value: &[u8]) -> Vec<String> {
        let item = |address| match address {
            DecodedAddress::Mailbox { name, address } => {
                format!("{}|{}", name.unwrap_or_default(), address.unwrap_or_default())
            }
            DecodedAddress::Group(name) => format!("{name}:"),
            DecodedAddress::GroupEnd => ";".to_owned(),
        };
        AddressList::new(value, None).map(item).collect()
    }

    fn check(value: &[u8], expected: &[&str]) {
        assert_eq!(list(value), expected, "{}", value.escape_ascii());
    }

    #[test]
    fn addresses_with_and_without_names() {
        check(b" Ann <ann@x.example>, bob@x.example", &["Ann|ann@x.example", "|bob@x.example"]);
        check(b"\"Doe, A\" <a@x>,\r\n B <b@x>", &["Doe, A|a@x", "B|b@x"]);
        check(b"ann@x (Ann Lee)", &["Ann Lee|ann@x"]);
        check(b"(Ann (the (elder) one)) ann@x", &["Ann (the (elder) one)|ann@x"]);
        check(b"=?utf-8?Q?J=C3=BCrgen?= =?utf-8?Q?_M?= <j@x>", &["Jürgen M|j@x"]);
        check(b"\"=?utf-8?Q?M=C3=BCller=2C_A?=\" <m@x>", &["Müller, A|m@x"]);
        check(b"=?utf-8?Q?Doe, John?= <j@x>", &["Doe, John|j@x"]);
        check(b"=?utf-8?Q?Who?=2C_me?= <j@x>, b@x", &["Who?, me|j@x", "|b@x"]);
        check(b"J\xfcrgen <j@x>", &["Jürgen|j@x"]);
        check(b"\"a \\\"b\\\" c\" <d@x>", &["a \"b\" c|d@x"]);
        check(b"\"Ann\"<ann@x>", &["Ann|ann@x"]);
        check(b"", &[]);
        check(b" , ,, ", &[]);
    }

    #[test]
    fn comments_beside_a_name_are_part_of_it() {
        check(b"Masao Tester (Example) <masao@x>", &["Masao Tester (Example)|masao@x"]);
        check(
            b"(Dr.) Ann (A. (the) elder) Lee <ann@x> (work), b@x",
            &["Ann Lee (Dr.) (A. (the) elder) (work)|ann@x", "|b@x"],
        );
        check(b"\"Doe, A\" (=?utf-8?Q?B=C3=BCro?=) <a@x>", &["Doe, A (B\u{fc}ro)|a@x"]);
        check(b"a@x (Ann) (work)", &["Ann (work)|a@x"]);
        check(b"Ann a@x (work)", &["Ann (work)|a@x"]);
        check(b"root () (the admin)", &["the admin|root"]);
        check(b"John Doe (\\)) <>", &["John Doe ())|"]);
        let raw = RawAddresses::new(b"Masao Tester (Example) <masao@x>").next();
        let (name, address) = (Some(b"Masao Tester".to_vec()), Some(b"masao@x".to_vec()));
        assert_eq!(raw, Some(RawAddress::Mailbox { name, address }));
    }

    #[test]
    fn names_without_an_address_are_kept() {
        check(b"John Doe", &["John Doe|"]);
        check(b"\"John\"", &["John|"]);
        check(b"root", &["|root"]);
        check(b"John Doe <>", &["John Doe|"]);
        check(b"<>", &[]);
        check(b"(somebody)", &["somebody|"]);
        check(b"John Doe, ann@x", &["John Doe|", "|ann@x"]);
    }

    #[test]
    fn groups_have_a_name_and_members() {
        check(b"undisclosed-recipients:;", &["undisclosed-recipients:", ";"]);
        check(b"Undisclosed recipients: ;", &["Undisclosed recipients:", ";"]);
        check(b"A Group:ann@x, B <b@x>;, c@x", &["A Group:", "|ann@x", "B|b@x", ";", "|c@x"]);
        check(b"\"A: B\": c@x", &["A: B:", "|c@x", ";"]);
        check(b"list:;, other:;", &["list:", ";", "other:", ";"]);
    }

    #[test]
    fn obsolete_syntax_is_read() {
        check(b"bob @ corpus . example", &["|bob@corpus.example"]);
        check(b"<@relay.example,@b.example:carl@x>, <@a:@b:c@x>", &["|carl@x", "|c@x"]);
        check(b"\"a \\\" b\"@x, <\"a \\\" b\"@x>", &["|\"a \\\" b\"@x", "|\"a \\\" b\"@x"]);
        check(b"dan@[192.0.2.1], eve@[IPv6:2001:db8::1]", &["|dan@[192.0.2.1]", "|eve@[IPv6:2001:db8::1]"]);
        check(b"\"very.(),:;<>[]\" <\"quoted local part\"@x>", &["very.(),:;<>[]|\"quoted local part\"@x"]);
        check(b"\"odd name\"@x.example", &["|\"odd name\"@x.example"]);
        check(b"J. R. Doe <j@x>", &["J. R. Doe|j@x"]);
        check(b"Doe Inc . <j@x>", &["Doe Inc.|j@x"]);
    }

    #[test]
    fn slips_cost_only_themselves() {
        check(b"a@x; b@x", &["|a@x", "|b@x"]);
        check(b"<<a@x>>", &["|a@x"]);
        check(b"A <a@x", &["A|a@x"]);
        check(b"A <a@x, b@x", &["A|a@x", "|b@x"]);
        check(b"\"A <a@x>, b@x", &["A|a@x", "|b@x"]);
        check(b"\"B example  <b@x>", &["B example|b@x"]);
        check(b"B \"example <b@x>, C\" <c@x>", &["B example <b@x>, C|c@x"]);
        check(b"B\" <b@x>, C <c@x>", &["B|b@x", "C|c@x"]);
        check(b"a@x, \"Doe", &["|a@x", "Doe|"]);
        check(b"\"a@x", &["|a@x"]);
        check(b"a\"b@x", &["|a\"b@x"]);
        check(b"A (b <a@x>", &["A (b|a@x"]);
        check(b"John Doe john@x", &["John Doe|john@x"]);
        check(b"a@x <a@x>", &["a@x|a@x"]);
        check(b"\"a@x\" b@x, \"c@x\"", &["a@x|b@x", "|c@x"]);
        check(b"\"a@x\"b@x", &["a@x|b@x"]);
        check(b"'ann@x' <ann@x>", &["'ann@x'|ann@x"]);
        check(b"<a@x> <b@x>", &["|a@x", "|b@x"]);
        check(b"<mailto:a@x>", &["|a@x"]);
        check(b"A \\, B <a@x>", &["A , B|a@x"]);
        check(b">>>", &[]);
    }

    #[test]
    fn a_hundred_thousand_addresses_are_read_in_one_pass() {
        assert_eq!(list(&b"A <a@x.example>, ".repeat(100_000)).len(), 100_000);
        for opening in [&b"\""[..], b"(", b"<", b"[", b"=?", b"=?a?b?", b":", b"\\", b"@", b". "] {
            list(&opening.repeat(100_000));
        }
    }

    #[test]
    fn what_is_long_is_read_once() {
        // Each would take minutes with a search to the end for every mark.
        for many in ["(", "\"", "\\\"", "<", "[", "<(", "=?", "=?a?q?", ":", "a\"b\"", "(\\)"] {
            for begin in ["", "<", "<\""] {
                for end in ["", "@x>"] {
                    let value = format!("{begin}{}{end}", many.repeat(100_000));
                    AddressList::new(value.as_bytes(), None).for_each(drop);
                }
            }
        }
    }

    #[test]
    fn raw_items_keep_encoded_words_and_octets() {
        let value = b"=?utf-8?Q?J=C3=BC?= <j@x>, \"Gr\xfc\xdfe, \\\"B\\\"\" <g@y>, caf\xe9:\r\n m@z (M);";
        let mailbox = |name: &[u8], address: &[u8]| RawAddress::Mailbox {
            name: Some(name.to_vec()),
            address: Some(address.to_vec()),
        };
        let expected = [
            mailbox(b"=?utf-8?Q?J=C3=BC?=", b"j@x"),
            mailbox(b"Gr\xfc\xdfe, \"B\"", b"g@y"),
            RawAddress::Group(b"caf\xe9".to_vec()),
            mailbox(b"M", b"m@z"),
            RawAddress::GroupEnd,
        ];
        assert_eq!(RawAddresses::new(value).collect::<Vec<_>>(), expected);
    }
}
