//! The header section over borrowed bytes: where it ends, its fields, how many hops they tell of.

use memchr::{memchr, memchr_iter};

/// A message that has passed this many servers is taken to be in a loop (RFC 5321 section 6.3 asks for at least 100
/// before one *must* stop; common practice and this project stop at 50). Reply 554 5.4.6.
pub const MAX_HOPS: usize = 50;

/// The header section of a message. Lines may end in CRLF or LF.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    bytes: &'a [u8],
    complete: bool,
}

impl<'a> Header<'a> {
    /// The header section at the beginning of `message`, which may be cut off anywhere.
    pub fn of(message: &'a [u8]) -> Self {
        let mut line_start = 0;
        for newline in memchr_iter(b'\n', message) {
            if matches!(&message[line_start..newline], [] | [b'\r']) {
                return Self { bytes: &message[..line_start], complete: true };
            }
            line_start = newline + 1;
        }
        Self { bytes: message, complete: false }
    }

    /// Whether the blank line behind the header section was there.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The octets of the header section, without the blank line.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The fields in order. Lines that are no part of any field are passed over.
    pub fn fields(&self) -> Fields<'a> {
        Fields { rest: self.bytes }
    }

    /// The first field called `name`, compared without case.
    pub fn get(&self, name: &str) -> Option<Field<'a>> {
        self.fields().find(|field| field.is(name))
    }

    /// How many servers have passed this message on: the number of its Received fields (RFC 5321 section 6.3).
    pub fn hops(&self) -> usize {
        self.fields().filter(|field| field.is("Received")).count()
    }
}

/// One header field, still folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Field<'a> {
    /// The name, as it was written, without the colon.
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The value, folds and all, without the white space around it.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// Whether the field is called `name`, compared without case (RFC 5322 section 1.2.2).
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// Iterator over the fields of a [`Header`].
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        while !self.rest.is_empty() {
            let (line, rest) = self.rest.split_at(field_len(self.rest));
            self.rest = rest;
            let Some(colon) = memchr(b':', line) else {
                continue;
            };
            // White space before the colon is obsolete syntax that must be read (RFC 5322 section 4.5).
            let name = line[..colon].trim_ascii_end();
            if !name.is_empty() && name.iter().all(u8::is_ascii_graphic) {
                return Some(Field { name, value: line[colon + 1..].trim_ascii() });
            }
        }
        None
    }
}

/// Length of the first line together with the lines that continue it (RFC 5322 section 2.2.3).
fn field_len(bytes: &[u8]) -> usize {
    memchr_iter(b'\n', bytes)
        .map(|newline| newline + 1)
        .find(|&next| !matches!(bytes.get(next), Some(b' ' | b'\t')))
        .unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, expected: &[(&str, &str)]) {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let header = Header::of(message.as_bytes());
        let found: Vec<_> = header.fields().map(|f| (text(f.name()), text(f.value()))).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn fields_keep_their_folds() {
        check("A: 1\r\n\t2\r\nB:\r\n\r\nC: body\r\n", &[("A", "1\r\n\t2"), ("B", "")]);
        check("A: 1\n 2\nB: 3\n\nC: body\n", &[("A", "1\n 2"), ("B", "3")]);
    }

    #[test]
    fn lines_that_are_no_fields_are_passed_over() {
        check("junk line\r\n: nameless\r\nA : 1\r\nB: 2", &[("A", "1"), ("B", "2")]);
        check(" leading fold\r\nA: 1\r\n", &[("A", "1")]);
    }

    #[test]
    fn an_empty_header_is_complete_only_with_its_blank_line() {
        assert!(Header::of(b"\r\nbody").is_complete());
        assert!(Header::of(b"\nbody").is_complete());
        assert!(!Header::of(b"").is_complete());
        assert!(!Header::of(b"A: 1\r\n").is_complete());
    }

    #[test]
    fn hops_count_received_fields_of_the_header_alone() {
        let message = b"received: a\r\nX-Received: no\r\nReceived : b\r\n c\r\nTo: x\r\n\r\nReceived: body\r\n";
        assert_eq!(Header::of(message).hops(), 2);
    }
}
