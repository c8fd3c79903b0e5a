//! Text and octets as mail carries them: encoded words, quoted-printable, base64, and the parts of a message.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Characters of a line, without its end.
const LINE_MAX: usize = 76;
/// Octets of a line of a header field that cannot be folded (RFC 5322 section 2.1.1).
const FIELD_LINE_MAX: usize = 900;
/// Octets of text in an encoded word of at most 75 characters, on a line of at most 76 (RFC 2047 section 2).
const WORD_OCTETS: usize = 39;

/// Appends a field with any text: folded, and in encoded words if it is not ASCII.
///
/// # Errors
/// A word is too long for a line.
pub(crate) fn write_text_field(out: &mut String, name: &str, value: &str) -> Result<(), &'static str> {
    if value.is_ascii() { write_field(out, name, value) } else { write_field(out, name, &encoded_words(value)) }
}

/// Appends a field, folded at its blanks.
///
/// # Errors
/// A word is too long for a line.
pub(crate) fn write_field(out: &mut String, name: &str, value: &str) -> Result<(), &'static str> {
    let _ = write!(out, "{name}:");
    let mut column = name.len() + 1;
    for word in value.trim().split(' ') {
        if word.len() > FIELD_LINE_MAX {
            return Err("a word is too long for a line");
        }
        // An empty word is a further blank, and a line of blanks alone is none.
        if column + 1 + word.len() > LINE_MAX && column > name.len() + 1 && !word.is_empty() {
            out.push_str("\r\n");
            column = 0;
        }
        out.push(' ');
        out.push_str(word);
        column += 1 + word.len();
    }
    out.push_str("\r\n");
    Ok(())
}

/// `text` as encoded words, separated by blanks that do not belong to it.
pub(crate) fn encoded_words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = (0..=rest.len().min(WORD_OCTETS)).rev().find(|&end| rest.is_char_boundary(end)).unwrap_or(rest.len());
        let (word, more) = rest.split_at(end);
        let blank = if out.is_empty() { "" } else { " " };
        let _ = write!(out, "{blank}=?UTF-8?B?{}?=", STANDARD.encode(word));
        rest = more;
    }
    out
}

/// A mailbox for From or To: `name` is any text.
pub(crate) fn mailbox(name: Option<&str>, address: &str) -> String {
    let is_atom = |name: &str| name.bytes().all(|octet| octet.is_ascii_alphanumeric() || b" -_'".contains(&octet));
    match name.map(str::trim).filter(|name| !name.is_empty()) {
        None => address.to_owned(),
        Some(name) if !name.is_ascii() => format!("{} <{address}>", encoded_words(name)),
        Some(name) if is_atom(name) => format!("{name} <{address}>"),
        Some(name) => format!("\"{}\" <{address}>", name.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// Text as quoted-printable (RFC 2045 section 6.7), its lines ended by CRLF.
pub(crate) fn quoted_printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 10);
    for line in text.split_inclusive('\n') {
        let (line, has_end) = match line.strip_suffix('\n') {
            Some(line) => (line.strip_suffix('\r').unwrap_or(line), true),
            None => (line, false),
        };
        let mut column = 0;
        let octets = line.as_bytes();
        for (at, &octet) in octets.iter().enumerate() {
            let is_last = at + 1 == octets.len();
            let is_plain = match octet {
                b' ' | b'\t' => !is_last,
                // A dot alone and `From ` are what programs on the way may change.
                b'.' | b'F' => column > 0,
                b'=' => false,
                33..=126 => true,
                _ => false,
            };
            let width = if is_plain { 1 } else { 3 };
            if column + width > LINE_MAX - 1 {
                out.push_str("=\r\n");
                column = 0;
            }
            if is_plain {
                out.push(char::from(octet));
            } else {
                let _ = write!(out, "={octet:02X}");
            }
            column += width;
        }
        if has_end {
            out.push_str("\r\n");
        }
    }
    out
}

/// Octets as base64 in lines.
pub(crate) fn base64_lines(octets: &[u8]) -> String {
    let text = STANDARD.encode(octets);
    let mut out = String::with_capacity(text.len() + text.len() / LINE_MAX * 2 + 2);
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE_MAX));
        out.push_str(line);
        out.push_str("\r\n");
        rest = more;
    }
    out
}

