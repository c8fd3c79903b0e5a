//! Foreign text on lines of a notification.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::wording::is_line_or_direction;

/// At most [`BYTES_MAX`] of a text on one line. Line ends and control characters become blanks, and runs of blanks a
/// single one. Non-ASCII characters become `?` unless `is_utf8`.
pub(super) fn one_line(text: &str, is_utf8: bool) -> String {
    let mut out = String::with_capacity(text.len().min(BYTES_MAX));
    for letter in text.chars() {
        let letter = match letter {
            letter if letter.is_control() || is_line_or_direction(letter) => ' ',
            letter if !letter.is_ascii() && !is_utf8 => '?',
            letter => letter,
        };
        if letter == ' ' && (out.is_empty() || out.ends_with(' ')) {
            continue;
        }
        if out.len() + letter.len_utf8() > BYTES_MAX {
            break;
        }
        out.push(letter);
    }
    out.truncate(out.trim_end().len());
    out
}

/// Folds a line at blanks after 76 bytes, and anywhere after 900. Continuation lines begin with `indent`. Ends with
/// CRLF.
pub(super) fn folded(line: &str, indent: &str) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    let mut begun = 0;
    let lead = line.len() - line.trim_start().len();
    for (at, letter) in line.char_indices() {
        let word = line[at + letter.len_utf8()..].split(' ').next().map_or(0, str::len);
        let used = out.len() - begun;
        let is_break = letter == ' ' && at > lead && used + 1 + word > LINE_BYTES && used > lead;
        if is_break || used + letter.len_utf8() > LINE_BYTES_MAX {
            out.push_str("\r\n");
            begun = out.len();
            out.push_str(indent);
        }
        if !is_break {
            out.push(letter);
        }
    }
    out.push_str("\r\n");
    out
}

/// A header field with its line end. Non-ASCII text becomes encoded words (RFC 2047), which any host accepts.
pub(super) fn header_field(name: &str, value: &str) -> String {
    if value.is_ascii() {
        return folded(&format!("{name}: {value}"), " ");
    }
    let mut words = vec![String::new()];
    for letter in value.chars() {
        if words.last().is_some_and(|word| word.len() + letter.len_utf8() > WORD_BYTES_MAX) {
            words.push(String::new());
        }
        words.last_mut().expect("a word").push(letter);
    }
    let words: Vec<String> = words.iter().map(|word| format!("=?utf-8?B?{}?=", BASE64.encode(word))).collect();
    format!("{name}: {}\r\n", words.join("\r\n "))
}

/// Encodes a text with CRLF line ends for any host (RFC 2045 section 6.7).
pub(super) fn quoted_printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    for line in text.split_terminator("\r\n") {
        let mut used = 0;
        for (at, byte) in line.bytes().enumerate() {
            let is_last = at + 1 == line.len();
            let is_plain = matches!(byte, b'!'..=b'<' | b'>'..=b'~') || byte == b' ' && !is_last;
            let takes = if is_plain { 1 } else { 3 };
            if used + takes > LINE_BYTES - 1 {
                out.push_str("=\r\n");
                used = 0;
            }
            if is_plain {
                out.push(char::from(byte))
            } else {
                write!(out, "={byte:02X}").expect("written to memory")
            }
            used += takes;
        }
        out.push_str("\r\n");
    }
    out
}

/// Octets of a reply or an address that a notification quotes.
const BYTES_MAX: usize = 1000;
const LINE_BYTES: usize = 76;
/// Below the 998 of RFC 5322 section 2.1.1.
const LINE_BYTES_MAX: usize = 900;
/// Octets in an encoded word before its encoding: 75 characters after it.
const WORD_BYTES_MAX: usize = 45;
