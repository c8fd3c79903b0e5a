//! Header sections: raw fields with their positions, and their meaning.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use super::address::AddressList;
use super::charset::Charset;
use super::words::decode_text;
use crate::DateTime;

/// A header section. Reading it looks once at each line and copies nothing.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    bytes: &'a [u8],
    offset: usize,
}

/// One header field.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// The name, without the colon and blanks before it.
    pub name: &'a [u8],
    /// The value after the colon, still folded, without the last line end.
    pub value: &'a [u8],
    /// Start of the name in the message.
    pub start: usize,
    /// Start of the next line.
    pub end: usize,
}

impl<'a> Header<'a> {
    /// The header section at the start of `bytes`: up to the first empty line, or to the end.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(super) fn at(bytes: &'a [u8], offset: usize) -> Self {
        Self { bytes, offset }
    }

    /// The raw section.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// All fields in their order. Lines outside fields are skipped.
    pub fn fields(&self) -> HeaderFields<'a> {
        HeaderFields { bytes: self.bytes, at: 0, offset: self.offset }
    }

    /// The first field of that name, in any case.
    pub fn first(&self, name: &str) -> Option<Field<'a>> {
        self.fields().find(|field| field.is(name))
    }
}

/// See [`Header::fields`].
#[derive(Debug, Clone)]
pub struct HeaderFields<'a> {
    bytes: &'a [u8],
    at: usize,
    offset: usize,
}

impl<'a> Iterator for HeaderFields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        while let Some(line) = line_at(self.bytes, self.at) {
            let start = line.start;
            if is_empty_line(&self.bytes[line.clone()]) {
                self.at = self.bytes.len();
                return None;
            }
            self.at = line.end;
            // The first line cannot continue a field, so blanks before its name are a slip.
            let blanks = if start == 0 {
                self.bytes[line.clone()].iter().take_while(|byte| is_continuation(**byte)).count()
            } else {
                0
            };
            let start = start + blanks;
            let Some(colon) = colon_of(&self.bytes[start..line.end]) else { continue };
            while let Some(line) = line_at(self.bytes, self.at).filter(|line| is_continuation(self.bytes[line.start])) {
                self.at = line.end;
            }
            let name = self.bytes[start..start + colon].trim_ascii_end();
            let value = without_line_end(&self.bytes[start + colon + 1..self.at]);
            return Some(Field { name, value, start: self.offset + start, end: self.offset + self.at });
        }
        None
    }
}

/// The range of the line at a position, with its end. `None` at the end.
pub(super) fn line_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
    Some(at..memchr(b'\n', rest).map_or(bytes.len(), |end| at + end + 1))
}

pub(super) fn is_empty_line(line: &[u8]) -> bool {
    matches!(line, b"\n" | b"\r\n")
}

pub(super) fn is_continuation(first: u8) -> bool {
    matches!(first, b' ' | b'\t')
}

/// Position of the colon after a field's name (RFC 5322 section 2.2, blanks before it as in section 4.5). `None`: the
/// line begins no field.
pub(super) fn colon_of(line: &[u8]) -> Option<usize> {
    let colon = line.iter().position(|&byte| byte == b':' || !byte.is_ascii_graphic())?;
    if line[colon] == b':' {
        return Some(colon).filter(|&at| at > 0);
    }
    let blanks = line[colon..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    (colon > 0 && blanks > 0 && line.get(colon + blanks) == Some(&b':')).then_some(colon + blanks)
}

fn without_line_end(value: &[u8]) -> &[u8] {
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    value.strip_suffix(b"\r").unwrap_or(value)
}

impl<'a> Field<'a> {
    /// True if it has that name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }

    /// The value unfolded and decoded (RFC 2047). See [`decode_text`].
    pub fn text(&self, fallback: Option<Charset>) -> Cow<'a, str> {
        decode_text(self.value, fallback)
    }

    /// The value as a list of addresses.
    pub fn addresses(&self, fallback: Option<Charset>) -> AddressList<'a> {
        AddressList::new(self.value, fallback)
    }

    /// The value as a date; for `Received`, the part after its last semicolon.
    pub fn date(&self) -> Option<DateTime> {
        let value = if self.is("Received") {
            memchr::memrchr(b';', self.value).map(|at| &self.value[at + 1..])?
        } else {
            self.value
        };
        DateTime::parse(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &[u8], expected: &[(&str, &str)]) {
        let found: Vec<(String, String)> = Header::new(header)
            .fields()
            .map(|field| [field.name, field.value].map(|part| part.escape_ascii().to_string()).into())
            .collect();
        let expected: Vec<(String, String)> = expected.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        assert_eq!(found, expected, "{}", header.escape_ascii());
    }

    #[test]
    fn fields_come_as_they_stand() {
        check(
            b"A: 1\r\nB : 2\r\n\tfolded\r\nC:\r\n\r\nbody: x\r\n",
            &[("A", " 1"), ("B", " 2\\r\\n\\tfolded"), ("C", "")],
        );
        check(b"A: cut off", &[("A", " cut off")]);
        check(b"", &[]);
        check(b"\nA: body\n", &[]);
    }

    #[test]
    fn lines_that_are_no_field_cost_only_themselves() {
        check(
            b"From ann Tue Mar  4 10:00:00 2025\nA: 1\nno colon here\n folded\n: no name\nB: 2\n",
            &[("A", " 1"), ("B", " 2")],
        );
        check(b"caf\xe9: x\nA\x01: x\nB: 2\n", &[("B", " 2")]);
        check(b" folded nothing\nB: 2\n \n c\n\n", &[("B", " 2\\n \\n c")]);
        check(b" A: 1\nB: 2\n", &[("A", " 1"), ("B", " 2")]);
    }

    #[test]
    fn places_are_those_of_the_message() {
        let bytes = b"xx\nA: 1\n 2\nB: 3\n\n";
        let fields: Vec<_> = Header::at(&bytes[3..], 3).fields().collect();
        assert_eq!(&bytes[fields[0].start..fields[0].end], b"A: 1\n 2\n");
        assert_eq!(&bytes[fields[1].start..fields[1].end], b"B: 3\n");
    }

    #[test]
    fn the_date_of_a_received_stands_at_its_end() {
        let field =
            Header::new(b"Received: from a by b; id 1; Tue, 04 Mar 2025 10:40:00 +0100\n").first("received").unwrap();
        assert_eq!(field.date().map(DateTime::unix_secs), Some(1_741_081_200));
    }
}