/// Base64 with or without line ends.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|octet| !octet.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}

/// A part of a message: its fields, the empty line, its body.
#[derive(Debug, Clone)]
pub(crate) struct Part(pub String);

impl Part {
    /// A text part, such as `plain`.
    pub fn text(subtype: &str, text: &str) -> Self {
        let text = quoted_printable(text);
        let fields = "charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable";
        Self(format!("Content-Type: text/{subtype}; {fields}\r\n\r\n{text}\r\n"))
    }

    /// A multipart. `level` differs from those of nested multiparts. Quoted-printable and base64 never contain a
    /// boundary (RFC 2045 section 6.7).
    pub fn several(subtype: &str, level: u8, parts: Vec<Self>) -> Self {
        let mut out = format!("Content-Type: multipart/{subtype}; boundary=\"=_{level}_=\"\r\n\r\n");
        for Part(part) in &parts {
            let _ = write!(out, "--=_{level}_=\r\n{part}\r\n");
        }
        let _ = write!(out, "--=_{level}_=--\r\n");
        Self(out)
    }
}

#[cfg(test)]
mod tests {
    use posthaste_message::mime::{Header, quoted_printable as decode};

    use super::*;

    #[test]
    fn text_in_fields_is_what_a_reader_decodes() {
        for text in ["Hello", "Grüße aus Köln", &"ü".repeat(300), &"word ".repeat(100), "a  b", "=?x?= ü"] {
            let mut field = String::new();
            write_text_field(&mut field, "Subject", text).unwrap();
            assert!(field.is_ascii() && field.ends_with("\r\n"), "{field}");
            assert!(field.lines().all(|line| line.len() <= 78 && !line.trim().is_empty()), "{field}");
            let lines = format!("{field}\r\n");
            let read = Header::new(lines.as_bytes()).first("Subject").unwrap().text(None);
            assert_eq!(read.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        }
        assert!(write_text_field(&mut String::new(), "X", &"x".repeat(2000)).is_err());
    }

    #[test]
    fn names_in_mailboxes_cannot_become_addresses() {
        assert_eq!(mailbox(Some("Ann Lee"), "a@x.example"), "Ann Lee <a@x.example>");
        assert_eq!(mailbox(Some("Lee, \"A\" <b@y>"), "a@x.example"), "\"Lee, \\\"A\\\" <b@y>\" <a@x.example>");
        assert_eq!(mailbox(Some("Jörg"), "a@x.example"), "=?UTF-8?B?SsO2cmc=?= <a@x.example>");
        assert_eq!(mailbox(Some(" "), "a@x.example"), "a@x.example");
    }

    #[test]
    fn quoted_printable_decodes_to_the_text() {
        for text in ["", "a", "a\n", "ü=\n", ".\n", "From me\n", "x \n y\t\nz ", &"x".repeat(500), &"ü".repeat(500)] {
            let coded = quoted_printable(text);
            assert!(coded.lines().all(|line| line.len() <= 76), "{coded}");
            assert!(coded.lines().all(|line| line != "." && !line.starts_with("From ")), "{coded}");
            let decoded = decode(coded.as_bytes());
            assert_eq!(String::from_utf8_lossy(&decoded).replace("\r\n", "\n"), text, "{coded}");
        }
    }

    #[test]
    fn base64_is_cut_into_lines_and_read_with_them() {
        let octets: Vec<u8> = (0..=255).collect();
        let lines = base64_lines(&octets);
        assert!(lines.lines().all(|line| line.len() <= 76) && lines.ends_with("\r\n"));
        assert_eq!(from_base64(&lines), Some(octets));
        assert_eq!(from_base64("?"), None);
    }
}
