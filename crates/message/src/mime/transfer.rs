//! Transfer encodings (RFC 2045 section 6), decoded leniently: damage affects only itself.

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// A body's transfer encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Not encoded: `7bit`, `8bit`, `binary`, or an unknown encoding.
    #[default]
    Identity,
    /// RFC 2045 section 6.8.
    Base64,
    /// RFC 2045 section 6.7.
    QuotedPrintable,
    /// `begin 644 name` and lines of up to 45 octets.
    Uuencode,
}

impl Encoding {
    /// Parses a `Content-Transfer-Encoding`, ignoring comments, quotes and blanks around the word.
    pub fn from_value(value: &[u8]) -> Self {
        let word = first_word(value);
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        if is("base64") || is("base-64") || is("x-base64") {
            Self::Base64
        } else if is("quoted-printable") || is("quotedprintable") || is("quoted_printable") {
            Self::QuotedPrintable
        } else if is("x-uuencode") || is("uuencode") || is("x-uue") || is("uue") {
            Self::Uuencode
        } else {
            Self::Identity
        }
    }

    /// True if a `Content-Transfer-Encoding` names an unknown encoding: the body is then left as it is, but means
    /// something else.
    pub fn is_unknown(value: &[u8]) -> bool {
        let word = first_word(value);
        let is_plain = ["", "7bit", "8bit", "binary"].iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
        !is_plain && Self::from_value(value) == Self::Identity
    }

    /// Decodes a body. An unencoded body is not copied.
    pub fn decode(self, body: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Identity => Cow::Borrowed(body),
            Self::Base64 => match base64(body) {
                // No valid group: the content was replaced by a note.
                (octets, end) if octets.is_empty() && end < body.len() => Cow::Borrowed(body),
                (octets, _) => Cow::Owned(octets),
            },
            Self::QuotedPrintable => quoted_printable(body),
            Self::Uuencode => uuencode(body).map_or(Cow::Borrowed(body), Cow::Owned),
        }
    }
}

fn first_word(value: &[u8]) -> &[u8] {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let start = value.iter().position(is_word).unwrap_or(value.len());
    let len = value[start..].iter().position(|byte| !is_word(byte)).unwrap_or(value.len() - start);
    &value[start..start + len]
}

const NONE: u8 = 0xff;
const BASE64: [u8; 256] = {
    let mut table = [NONE; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut value = 0;
    while value < 64 {
        table[alphabet[value] as usize] = value as u8;
        value += 1;
    }
    table
};

pub(super) fn base64_value(byte: u8) -> Option<u8> {
    Some(BASE64[usize::from(byte)]).filter(|&value| value != NONE)
}

/// Decodes base64; returns where it ended: at the end, or at a line that is plainly something else, such as a list's
/// footer.
///
/// Skips octets outside the alphabet. `=` ends a group of four, not the text, and is optional: an unfinished group is
/// decoded as far as it makes octets.
pub fn base64(body: &[u8]) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 3);
    let mut bits = Bits::default();
    let mut at = 0;
    while at < body.len() {
        let len = memchr(b'\n', &body[at..]).map_or(body.len() - at, |end| end + 1);
        let line = &body[at..at + len];
        if !whole_groups(line.trim_ascii_end(), &bits, &mut out) {
            if is_text(line) {
                break;
            }
            line.iter().for_each(|&byte| bits.push(byte, &mut out));
        }
        at += len;
    }
    (out, at)
}

/// Bits of an incomplete octet.
#[derive(Default)]
struct Bits {
    held: u32,
    count: u32,
}

impl Bits {
    fn push(&mut self, byte: u8, out: &mut Vec<u8>) {
        match BASE64[usize::from(byte)] {
            NONE if byte == b'=' => *self = Self::default(),
            NONE => {}
            value => {
                self.held = self.held << 6 | u32::from(value);
                self.count += 6;
                if self.count >= 8 {
                    self.count -= 8;
                    out.push((self.held >> self.count) as u8);
                    self.held &= (1 << self.count) - 1;
                }
            }
        }
    }
}

/// The common case: a line of whole groups only, with no bits held from the line before. Otherwise returns false and
/// writes nothing.
fn whole_groups(line: &[u8], bits: &Bits, out: &mut Vec<u8>) -> bool {
    if bits.count != 0 || !line.len().is_multiple_of(4) {
        return false;
    }
    let before = out.len();
    for group in line.chunks_exact(4) {
        let [a, b, c, d] = [group[0], group[1], group[2], group[3]].map(|byte| u32::from(BASE64[usize::from(byte)]));
        if (a | b | c | d) > 63 {
            out.truncate(before);
            return false;
        }
        let word = a << 18 | b << 12 | c << 6 | d;
        out.extend_from_slice(&[(word >> 16) as u8, (word >> 8) as u8, word as u8]);
    }
    true
}

/// True for a line that is not base64 at all: a rule, a signature separator, a sentence. Lines longer than 76 may have
/// more foreign octets.
fn is_text(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let foreign = line.iter().filter(|&&byte| BASE64[usize::from(byte)] == NONE && byte != b'=').count();
    foreign >= 3 && foreign * 26 >= line.len() || foreign == line.len() && foreign >= 2
}

/// Decodes quoted-printable. Invalid escapes stay; blanks at the end of a line are dropped (RFC 2045 section 6.7 rule
/// 3).
pub fn quoted_printable(body: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(body) {
        return Cow::Borrowed(body);
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while !rest.is_empty() {
        let end = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        let text_end = line.len() - line.iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
        let (text, line_end) = match line.last() {
            Some(b'\n') => (&line[..text_end], if line.ends_with(b"\r\n") { 2 } else { 1 }),
            _ => (line, 0),
        };
        match text.strip_suffix(b"=") {
            // A soft line break; blanks after it were added in transit.
            Some(text) => escapes(text, &mut out),
            None => {
                escapes(text, &mut out);
                out.extend_from_slice(&line[line.len() - line_end..]);
            }
        }
    }
    Cow::Owned(out)
}

/// Replaces `=XX` in one line.
fn escapes(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr(b'=', text) {
        out.extend_from_slice(&text[..at]);
        let digits = text.get(at + 1..at + 3).and_then(|digits| Some(hex(digits[0])? << 4 | hex(digits[1])?));
        out.push(digits.unwrap_or(b'='));
        text = &text[at + if digits.is_some() { 3 } else { 1 }..];
    }
    out.extend_from_slice(text);
}

pub(super) fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Decodes the first uuencoded file. `None` if there is none.
fn uuencode(body: &[u8]) -> Option<Vec<u8>> {
    let begin = if body.starts_with(b"begin ") { 0 } else { memmem::find(body, b"\nbegin ")? + 1 };
    let mut lines = body[begin..].split(|&byte| byte == b'\n').skip(1);
    let mut out = Vec::with_capacity(body.len() / 4 * 3);
    for line in lines.by_ref() {
        let line = line.trim_ascii_end();
        if line == b"end" {
            break;
        }
        // Trailing blanks, which are zeros, may have been lost.
        let value = |at: usize| u32::from(line.get(at).map_or(0, |byte| byte.wrapping_sub(b' ') & 0x3f));
        let len = value(0) as usize;
        if line.len() > 1 + len.div_ceil(3) * 4 + 4 {
            continue;
        }
        // Lost zeros are restored, but lengths alone do not make a file.
        let before = out.len();
        if before + len > body.len() {
            break;
        }
        for group in 0..len.div_ceil(3) {
            let at = 1 + group * 4;
            let word = value(at) << 18 | value(at + 1) << 12 | value(at + 2) << 6 | value(at + 3);
            out.extend_from_slice(&[(word >> 16) as u8, (word >> 8) as u8, word as u8]);
        }
        out.truncate(before + len);
    }
    Some(out)
}

/// True if quoted-printable text equals its decoding.
pub(super) fn is_plain(body: &[u8]) -> bool {
    let has_blanks = |at: usize| {
        let line = &body[..at];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        line.last().is_some_and(|last| last.is_ascii_whitespace() && *last != b'\n')
    };
    memchr(b'=', body).is_none() && !memchr::memchr_iter(b'\n', body).any(has_blanks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_whatever_stands_in_it() {
        let check = |text: &[u8], expected: &[u8], end: usize| {
            let (found, at) = base64(text);
            assert_eq!(found.escape_ascii().to_string(), expected.escape_ascii().to_string());
            assert_eq!(at, end);
        };
        check(b"SGVs!bG8g\r\n  d29y bGQ=\r\nIQ", b"Hello world!", 26);
        check(b"aGVsbG8", b"hello", 7);
        check(b"aGVsbG8h\r\naGk", b"hello!hi", 13);
        check(b"YQ", b"a", 2);
        check(b"YQ==\nYg==\n", b"ab", 10);
        check(b"===", b"", 3);
        check(b"S", b"", 1);
        check(b"aGVs\nbG8h\n_______________\nlist mailing list\n", b"hello!", 10);
        check(b"aGVsbG8=\n\n-- \nTo leave, write to list-leave@example.org\n", b"hello", 10);
        check(b"aGVsbG8=\r\n--\r\nunsubscribe", b"hello", 10);
        check(b"", b"", 0);
        // A body on one line, with a few foreign octets.
        let one_line = [&b"aGVsbG8h"[..], b"!\xc3\xbf", &b"aGVsbG8h".repeat(25)].concat();
        check(&one_line, &b"hello!".repeat(26), one_line.len());
        // Lines cut within a group of four.
        check(b"aGVs\nbG\n8h\n", b"hello!", 11);
    }

    #[test]
    fn a_note_in_the_place_of_base64_stays() {
        let note = b"[the attachment was removed]\n";
        assert_eq!(&*Encoding::Base64.decode(note), note);
        assert_eq!(&*Encoding::Base64.decode(b""), b"");
    }

    #[test]
    fn quoted_printable_is_read_whatever_stands_in_it() {
        let check = |text: &[u8], expected: &[u8]| {
            assert_eq!(quoted_printable(text).escape_ascii().to_string(), expected.escape_ascii().to_string());
        };
        check(b"caf=C3=a9 =\r\nau lait  \r\nend", b"caf\xc3\xa9 au lait\r\nend");
        check(b"a = b =3 =ZZ =3D", b"a = b =3 =ZZ =");
        check(b"soft =  \nline", b"soft line");
        check(b"end=", b"end");
        check(b"end=\r", b"end=\r");
        check(b"raw \xe9\n", b"raw \xe9\n");
        check(b"trailing \n \n", b"trailing\n\n");
        assert!(matches!(quoted_printable(b"plain\r\ntext\r\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn uuencode_is_read() {
        let body = b"see below\nbegin 644 cat.txt\n#0V%T\n`\nend\nafter\n";
        assert_eq!(&*Encoding::Uuencode.decode(body), b"Cat");
        assert_eq!(&*Encoding::Uuencode.decode(b"no file"), b"no file");
        assert_eq!(Encoding::Uuencode.decode(b"begin 644 zeros\nM\nend\n")[..], []);
        let endless = [&b"begin 644 x\n"[..], &b"M\n".repeat(10_000)].concat();
        assert!(Encoding::Uuencode.decode(&endless).len() <= endless.len());
        assert_eq!(&*Encoding::Uuencode.decode(b"begin 644 x\r\n\"9V\\\r\nend"), b"go");
    }

    #[test]
    fn encodings_are_known_by_sloppy_names() {
        for value in ["base64", " BASE64\r\n", "\"base64\"", "base64 (whatever)", "Base64;"] {
            assert_eq!(Encoding::from_value(value.as_bytes()), Encoding::Base64, "{value}");
        }
        assert_eq!(Encoding::from_value(b"Quoted-Printable"), Encoding::QuotedPrintable);
        for value in ["7bit", "8bit", "binary", "", "quoted"] {
            assert_eq!(Encoding::from_value(value.as_bytes()), Encoding::Identity, "{value}");
            assert_eq!(Encoding::is_unknown(value.as_bytes()), value == "quoted", "{value}");
        }
        assert!(!Encoding::is_unknown(b"x-uue") && Encoding::is_unknown(b" x-zip64 (new)"));
    }
}
